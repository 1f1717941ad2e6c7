"""Who belongs to a task, as far as the watch on disks has to know (G3)."""

from __future__ import annotations

import os

LONGEST = 2**16  # bytes of a list; a longer one is seen in part, each time
THREADS = ("tasks", "cgroup.threads")  # in versions 1 and 2


class One:
    """A single process, where there are no groups."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def pids(self) -> list[int]:
        return [self._pid]

    def threads(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"/proc/{self._pid}/task")]
        except OSError:
            return []  # it has ended

    def clock(self) -> float | None:
        return None


class Whole:
    """The processes of a group that holds nothing else: of a container."""

    def __init__(self, folder: str, clock: str) -> None:
        self._folder, self._clock = folder, clock

    def pids(self) -> list[int]:
        return [pid for pid in _listed(f"{self._folder}/cgroup.procs") if pid]

    def threads(self) -> list[int]:
        return next((found for file in THREADS if (found := _listed(f"{self._folder}/{file}"))), [])

    def clock(self) -> float | None:
        """Seconds of CPU that it has used."""
        try:
            return int(_tell(self._clock)) / 1e9 if self._clock else None
        except (OSError, ValueError):
            return None


class Group(Whole):
    """The processes of a group, without the supervisor, of which `ours` threads stand inside."""

    def __init__(self, folder: str, ours: int, clock: str, supervisor: int) -> None:
        super().__init__(folder, clock)
        self._ours, self._supervisor = ours, supervisor
        self._own: set[int] = set()  # the threads that are

    def pids(self) -> list[int]:
        """The list costs much: first, whether there are any."""
        try:
            if int(_tell(f"{self._folder}/pids.current")) <= self._ours:
                return []
        except (OSError, ValueError):
            return []  # the group is gone
        return [pid for pid in super().pids() if pid != self._supervisor]

    def threads(self) -> list[int]:
        found = super().threads()
        if len(self._own) < self._ours:
            self._own = {thread for thread in found if os.path.exists(f"/proc/{self._supervisor}/task/{thread}")}
        return [thread for thread in found if thread not in self._own]


_open: dict[str, int] = {}  # descriptors of files that tell a number: groups are used again and again


def _tell(file: str) -> bytes:
    try:
        if (known := _open.get(file)) is None:
            known = _open[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(known, 32, 0)
    except OSError:  # gone; one of that name may be made again
        if (known := _open.pop(file, None)) is not None:  # the guard's thread asks too, and may have been first
            os.close(known)
        raise


def _listed(file: str) -> list[int]:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return [int(word) for word in os.read(fd, LONGEST).split()]
    finally:
        os.close(fd)
