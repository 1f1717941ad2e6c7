"""Clients that wait for tasks to end.

Tasks that end on this server wake their waiters at once; those that end elsewhere are looked up when another server says so, and
every second anyway.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from headway.control.bus import Bus
from headway.errors import Unavailable
from headway.store.database import Database
from headway.store.queries import query

LOOK_S = 1.0
_FINAL = query("read.final")


@dataclass
class Waiting:
    database: Database
    bus: Bus
    _by_task: dict[int, set[asyncio.Event]] = field(default_factory=dict)
    _look: asyncio.Event = field(default_factory=asyncio.Event)
    _anybody: asyncio.Event = field(default_factory=asyncio.Event)  # waits
    _stopping: bool = False

    def stop(self) -> None:
        """Answer everybody who waits."""
        self._stopping = True
        for events in self._by_task.values():
            for event in events:
                event.set()

    def __post_init__(self) -> None:
        self.bus.on_ended.append(self._ended)
        self.bus.on_remote.append(self._look.set)

    def _ended(self, ids: list[int]) -> None:
        if self._by_task:
            for task in ids:
                for event in self._by_task.get(task, ()):
                    event.set()

    async def run(self) -> None:
        """Look up what other servers may have ended."""
        while True:
            await self._anybody.wait()
            self._look.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()
            except TimeoutError:
                pass
            if not self._by_task:
                self._anybody.clear()
                continue
            try:
                async with self.database.reads() as connection:
                    rows = await connection.fetch(_FINAL, list(self._by_task), None)
            except Unavailable:
                continue
            for row in rows:
                for event in self._by_task.get(row["id"], ()):
                    event.set()

    async def any_final(self, ids: list[int], tenant: int | None, timeout: float) -> list[int]:
        """Those of `ids` that are final, waiting until there is at least one or the time is over."""
        event = asyncio.Event()
        for task in ids:
            self._by_task.setdefault(task, set()).add(event)
        self._anybody.set()
        deadline = time.monotonic() + timeout
        try:
            while True:
                event.clear()
                async with self.database.reads() as connection:
                    found = [row["id"] for row in await connection.fetch(_FINAL, ids, tenant)]
                left = deadline - time.monotonic()
                if found or left <= 0 or self._stopping:
                    return found
                try:
                    async with asyncio.timeout(left):
                        await event.wait()
                except TimeoutError:
                    return []
        finally:
            for task in ids:
                waiters = self._by_task[task]
                waiters.discard(event)
                if not waiters:
                    del self._by_task[task]
