"""Lets a task stand still while somebody looks at its disk, by the kernel's freezer (G3).

One write stops all of its processes, also those that begin meanwhile, and neither they nor their parents can notice. Signals take 20 µs a
process, are seen by shells with job control, and miss whoever is begun while they are sent. Only groups of version 2 can do it, also those
beside version 1 (cgroups_v1): what is frozen in version 1 cannot even be killed.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # as in headway/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable

SETTLE_S = 0.01  # somebody may be in the middle of a long system call: the rest stands still, and he will
PAUSE_S = 0.0001
LONGEST = 2**16  # bytes of a list of processes


class Standstill:
    def __init__(self, group: str) -> None:
        """`group`: the folder of a group that holds processes of the task and nobody else's."""
        self._group = group
        self.frozen = False  # by us

    def freeze(self) -> set[int]:
        """Once what they are in the middle of is over, or after a moment. Returns who is in the group."""
        self.frozen = True
        if not self._say(b"1"):
            return set()
        until = time.monotonic() + SETTLE_S
        while b"frozen 1" not in self._read("cgroup.events") and time.monotonic() < until:
            time.sleep(PAUSE_S)
        return {int(word) for word in self._read("cgroup.procs").split()}

    def go_on(self, paused: Callable[[], bool]) -> None:
        """As disk_hold.go_on: whoever pauses or resumes says so before he does it, so what is said after ours is what has to be."""
        stands = True
        while stands != paused():
            stands = not stands
            self._say(b"1" if stands else b"0")
        self.frozen = False

    def _say(self, word: bytes) -> bool:
        try:
            fd = os.open(f"{self._group}/cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return False  # gone with its task
        try:
            return os.write(fd, word) > 0
        except OSError:
            return False
        finally:
            os.close(fd)

    def _read(self, file: str) -> bytes:
        try:
            fd = os.open(f"{self._group}/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(fd, LONGEST)
        except OSError:
            return b""
        finally:
            os.close(fd)


def is_able(group: str) -> bool:
    return os.access(f"{group}/cgroup.freeze", os.W_OK)
