"""What a container uses, seen from outside: memory, processes, CPU and I/O in its cgroups, and what it writes into its own files (G3 H2).

The engine limits memory, CPUs and processes, but does not say reliably which of them a container was ended for, and nothing about what it
used; of the disk it knows no limit at all. So the launcher of a container (contain.py) looks every now and then. What is above its limit is
ended here, and what is there told.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import NamedTuple

from headway.agent import tree
from headway.agent.disk_count import count

NEARLY = 0.95  # of the limit: a container killed so close to it ran out of memory
DISK_S = 0.25  # between two looks at the files
_CGROUPS = "/sys/fs/cgroup"
_UPPER = re.compile(r"(?:^|,)upperdir=([^,]+)")
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Limits(NamedTuple):
    """What it may use; 0 is anything."""

    memory: int = 0
    processes: int = 0
    disk: int = 0


class Watch:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.over: tuple[str, int, int] | None = None  # what, used, allowed
        self._seen: dict[str, int] = {}
        self._folders: tuple[str, ...] = ()
        self._groups: dict[str, str] = {}
        self._marked = tree.carries(*(f"{name}={os.environ.get(name, '')}" for name in ("HEADWAY_TASK_ID", "HEADWAY_ATTEMPT")))
        self._own = groups_of(os.getpid())
        self._disk_at = 0.0

    def look(self) -> list[int]:
        """Everything of it that is to be killed, because it is above a limit."""
        if not self._groups:
            self._find()
        if not self._groups or self.over is not None:
            return []
        self._use()
        if self._seen["kills"] and self.limits.memory:  # perhaps only one of its processes
            self.ended_for_memory()
        elif self.limits.processes and self._figure("pids", "pids.events", "max"):
            self.over = ("processes", self.limits.processes + 1, self.limits.processes)
        self._look_at_disk()
        return self._pids() if self.over is not None else []

    def ended_for_memory(self) -> None:
        """Somebody who knows says so."""
        if self.over is None:
            self.over = ("memory", max(self._seen.get("peak", 0), self.limits.memory), self.limits.memory)

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed for its memory, as far as the last look tells."""
        return bool(self.limits.memory and (self._seen.get("kills") or self._seen.get("peak", 0) >= self.limits.memory * NEARLY))

    def said(self) -> dict[str, int]:
        """What to tell, by names that the agent knows (sandbox.told)."""
        found = {name: value for name, value in self._seen.items() if name != "kills"}
        if self.over is not None:
            what, used, allowed = self.over
            found |= {f"over-{what}": used, "allowed": allowed}
        return found

    def _use(self) -> None:
        for name, value in {
            "peak": self._figure("memory", "memory.max_usage_in_bytes") or self._figure("memory", "memory.peak"),
            "kills": self._figure("memory", "memory.oom_control", "oom_kill") or self._figure("memory", "memory.events", "oom_kill"),
            "cpu-ms": self._cpu_ms(),
            "read": self._bytes("Read", "rbytes"),
            "written": self._bytes("Write", "wbytes"),
        }.items():
            self._seen[name] = max(value, self._seen.get(name, 0))

    def _cpu_ms(self) -> int:
        spent_ns = self._figure("cpuacct", "cpuacct.usage")
        return spent_ns // 1_000_000 if spent_ns else self._figure("cpu", "cpu.stat", "usage_usec") // 1000

    def _bytes(self, word: str, key: str) -> int:
        lines = self._lines("blkio", "blkio.throttle.io_service_bytes")
        if lines:
            return sum(int(line.split()[2]) for line in lines if line.split()[1:2] == [word])
        words = [word for line in self._lines("io", "io.stat") for word in line.split()]
        return sum(int(each.partition("=")[2]) for each in words if each.startswith(f"{key}="))

    def _look_at_disk(self) -> None:
        now = time.monotonic()
        if self.over is not None or not self.limits.disk or not self._folders or now < self._disk_at:
            return
        used = count(self._folders, self.limits.disk).total
        self._disk_at = time.monotonic() + max(DISK_S, 2 * (time.monotonic() - now))
        if used > self.limits.disk:
            self.over = ("disk", used, self.limits.disk)

    def _figure(self, controller: str, name: str, key: str = "") -> int:
        for line in self._lines(controller, name):
            words = line.split()
            if words and (words[0] == key or not key) and words[-1].isdigit():
                return int(words[-1])
        return 0

    def _lines(self, controller: str, name: str) -> list[str]:
        if (group := self._groups.get(controller) or self._groups.get("")) is None:
            return []
        try:
            with open(f"{group}/{name}") as file:
                return file.read().splitlines()
        except OSError:
            return []

    def _pids(self) -> list[int]:
        return [int(line) for line in self._lines("pids", "cgroup.procs")]

    def _find(self) -> None:
        """Its processes carry the task's marks; the engine's own, which carry them too, are outside its process namespace, or not yet in
        the group that has its limits."""
        for pid in tree.members([], self._marked):
            groups = groups_of(pid)
            where = groups.get("memory") or groups.get("", "")
            if where and where != (self._own.get("memory") or self._own.get("")) and _is_inside(pid) and self._limited(where):
                self._groups, self._folders = groups, written_by(pid)
                return

    def _limited(self, group: str) -> bool:
        """Pages are counted whole: the kernel may have cut a little off."""
        for name in ("memory.limit_in_bytes", "memory.max"):
            with contextlib.suppress(OSError, ValueError), open(f"{group}/{name}") as file:
                return not self.limits.memory or self.limits.memory - 2**16 <= int(file.read()) <= self.limits.memory
        return not self.limits.memory


def _is_inside(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False  # gone


def groups_of(pid: int) -> dict[str, str]:
    """The folders of a process's cgroups: by controller in version 1, under no name in version 2."""
    found: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return found
    for number, controllers, path in lines:
        for name in controllers.split(","):
            if number == "0":
                found[""] = f"{_CGROUPS}{path}"
            elif os.path.isdir(f"{_CGROUPS}/{name}"):
                found[name] = f"{_CGROUPS}/{name}{path}"
    return found


def written_by(pid: int) -> tuple[str, ...]:
    """The folders of the node that a container's own files go to: its layer above the image, and volumes that the image asked for."""
    found: list[str] = []
    try:
        with open(f"/proc/{pid}/mountinfo") as file:
            lines = [line.rstrip("\n").split(" - ", 1) for line in file]
    except OSError:
        return ()
    for about, kind in lines:
        words = about.split()
        if words[4] == "/" and (upper := _UPPER.search(kind.split()[-1])):
            found.append(_plain(upper[1]))
        elif words[3].endswith("/_data") and "/volumes/" in words[3]:  # below the top of its file system, which is nearly always that of /
            found.append(_plain(words[3]))
    return tuple(path for path in found if os.path.isdir(path))


def _plain(path: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)
