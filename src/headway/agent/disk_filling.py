"""How much a task's group took into memory of what its files are made of, since the last look at its disk (G3).

What a process writes is in memory first, and the kernel counts that for the group: also what goes into files without a name, and without
asking any process. It is no measure of what lies on the disk, as files that are read are in memory too. But where little came, little was
written.
"""

from __future__ import annotations

import os

LONGEST = 2**13  # bytes of the file that tells


class Filling:
    def __init__(self, file: str) -> None:
        """`file`: the memory.stat of the group, in version 1 or 2; without one nothing is known."""
        self._file, self._fd = file, -1
        self._cached = self._unwritten = self._last_cached = self._last_unwritten = 0

    def begin(self) -> None:
        self._last_cached, self._last_unwritten = self._read()
        self._cached = self._unwritten = 0

    def grown(self) -> int:
        """Bytes that came since `begin`, as far as one who asks often can see: what went meanwhile takes nothing away.

        A hole of a file that was read is in memory already; what is written there is new among what waits to be written."""
        cached, unwritten = self._read()
        self._cached += max(cached - self._last_cached, 0)
        self._unwritten += max(unwritten - self._last_unwritten, 0)
        self._last_cached, self._last_unwritten = cached, unwritten
        return max(self._cached, self._unwritten)

    def _read(self) -> tuple[int, int]:
        try:
            if self._fd < 0:
                self._fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            told = os.pread(self._fd, LONGEST, 0)
        except OSError:
            return 0, 0  # gone with its task
        found = dict(line.split() for line in told.splitlines())
        cached = found.get(b"cache", found.get(b"file", b"0"))
        unwritten = [found.get(name, b"0") for name in (b"dirty", b"writeback", b"file_dirty", b"file_writeback")]
        return int(cached), sum(map(int, unwritten))

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
