"""What it costs to start a program inside its limits, and inside a sandbox, beside the bare thing; turn by turn in one run.

    python bench/micro/start.py [rounds]

Both clocks are shown: wall time, and CPU time of this process and its children, which tells more on a machine that others use too.
The floor is posix_spawn and waitpid of /bin/true, one after another in this process. "limits" takes a place with a cgroup, starts
/bin/true in it, counts what it used and gives the place back. "bwrap" is bubblewrap with the sandbox's namespaces and a read-only system
and nothing else; "sandbox" is the whole of it, with filter, users, limits and private folders.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from headway.agent import tree
from headway.agent.link import Terms
from headway.agent.places import Places
from headway.agent.sandbox import ALONE, NAMESPACES, STATUS_FD, VARIABLES_FD
from headway.agent.spawn import Launch, launch
from headway.agent.variables import for_bubblewrap
from headway.domain.resources import Resources
from headway.domain.task import Definition

STARTS = 50
ROOM = Resources(cpus_milli=1000, memory=256 * 2**20)  # no disk: its watch is a process of its own, told once for many programs


def main() -> None:
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = tempfile.mkdtemp()
    null = os.open(os.devnull, os.O_WRONLY)
    places = Places(folder, "bec4bec4bec4bec4", Terms(), 10)
    bare = [shutil.which("bwrap") or "bwrap", *NAMESPACES, *ALONE, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "/bin/true"]
    contestants: dict[str, Callable[[], None]] = {
        "floor": lambda: _wait(os.posix_spawn("/bin/true", ["true"], {})),
        "limits": lambda: _in_place(places, null, isolation=""),
        "bwrap": lambda: _bare(bare),
        "sandbox": lambda: _in_place(places, null, isolation="sandbox"),
    }
    clocks: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "CPU": _cpu}
    took: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in contestants} for clock in clocks}
    for turn in range(rounds + 1):
        for name, start in contestants.items():
            began = {clock: read() for clock, read in clocks.items()}
            for _ in range(STARTS):
                start()
            for clock, read in clocks.items() if turn else ():  # the first round fills the pools
                took[clock][name].append((read() - began[clock]) / STARTS * 1000)
    places.close()
    shutil.rmtree(folder, ignore_errors=True)
    for clock, found in took.items():
        for name, values in found.items():
            print(f"{clock:5} {name:8} {statistics.median(values):7.3f} ms   ({min(values):.3f}-{max(values):.3f})")
        for name, floor in (("limits", "floor"), ("sandbox", "bwrap")):
            ratios = [a / b for a, b in zip(found[name], found[floor], strict=True)]
            print(f"{clock:5} {name} / {floor}: {statistics.median(ratios):.2f}   ({min(ratios):.2f}-{max(ratios):.2f})")


def _cpu() -> float:
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def _in_place(places: Places, null: int, *, isolation: str) -> None:
    definition = Definition(name="true", command=("/bin/true",), isolation=isolation, resources=ROOM)
    place = places.take(definition)
    places.make_ready(place)
    argv, opens, passes = ["/bin/true"], (), ()
    if isolation:
        box, scratch = places.box()
        argv, opens = box.command(argv, place.dir, private_tmp=scratch.tmp_of(place.dir)), box.opens
        passes = ((null, STATUS_FD), (for_bubblewrap({}), VARIABLES_FD))
    program = Launch(argv, {}, place.dir, null, null, place.slot, opens, passes)
    launch(program)
    for fd, to in passes:
        if to == VARIABLES_FD:
            os.close(fd)
    _wait_for_all()
    if place.slot is not None:
        place.slot.used()
    places.give_back(place)


def _bare(command: list[str]) -> None:
    os.posix_spawn(command[0], command, {})
    _wait_for_all()


def _wait(pid: int) -> None:
    os.waitpid(pid, 0)


def _wait_for_all() -> None:
    """The sandbox, and the first process inside it, which comes to us as it comes to the supervisor."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
