"""Handing work to a thread without holding the interpreter.

Python's own queues wake the other thread while they hold the interpreter's lock. Whoever is woken may take the processor at once, and
then everybody waits for a lock whose holder does not run: on a busy machine a supervisor that started programs spent two fifths of its
time so. The semaphores of the C library, called through ctypes, wake and wait without the lock.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Protocol

Call = Callable[[], None]
_ROOM = 64  # bytes for a sem_t: 32 in glibc
_libc = ctypes.CDLL(None)


class Semaphore:
    def __init__(self) -> None:
        self._sem = ctypes.create_string_buffer(_ROOM)
        _libc.sem_init(self._sem, 0, 0)

    def post(self) -> None:
        _libc.sem_post(self._sem)

    def wait(self) -> None:
        while _libc.sem_wait(self._sem) != 0:  # a signal came
            pass


class Waking(Protocol):
    """How the one who waits is woken."""

    def post(self) -> None: ...
    def wait(self) -> None: ...


class Calls:
    """What one thread, or several, shall do."""

    def __init__(self, there: Waking | None = None) -> None:
        self._calls: deque[tuple[Call, Call] | None] = deque()
        self._there = there if there is not None else Semaphore()

    def put(self, work: tuple[Call, Call] | None) -> None:
        """What to do, and what then; None: end."""
        self._calls.append(work)
        self._there.post()

    def get(self) -> tuple[Call, Call] | None:
        self._there.wait()
        return self._calls.popleft()


def side_by_side(work: list[tuple[Calls, Call]]) -> None:
    """Each by the thread that serves its queue; returns when all are done. Only the last of them wakes the one who waits."""
    left, done = list(range(len(work))), Semaphore()

    def then() -> None:
        if left.pop() == 0:
            done.post()

    for calls, call in work:
        calls.put((call, then))
    if work:
        done.wait()
