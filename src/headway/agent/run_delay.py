"""How long a thread had to wait for a CPU though it could run, as the kernel counts it.

On a busy machine a function that takes 30 µs is measured with 60 ms now and then: its runner was put aside in the middle of it. That says
how busy the machine is and nothing of the function, and more runners, as for functions that wait for something, would make it busier.
"""

from __future__ import annotations

import os

COUNTERS = "/proc/thread-self/schedstat"  # time on a CPU, time waiting for one, turns; not every kernel has it
LENGTH = 80


class RunDelay:
    """Of the thread that makes it."""

    def __init__(self) -> None:
        try:
            self._file = os.open(COUNTERS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self._before = 0
        self.since()

    def since(self) -> int:
        """Nanoseconds since it was asked last; 0 where nobody counts them."""
        if self._file < 0:
            return 0
        try:
            now = int(os.pread(self._file, LENGTH, 0).split()[1])
        except (OSError, ValueError, IndexError):  # a function may have closed what it did not open
            return 0
        waited, self._before = now - self._before, now
        return max(waited, 0)
