"""How much a server remembers of definitions, in bytes: who submits decides how long they are, and how many."""

from __future__ import annotations

from collections.abc import Callable

KEPT = 48 * 2**20  # some 30,000 definitions as most are
LONGEST = 64 * 2**10  # bytes of one thing; what is longer is read again whenever it is needed


class Remembered:
    """What is remembered in several places, all of which forget it when it is too much together."""

    def __init__(self) -> None:
        self.on_full: list[Callable[[], None]] = []
        self._bytes = 0

    def add(self, size: int) -> bool:
        """Whether something of this size is to be remembered; what was there before may be forgotten for it."""
        if size > LONGEST:
            return False
        self._bytes += size
        if self._bytes > KEPT:
            self._bytes = size
            for forget in self.on_full:
                forget()
        return True
