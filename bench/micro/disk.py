"""By how much tasks at full write speed exceed their disk limit, and what the watch costs those who do not (G3).

    python bench/micro/disk.py [--runs 10] [--only "one file" ...] [--level none] [--limit 64] [--storm] [--on DIR] [--beside /other/src]
    python bench/micro/disk.py --cost | --build [--runs 10] [--beside /other/src]

Each run is a task that writes until it is ended; what its folder held then is compared with its limit. "burst" fills all but a thirtieth of
its limit, rests, and goes on with eight threads. The kinds "storm, ..." start 300 programs again and again, and begin to write when that is
under way. With `--storm` another task of the agent starts programs meanwhile, 500 at a time. `--cost` takes the time of a task that writes
half of its limit and ends, and the CPU time of the watch beside fifty tasks that sleep; `--build` the time of one that runs 600 programs,
eight or 300 at once, each of which writes a small file, with a limit that is near and with one that is far away. `--on` says where tasks
write, as on another file system (16 GiB are enough). With `--beside`, runs by the code here and by that of another checkout take turns. At
the level `container` (only when it is asked for) the task writes into its own layer above an image of one program, with this Python lent by
the node.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from headway.agent import tree
from headway.domain.content import Content
from headway.domain.resources import Resources
from tests.support.agents import AgentProcess
from tests.support.confined import LEVELS, MIB, confining, python
from tests.support.images import PODMAN, busybox_image
from tests.support.processes import command_line
from tests.support.scripted_server import ScriptedServer

ALLOWED = 10  # per cent
IDLE, IDLE_S = 50, 3.0
CONTAINER = "container"
LENT = {"python": sys.base_prefix, "usr": "/usr", "lib": "/lib", "lib64": "/lib64"}  # to containers, whose image has no Python
CPUS = 2000  # thousandths: no quota slows them down on two cores
_FORK = "import os\nfor me in range({count}):\n    if not os.fork(): break\nelse:\n    while True: os.wait()\n"
_FILES = """
import os
piece, fds = bytes(2**20), [os.open(f"{{os.getpid()}}-{{n}}", os.O_WRONLY | os.O_CREAT) for n in range({count})]
while True:
    for fd in fds: os.write(fd, piece)
