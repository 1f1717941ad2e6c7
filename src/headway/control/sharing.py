"""A look at the database that many want at the same time: who asks while one is under way shares the next with all others who do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class SharedLook:
    look: Callable[[], Awaitable[None]]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next: asyncio.Future[None] | None = None  # one that has not begun

    async def fresh(self) -> None:
        """What was committed before this call is seen when it returns. A look that has begun may have missed it: only the next counts."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._look_in_turn())
            self._next.add_done_callback(_heard)
        await asyncio.shield(self._next)  # who gives up does not end it for the others

    async def _look_in_turn(self) -> None:
        async with self._turn:
            self._next = None
            await self.look()


def _heard(look: asyncio.Future[None]) -> None:
    """Who asked hears why it failed; if all of them gave up, nobody is to be told."""
    if not look.cancelled():
        look.exception()
