"""Cgroups version 2: one unified group for each task, which is moved into it before its program is loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass

from headway.agent.cgroup_files import counter, folders, read, write
from headway.agent.group import LEAST_QUOTA_US, PERIOD_US, Limits, Used, kill

CONTROLLERS = ("memory", "cpu", "pids", "io")
REMOVALS, PAUSE_S = 40, 0.025  # tries, for who is dead and not yet gone
AGENT = "headway-agent"  # where the agent itself goes: a group with controllers for its children may hold no process itself


@dataclass
class V2Hierarchy:
    path: str  # the agent's own group, delegated to it
    instance: str
    controllers: tuple[str, ...]

    def __post_init__(self) -> None:
        self.version = 2
        self.base = f"{self.path}/headway-{self.instance}"
        self.clear()
        leaf = f"{self.path}/{AGENT}"
        os.makedirs(leaf, exist_ok=True)
        for pid in read(f"{self.path}/cgroup.procs").split():
            with contextlib.suppress(OSError):
                write(f"{leaf}/cgroup.procs", pid)
        os.makedirs(self.base, exist_ok=True)
        words = " ".join(f"+{name}" for name in self.controllers)
        if words:
            write(f"{self.path}/cgroup.subtree_control", words)
            write(f"{self.base}/cgroup.subtree_control", words)

    def group(self, name: str) -> V2Group:
        return V2Group(f"{self.base}/{name}", self.controllers)

    def keep(self, thread: int) -> None:
        """Threads cannot stand in groups of their own here."""

    def go_home(self, thread: int) -> None:
        """Threads never left."""

    def clear(self) -> None:
        remove_all(self.base, self.controllers)


class V2Group:
    def __init__(self, path: str, controllers: tuple[str, ...]) -> None:
        self._path, self._controllers = path, controllers
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.folder, self.clock, self.freezer = path, "", path
        self.memory = f"{path}/memory.stat" if "memory" in controllers else ""
        self.place: str | None = f"{path}/cgroup.procs"
        self._limits, self._device = Limits(), ""
        self._peak = -1  # the descriptor by which the peak was begun again: it begins again only for who reads by the same
        self._earlier = 0  # the peak of earlier tasks, where it cannot begin again

    def admit(self, thread: int) -> None:
        """Threads cannot stand in groups of their own here."""

    def settle(self) -> bool:
        """Everything is under every limit from the beginning."""
        return True

    def empty(self) -> bool:
        """OSError when no descriptor is left to see it by."""
        running = _told(f"{self._path}/pids.current")
        return int(running) == 0 if running else not self.pids()

    def limit(self, limits: Limits, device: str) -> None:
        old, self._limits, self._device = self._limits, limits, device
        if limits == old:
            return
        if "memory" in self._controllers:
            write(f"{self._path}/memory.max", str(limits.memory or "max"))
            write(f"{self._path}/memory.oom.group", "1")
            if os.path.exists(f"{self._path}/memory.swap.max"):
                write(f"{self._path}/memory.swap.max", "0")
        if "pids" in self._controllers:
            write(f"{self._path}/pids.max", str(limits.processes or "max"))
        if "cpu" in self._controllers:
            milli, share = limits.cpus_milli, limits.share_milli or limits.cpus_milli
            write(f"{self._path}/cpu.weight", str(max(1, min(10_000, share // 10))) if share else "100")
            quota = max(LEAST_QUOTA_US, PERIOD_US * milli // 1000)
            write(f"{self._path}/cpu.max", f"{quota} {PERIOD_US}" if milli else f"max {PERIOD_US}")
        if "io" in self._controllers and device:
            iops, rate = limits.iops or "max", limits.bandwidth or "max"
            write(f"{self._path}/io.max", f"{device} riops={iops} wiops={iops} rbps={rate} wbps={rate}")

    def begin(self) -> bool:
        """The next task's peak is its own. Kernels before 6.12 keep it for ever: a group that was used is made anew there."""
        if self._begin_peak():
            return False
        self._earlier = self._read_peak()
        if not self._earlier:
            return False
        try:
            os.rmdir(self._path)
        except OSError:  # somebody is still in it: a peak that its next task does not exceed is not known
            return False
        os.mkdir(self._path)  # from here on, an error is the caller's: the group has no limits until all is done
        self._earlier = 0
        limits, self._limits = self._limits, Limits()
        self.limit(limits, self._device)
        return True

    def _begin_peak(self) -> bool:
        try:
            if self._peak < 0:
                self._peak = os.open(f"{self._path}/memory.peak", os.O_RDWR | os.O_CLOEXEC)
            os.pwrite(self._peak, b"0", 0)
        except OSError:
            self._close_peak()
            return False
        return True

    def _close_peak(self) -> None:
        if self._peak >= 0:
            os.close(self._peak)
            self._peak = -1

    def _read_peak(self) -> int:
        text = os.pread(self._peak, 32, 0) if self._peak >= 0 else _told(f"{self._path}/memory.peak")
        return int(text or 0)

    def used(self) -> Used:
        """OSError when no descriptor is left to see it by."""
        peak = self._read_peak()
        cpu = counter(_told(f"{self._path}/cpu.stat").encode(), b"usage_usec ")
        kills = counter(_told(f"{self._path}/memory.events").encode(), b"oom_kill ")
        refused = counter(_told(f"{self._path}/pids.events").encode(), b"max ")
        return Used(peak if peak > self._earlier else None, cpu // 1000, kills, refused)

    def pids(self) -> list[int]:
        return [int(pid) for pid in read(f"{self._path}/cgroup.procs").split() if pid != "0"]

    def close_door(self) -> None:
        if os.path.exists(f"{self._path}/cgroup.kill"):
            write(f"{self._path}/cgroup.kill", "1")

    def empty_cache(self, above: int) -> None:
        if int(read(f"{self._path}/memory.current") or 0) > above and os.path.exists(f"{self._path}/memory.reclaim"):
            with contextlib.suppress(OSError):
                write(f"{self._path}/memory.reclaim", "1G")

    def remove(self) -> None:
        kill(self)
        self._close_peak()
        with contextlib.suppress(OSError):
            os.rmdir(self._path)


def _told(path: str) -> str:
    """What the kernel says there; nothing in a group without this controller, or in one that is gone."""
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return ""


def remove_all(base: str, controllers: tuple[str, ...]) -> None:
    """Who was killed may need a moment to be gone from a group, and so may the thread that stood in it."""
    for _ in range(REMOVALS):
        for name in folders(base):
            V2Group(f"{base}/{name}", controllers).remove()
        with contextlib.suppress(OSError):
            os.rmdir(base)
        if not os.path.isdir(base):
            return
        time.sleep(PAUSE_S)
