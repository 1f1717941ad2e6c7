"""The agent's two clocks.

The lease and every limit run on CLOCK_BOOTTIME, which goes on while the machine sleeps: a laptop that wakes up
knows that its lease is over. People and servers are told Unix milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has none; there a sleep stops the clock
_ABSOLUTE = 1


def boottime() -> float:
    return time.clock_gettime(_BOOTTIME)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Timer:
    """A descriptor that can be read, also by other processes, once its moment has come; without Linux never. (Python 3.13 has it.)"""

    def __init__(self) -> None:
        if sys.platform != "linux":
            self.fd, self._never = os.pipe()
            return
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(_BOOTTIME, os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, moment: float | None) -> None:
        """Of CLOCK_BOOTTIME; None: never."""
        if sys.platform != "linux":
            return
        nanoseconds = 0 if moment is None else max(round(moment * 1e9), 1)
        value = (ctypes.c_long * 4)(0, 0, *divmod(nanoseconds, 1_000_000_000))
        if self._libc.timerfd_settime(self.fd, _ABSOLUTE, value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        os.close(self.fd)
