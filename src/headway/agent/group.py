"""The group of one slot: what it limits, what it counts, and what both versions of cgroups can do with it (G3)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple, Protocol

PERIOD_US = 100_000
LEAST_QUOTA_US = 1000  # the kernel takes no less
KILL_S = 0.2  # a process in the middle of a long system call takes its time; its slot is looked after later


class Limits(NamedTuple):
    """What one task may use at a time; 0 is no limit."""

    cpus_milli: int = 0
    memory: int = 0
    processes: int = 0
    iops: int = 0
    bandwidth: int = 0  # bytes a second
    share_milli: int = 0  # of CPU when others want it too; without `cpus_milli` it may have more when they do not


class Used(NamedTuple):
    """What a group has counted. All but the peak rise for ever: a task's part is the difference."""

    peak: int | None  # None: not known
    cpu_ms: int
    kills: int  # by the out-of-memory killer
    refused: int  # forks beyond the limit


class Group(Protocol):
    """The group of one slot."""

    folder: str  # of the files that tell what runs in it
    clock: str  # the file that tells what it has used of the CPU, in nanoseconds; empty: none does
    memory: str  # the file that tells what of its files is in memory; empty: none does
    freezer: str  # the folder of a group of version 2 in which what runs for longer than a moment is; empty: there is none
    place: str | None  # the cgroup.procs a new process must be moved by; None: the starting thread stands inside already

    def admit(self, thread: int) -> None: ...
    def limit(self, limits: Limits, device: str) -> None: ...
    def begin(self) -> bool: ...  # of its next task; True: all its counters are at nothing
    def settle(self) -> bool: ...
    def empty(self) -> bool: ...
    def used(self) -> Used: ...
    def pids(self) -> list[int]: ...
    def close_door(self) -> None: ...
    def empty_cache(self, above: int) -> None: ...
    def remove(self) -> None: ...


class Hierarchy(Protocol):
    """Where this agent's groups are."""

    version: int
    controllers: tuple[str, ...]

    def group(self, name: str) -> Group: ...
    def keep(self, thread: int) -> None: ...
    def go_home(self, thread: int) -> None: ...
    def clear(self) -> None: ...


def kill(group: Group, patience_s: float = KILL_S) -> bool:
    """End whatever is inside, and nothing can be started while we do. True once it is empty."""
    inside = group.pids()
    if not inside:
        return True
    group.close_door()
    until = time.monotonic() + patience_s
    while inside:
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= until:
            break
        time.sleep(0.0005)
        inside = group.pids()
    return not inside
