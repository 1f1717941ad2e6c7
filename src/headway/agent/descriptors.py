"""A table of descriptors of its own for a thread that starts programs.

A program begins with a copy of the table of the thread that starts it, and closes the copies when it is loaded. The supervisor has some
hundreds of open files, and 250 cost each program 80-90 µs of CPU, an eighth of what `/bin/true` takes in all. So the thread of a slot has a
table of its own with next to nothing in it, and fetches from the supervisor's what a program shall be given.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from functools import cache

HIGHEST = 15  # programs find descriptors under numbers up to this one; here they are taken, so that none is covered before it is copied
_SELF = HIGHEST + 1  # in a table of a thread: a descriptor of this process, to fetch others by
BELL = HIGHEST + 2  # in a table of a thread: the first of three that it tells the supervisor by
_FIRST = BELL + 3  # in a table of a thread: the first that was fetched
_EVERY = 2**32 - 1
_STDERR = 2  # stays: what a thread says at its end must be seen
_CLONE_FILES = 0x400
_PIDFD_OPEN, _CLOSE_RANGE, _PIDFD_GETFD = 434, 436, 438  # of Linux on every machine; the C library has them later than the kernel
_libc = ctypes.PyDLL(None, use_errno=True)  # quick calls: they keep the interpreter
_syscall = _libc.syscall
_mine = threading.local()  # `parted`: this thread has a table of its own


def _keep_numbers() -> list[int]:
    kept = [NOTHING, os.dup(NOTHING)]
    while kept[-1] < HIGHEST:
        kept.append(os.dup(NOTHING))
    return kept


NOTHING = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # every program's standard input
_kept = _keep_numbers()


@cache
def can_part() -> bool:
    """Whether threads can fetch descriptors here: since Linux 5.9, which closes ranges of them, unless somebody forbids it."""
    process = _syscall(_PIDFD_OPEN, os.getpid(), 0) if sys.platform == "linux" else -1
    if process < 0:
        return False
    found = _syscall(_PIDFD_GETFD, process, NOTHING, 0)
    closed = _syscall(_CLOSE_RANGE, found, found, 0) if found >= 0 else -1
    os.close(process)
    if found >= 0 > closed:
        os.close(found)
    return bool(closed >= 0)


def part(kept: tuple[int, int, int]) -> bool:
    """Called by a thread that opens nothing by itself: from now on it has a table of its own, with these three of the process in it.
    False: it shares that of the process."""
    if not can_part() or _libc.unshare(_CLONE_FILES) != 0:
        return False
    for number in range(HIGHEST + 1):
        if number not in (NOTHING, _STDERR):
            _done(_libc.dup3(NOTHING, number, os.O_CLOEXEC))
    _done(_syscall(_CLOSE_RANGE, HIGHEST + 1, ctypes.c_uint(_EVERY), 0))
    _done(_syscall(_PIDFD_OPEN, os.getpid(), 0))
    for fd in kept:
        _done(_syscall(_PIDFD_GETFD, _SELF, fd, 0))
    _mine.parted = True
    return True


def ring(bell: int) -> None:
    """By whichever thread; `bell` is the number that it has for the process."""
    os.eventfd_write(BELL if getattr(_mine, "parted", False) else bell, 1)


class Fetched:
    """Descriptors of the process that a program is given, under the numbers that they have for the thread that starts it."""

    def __init__(self, *, parted: bool) -> None:
        self.parted = parted
        self._wanted: list[int] = []
        self.nothing = HIGHEST if parted else NOTHING

    def number(self, fd: int) -> int:
        if not self.parted:
            return fd
        self._wanted.append(fd)
        return _FIRST + len(self._wanted) - 1

    def fetch(self) -> int:
        """By the thread, before the start; an errno, or 0."""
        for at, fd in enumerate(self._wanted, _FIRST):
            if _syscall(_PIDFD_GETFD, _SELF, fd, 0) != at:
                return ctypes.get_errno() or errno.EBADF
        return 0

    def close(self) -> None:
        """By the thread, after it."""
        if self._wanted:
            _syscall(_CLOSE_RANGE, _FIRST, _FIRST + len(self._wanted), 0)


def _done(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"a thread could not have its own descriptors: {os.strerror(ctypes.get_errno())}")
    return result