"""
_BURST = """
import os, threading, time
def fill(name, size):
    fd, piece = os.open(name, os.O_WRONLY | os.O_CREAT), bytes(2**18)
    for _ in range(size // len(piece)): os.write(fd, piece)
fill("most", LIMIT - LIMIT // 30)
time.sleep(0.3)
for n in range(8): threading.Thread(target=fill, args=(f"f{n}", 2**40)).start()
"""
_MAKE = "n = 0\nwhile True:\n    fd = os.open(f'{{me}}-{{n}}', 65); os.write(fd, bytes({size})); os.close(fd); n += 1\n"
_LINKS = _FORK.format(count=8) + "open(f'{me}', 'w')\nn = 0\nwhile True: os.link(f'{me}', f'{me}-{n}'); n += 1\n"
_STORM = """
import os, random, time
if not os.fork(): os.execv("/bin/sh", ["sh", "-c", "while :; do for n in $(seq 300); do sleep 0.5 & done; wait; done"])
time.sleep(random.uniform(0.2, 1.2))
"""
_NAMELESS = """
import os
fd, piece = os.open("f", os.O_WRONLY | os.O_CREAT), bytes(2**20)
os.unlink("f")
while True: os.write(fd, piece)
"""
KINDS = {
    "one file": _FILES.format(count=1),
    "fifty files": _FILES.format(count=50),
    "eight processes": _FORK.format(count=8) + _FILES.format(count=8),
    "makers of small files": _FORK.format(count=8) + _MAKE.format(size=8192),
    "hard links": _LINKS,
    "tiny files": "import os\nme = 0\n" + _MAKE.format(size=1),
    "burst": _BURST,
    "no name": _NAMELESS,
    "storm, hard links": _STORM + _LINKS,
    "storm, one file": _STORM + _FILES.format(count=1),
    "storm, no name": _STORM + _NAMELESS,
    "storm, fifty files": _STORM + _FILES.format(count=50),
    "storm, eight processes": _STORM + _FORK.format(count=8) + _FILES.format(count=8),
}
BUILD = """
import os, subprocess
running = []
for n in range(600):
    running.append(subprocess.Popen(["/bin/sh", "-c", f"head -c 10000 /dev/zero > f{n}"]))
    if len(running) == AT_ONCE: running.pop(0).wait()
for each in running: each.wait()
"""
BUILDS, NEAR, FAR = (8, 300), 64, 4096  # at once; MiB
HALF = "import os\nfd = os.open('f', 65)\nfor _ in range(LIMIT // 2**21): os.write(fd, bytes(2**20))"
STORM = ("/bin/sh", "-c", "while :; do for n in $(seq 500); do sleep 1 & done; wait; done")
Nodes = dict[str, tuple[ScriptedServer, AgentProcess]]


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--runs", type=int, default=10)
    asked.add_argument("--only", choices=list(KINDS), nargs="+", default=list(KINDS))
    asked.add_argument("--level", choices=(*LEVELS, CONTAINER), nargs="+", default=LEVELS)
    asked.add_argument("--limit", type=int, nargs="+", default=[64, 256], help="in MiB")
    asked.add_argument("--beside", metavar="SRC", help="the src folder of another checkout")
    asked.add_argument("--on", metavar="DIR", help="where tasks write")
    asked.add_argument("--storm", action="store_true", help="beside a task that starts programs all the time")
    asked.add_argument("--cost", action="store_true")
    asked.add_argument("--build", action="store_true")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory(dir=options.on) as folder, _nodes(Path(folder), options.beside, options.on) as nodes:
        if options.cost:
            _cost(nodes, options.runs)
            return
        if options.build:
            for at_once in BUILDS:
                for limit in (NEAR, FAR):
                    _build(nodes, at_once, limit * MIB, options.runs)
            return
        if options.storm:
            for server, _ in nodes.values():
                server.order(server.define(command=STORM, resources=Resources(cpus_milli=CPUS, memory=1024 * MIB, disk=64 * MIB)))
        for limit in options.limit:
            for kind in options.only:
                for level in options.level:
                    _overshoot(nodes, kind, level, limit * MIB, options.runs)


@contextmanager
def _nodes(folder: Path, beside: str | None, sandboxes: str | None) -> Iterator[Nodes]:
    """An agent by the code here, and one by the code of another checkout."""
    with ExitStack() as stack:
        volumes = {name: path for name, path in LENT.items() if os.path.isdir(path)}
        settings = {"max_processes": 1000, "container_engine": PODMAN, "volumes": volumes, "sandbox_dir": sandboxes}
        nodes = {"here": stack.enter_context(confining(folder / "here", **settings))}
        if beside:
            os.environ["PYTHONPATH"] = beside
            nodes["beside"] = stack.enter_context(confining(folder / "beside", node_name="beside", **settings))
            del os.environ["PYTHONPATH"]
        yield nodes


def _overshoot(nodes: Nodes, kind: str, level: str, limit: int, runs: int) -> None:
    room = Resources(cpus_milli=CPUS, memory=2 * limit + 256 * MIB, disk=limit)
    fields = _fields(python(KINDS[kind].replace("LIMIT", str(limit))), level)
    found: dict[str, list[float]] = {name: [] for name in nodes}
    for _ in range(runs):
        for name, (server, _) in nodes.items():
            ref = server.run(server.define(**fields, resources=room))
            found[name].append(server.error(ref).get("excess", {}).get("used", 0) / limit * 100 - 100)
    for name, values in found.items():
        most, middle = max(values), statistics.median(values)
        above = sum(value > ALLOWED for value in values)
        print(
            f"{limit // MIB:4} MiB  {kind:22} {level:8} {name:7} at most {most:6.1f} %  median {middle:6.1f} %"
            f"  above {ALLOWED} %: {above} of {len(values)}",
            flush=True,
        )


def _fields(command: tuple[str, ...], level: str) -> dict[str, Any]:
    if level != CONTAINER:
        return {"command": command, "isolation": "" if level == "none" else level}
    command = (os.path.realpath(command[0]), *command[1:])  # not the link of a virtual environment, which is not lent
    content = Content(image=busybox_image(PODMAN), volumes=tuple(name for name, path in LENT.items() if os.path.isdir(path)))
    return {"content": content, "args": command, "isolation": level, "workdir": "/tmp"}


def _cost(nodes: Nodes, runs: int) -> None:
    limit = 64 * MIB
    room = Resources(cpus_milli=CPUS, memory=256 * MIB, disk=limit)
    took: dict[str, list[float]] = {name: [] for name in nodes}
    spent: dict[str, list[float]] = {name: [] for name in nodes}
    for _ in range(runs):
        for name, (server, agent) in nodes.items():
            ref = server.run(server.define(command=python(HALF.replace("LIMIT", str(limit))), resources=room))
            took[name].append(server.finished[ref].ended_ms - server.finished[ref].started_ms)
            spent[name].append(_beside_sleepers(server, agent))
    for name in nodes:
        print(f"{name:7} half the limit written in {statistics.median(took[name]):.0f} ms ({min(took[name])}-{max(took[name])})")
        print(f"{name:7} beside {IDLE} that sleep: {statistics.median(spent[name]):.2f} % of a CPU", flush=True)


def _build(nodes: Nodes, at_once: int, limit: int, runs: int) -> None:
    room = Resources(cpus_milli=CPUS, memory=1024 * MIB, disk=limit)
    took: dict[str, list[int]] = {name: [] for name in nodes}
    for _ in range(runs):
        for name, (server, _) in nodes.items():
            ref = server.run(server.define(command=python(BUILD.replace("AT_ONCE", str(at_once))), resources=room))
            took[name].append(server.finished[ref].ended_ms - server.finished[ref].started_ms)
    for name, values in took.items():
        print(
            f"{limit // MIB:4} MiB  {at_once} programs at once {name:7} {statistics.median(values):.0f} ms ({min(values)}-{max(values)})",
            flush=True,
        )


def _beside_sleepers(server: ScriptedServer, agent: AgentProcess) -> float:
    """What the watch spends meanwhile, in percent of a CPU."""
    room = Resources(cpus_milli=10, memory=16 * MIB, disk=64 * MIB)
    refs = server.order_many(server.define(command=("/bin/sleep", "600"), resources=room), [b""] * IDLE)
    running = {started.id for started in server.started}
    server.wait(lambda: {ref[0] for ref in refs} <= running | {started.id for started in server.started})
    (watch,) = [pid for pid in tree.children(agent.supervisor()) if b"disk_process" in command_line(pid)]
    before, began = _cpu(watch), time.monotonic()
    time.sleep(IDLE_S)
    spent = (_cpu(watch) - before) / (time.monotonic() - began)
    for ref in refs:
        server.cancel(ref, grace_s=0)
    server.wait(lambda: all(ref in server.finished for ref in refs))
    return spent * 100


def _cpu(pid: int) -> float:
    """Seconds, of all of its threads."""
    return sum(int(Path(path, "schedstat").read_text().split()[0]) for path in Path(f"/proc/{pid}/task").iterdir()) / 1e9


if __name__ == "__main__":
    main()
