"""How tests wait: for something that becomes true, for as long as a busy machine may need, and with words when it does not.

The only loops that ask again and again; what can be waited for (an answer, a line, an end) is waited for without them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
# A machine that is busy may be late: nothing waits this long unless something is wrong.
PATIENCE_S = 180.0
ASK_EVERY_S = 0.02
Away = tuple[type[Exception], ...]


def until(condition: Callable[[], T | None], *, seconds: float = PATIENCE_S, what: str = "", away: Away = ()) -> T:
    """Wait until the condition gives something true, and return that. Exceptions of `away` are no answer yet."""
    patience = _Patience(seconds, what)
    while True:
        try:
            if found := condition():
                return found
        except away as error:
            patience.last = error
        patience.check()
        time.sleep(ASK_EVERY_S)


async def eventually(
    check: Callable[[], Awaitable[T | None]] | Callable[[], T | None], *, seconds: float = PATIENCE_S, what: str = "", away: Away = ()
) -> T:
    """The same beside other tasks of an event loop; the check may be a coroutine."""
    patience = _Patience(seconds, what)
    while True:
        try:
            found = check()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
        except away as error:
            patience.last = error
        patience.check()
        await asyncio.sleep(ASK_EVERY_S)


class _Patience:
    def __init__(self, seconds: float, what: str) -> None:
        self.seconds, self.what = seconds, what
        self.end = time.monotonic() + seconds
        self.last: Exception | None = None

    def check(self) -> None:
        assert time.monotonic() < self.end, (
            f"it did not happen within {self.seconds:g} s{self.what and ': ' + self.what}{f' ({self.last!r})' if self.last else ''}"
        )
