"""What the kernel says about a container that is gone with its groups (G3 H2).

A container that ends by a process it is refused takes its groups along, on a busy node before anybody has looked at them (with Docker one
of twenty). The kernel writes a line about the first refusal in each group, with its name, where only root reads and no container writes.
"""

from __future__ import annotations

import os

_LOG = "/dev/kmsg"
_REFUSED = b"fork rejected by pids controller in "
_LONGEST = 8192  # bytes of one record


class KernelLog:
    def __init__(self, wanted: bool) -> None:
        """From now on. Nothing is read of it where it is not wanted, or not ours to read."""
        self._fd = -1
        if wanted:
            try:
                self._fd = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._fd, 0, os.SEEK_END)
            except OSError:
                self.close()

    def tells_of_refusal(self, container: str) -> bool:
        """Whether one was refused in the groups of this container since then."""
        while self._fd >= 0:
            try:
                record = os.read(self._fd, _LONGEST)
            except BrokenPipeError:
                continue  # older ones were overwritten: on with the next
            except OSError:
                return False  # no more
            if _REFUSED in record and container.encode() in record:
                return True
        return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
