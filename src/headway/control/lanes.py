"""Group commit: whatever waits is written together, in two lanes, so that one batch is prepared while another is being stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headway.logs import log

T = TypeVar("T")
LANES = 2


@dataclass
class Lanes(Generic[T]):
    commit: Callable[[list[T]], Awaitable[None]]  # answers each of its items itself, also when it fails
    weight: Callable[[T], int]
    full: int  # a batch that weighs this much goes
    _waiting: list[T] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, item: T) -> None:
        self._waiting.append(item)
        self._wake.set()

    async def run(self) -> None:
        """Commit batch after batch until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(self._lane())

    async def _lane(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self.commit(self._next())
                except Exception as error:  # it answered its items; those that come after it, and the other lane, know nothing of it
                    log("lane.failed", level="error", exc_info=error)

    def _next(self) -> list[T]:
        taken, weight = 0, 0
        for item in self._waiting:
            weight += self.weight(item)
            taken += 1
            if weight >= self.full:
                break
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return batch
