"""An agent, real tasks, and everything that can happen to them, by chance (G2 G3 H1 H6 H7 H9 H11 I1).

Programs and functions end well, fail, die, stay, escape and take too much, while they are cancelled, paused, signalled and superseded,
the server repeats itself, loses answers and forgets, and the agent's own processes are killed and stopped. Afterwards each attempt has one
end that a model of what was done to it allows, its output is whole, and nothing is left.

HEADWAY_WALK_SEEDS=100-140 walks other ways than CI does, HEADWAY_WALK_STEPS longer ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.agent import cgroups, cgroups_v1, tree
from headway.agent.main import Agent
from tests.support import walk_model
from tests.support.agent_walk import ADOPTING, DISK_WATCH, HELPERS, MOST_OPEN, RUNNERS, SHORT_S, Walk
from tests.support.confined import need_groups, need_sandbox
from tests.support.packages import need
from tests.support.processes import command_line
from tests.support.waiting import until
from tests.support.walk_model import Plan
from tests.support.walk_server import WalkServer

STEPS = int(os.environ.get("HEADWAY_WALK_STEPS", "40"))
QUICK = int(os.environ.get("HEADWAY_WALK_TASKS", "15"))  # after the walk, to see whether anything grows
THREADS = 4 * MOST_OPEN  # of a supervisor: one for each slot that was ever needed at once, and a few
A_RUNNER = {"pipe:[N]": 2, "socket:[N]": 1, "/proc/N/statm": 1, "/memfd:headway-runner (deleted)": 1}  # what it has open for one


def seeds() -> list[int]:
    """Those of CI, or as it was asked for."""
    first, _, last = os.environ.get("HEADWAY_WALK_SEEDS", "1-2").partition("-")
    return list(range(int(first), int(last or first) + 1))


# --- what is left


def left_by(walk: Walk) -> list[str]:
    """What tasks have left behind while the agent has nothing to do."""
    found = []
    for lock in walk.shown.glob("lock-*"):
        with open(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(f"processes of task {lock.name}")
    if (supervisor := walk.supervisor()) is None:
        return ["no supervisor"]
    for pid, of in tree.table().items():
        words = command_line(pid)
        if of.ppid == supervisor and (of.zombie or not any(own in words for own in (*RUNNERS, *HELPERS, ADOPTING))):
            found.append(f"{'zombie' if of.zombie else 'process'} {pid} {words[:300]!r}")
    for scratch in (Path(walk.folder, "agent", "test-node", "scratch"), Path(f"/var/tmp/headway-{instance(walk)}/scratch")):
        for folder, folders, files in os.walk(scratch):
            if Path(folder) != scratch:
                found += [f"{folder}/{name}" for name in (*folders, *files) if name not in ("checkpoint", "work", "tmp")]
    return found


def instance(walk: Walk) -> str:
    return Agent(walk.agent.settings).instance


def descriptors(pid: int) -> Counter[str]:
    """What a process has open, by kind. Groups are pooled, with their files."""
    found: Counter[str] = Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = re.sub(r"\d+", "N", os.readlink(f"/proc/{pid}/fd/{name}"))
            if not target.startswith("/sys/fs/cgroup"):
                found[target] += 1
    return found


def until_none(look: Callable[[], object], what: str) -> None:
    """Wait until a look finds nothing; else it is said what it found."""
    found: object = None

    def none() -> bool:
        nonlocal found
        found = look()
        return not found

    try:
        until(none, seconds=60)
    except AssertionError:
        raise AssertionError(f"{what}: {found}") from None


def nothing_grows(walk: Walk) -> None:
    """Many tasks more, and afterwards the supervisor has as much open as before."""
    run_quick(walk, 10)
    until(lambda: ends_well(walk, Plan("watched", "command", "sandbox", [["rest", 0.0]], disk=walk_model.DISK)))
    supervisor = until(walk.supervisor)
    before = at_rest(walk, supervisor)
    run_quick(walk, QUICK)
    until_none(lambda: at_rest(walk, supervisor) - before, f"before it had {before}, now the supervisor has more")
    until_none(lambda: left_by(walk), "left behind by quick tasks")
    assert len(os.listdir(f"/proc/{supervisor}/task")) < THREADS


def ends_well(walk: Walk, plan: Plan) -> bool:
    """Give it, and wait: what waits for long comes back."""
    ref = walk.give(plan, walk.server.new_task(), 1)
    walk.server.wait(lambda: walk.server.settled(ref))
    return ref in walk.server.finished


def at_rest(walk: Walk, supervisor: int) -> Counter[str]:
    """What is open when nothing runs, but for the runner that stays warm, if there is one, and the watch on disks."""

    def alone() -> bool:
        found = walk.children(*RUNNERS)
        return len(found) <= 1 and all(RUNNERS[0] in (words := command_line(pid)) and b"bwrap" not in words for pid in found)

    until(alone, what="idle runners end")
    found = descriptors(supervisor)
    found.subtract({name: count * len(walk.children(RUNNERS[0])) for name, count in A_RUNNER.items()})
    found.subtract({"socket:[N]": len(walk.children(DISK_WATCH))})
    return found


def run_quick(walk: Walk, count: int) -> None:
    chance = random.Random(count)
    for _ in range(count):
        plan = walk_model.draw(chance, sandbox=True, perl=True)
        while plan.outcome is None or plan.kind == "capped":
            plan = walk_model.draw(chance, sandbox=True, perl=True)
        until(lambda: len(walk.open()) < MOST_OPEN)
        walk.give(plan, walk.server.new_task(), 1)
    until(lambda: not walk.open(), what="quick tasks end")


@contextlib.contextmanager
def walking(seed: int, folder: Path) -> Iterator[Walk]:
    shown = Path(tempfile.mkdtemp(prefix="headway-walk-"))  # not below a folder that only we may enter
    walk_model.prepare(shown)
    with WalkServer(seed, fence_s=SHORT_S if seed % 3 == 0 else 30.0) as server:
        walk = Walk(seed, server, folder, shown)
        try:
            yield walk
        except BaseException:
            walk.tell(seed)
            raise
        finally:
            walk.agent.clean_up()
            shutil.rmtree(shown)


@pytest.mark.parametrize("seed", seeds())
def test_after_any_walk_each_attempt_has_one_possible_end_and_nothing_is_left(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    need_groups()
    need_sandbox(tmp_path)
    need("perl")
    with walking(seed, tmp_path / "agent") as walk:
        walk.server.wait(lambda: walk.server.heartbeats)
        for _ in range(STEPS):
            walk.revive()
            walk.step()
        walk.calm_down()
        until_none(lambda: left_by(walk), "left behind")
        nothing_grows(walk)
        walk.stop()
        assert walk.complaints() == []
        assert left_behind(walk) == []
        assert surprises(capfd.readouterr().err) == []


def surprises(log: str) -> list[str]:
    """What the agent's own processes had not foreseen."""
    lines = log.splitlines()
    at = [n for n, line in enumerate(lines) if "agent.unforeseen" in line or line.startswith(("Traceback", "Exception"))]
    return ["\n".join(lines[n : n + 20]) for n in at]


def left_behind(walk: Walk) -> list[str]:
    """What an agent that has ended has left."""
    name = f"headway-{instance(walk)}"
    there = cgroups.available()
    folders = cgroups_v1.own_folders() if there is not None and there[0] == 1 else {}
    found = [f"{path}/{name}" for path in folders.values() if os.path.exists(f"{path}/{name}")]
    found += [path for path in (f"/var/tmp/{name}", f"{walk.folder}/agent/test-node/scratch") if os.path.exists(path)]
    with open("/proc/self/mountinfo") as mounts:
        found += [line for line in mounts if name in line or str(walk.folder) in line]
    return found
