"""Heartbeats of all nodes of this server, committed together: never a row update for each task."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import asyncpg

from headway.errors import HeadwayError, Unavailable
from headway.store.database import Database
from headway.store.queries import query

_BEAT = query("node.heartbeat")
GATHER_S = 0.02  # between two commits: a thousand nodes cost 50 of them a second, and one that is alone never waits


@dataclass
class Heartbeats:
    database: Database
    committed: dict[int, tuple[str, float]] = field(default_factory=dict)  # by node: the boot and monotonic time of its last commit
    _waiting: dict[tuple[int, str], list[asyncio.Future[bool | None]]] = field(default_factory=dict)
    _said: dict[tuple[int, str], tuple[str, int]] = field(default_factory=dict)  # of those that wait: trouble, clock
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _last: float = 0.0  # when the last commit began

    async def beat(self, node: int, boot: str, trouble: str, clock_ms: int) -> bool | None:
        """Commit that this boot lives, how it is, and how far its clock is ahead. Returns whether it should drain; None when it was
        declared lost or replaced."""
        done: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((node, boot), []).append(done)
        self._said[node, boot] = (trouble, clock_ms)
        self._wake.set()
        return await asyncio.shield(done)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._last + GATHER_S - time.monotonic())
            self._wake.clear()
            self._last = time.monotonic()
            waiting, self._waiting = self._waiting, {}
            try:
                await self._commit(waiting)
            except (HeadwayError, asyncpg.PostgresError) as error:
                for futures in waiting.values():
                    for future in futures:
                        if not future.done():
                            future.set_exception(
                                error if isinstance(error, HeadwayError) else Unavailable(f"the heartbeat was not stored: {error}")
                            )
                            future.exception()

    async def _commit(self, waiting: dict[tuple[int, str], list[asyncio.Future[bool | None]]]) -> None:
        pairs = sorted(waiting)
        troubles, clocks = zip(*(self._said.pop(pair) for pair in pairs), strict=True)
        async with self.database.hot() as connection:
            rows = await connection.fetch(_BEAT, [p[0] for p in pairs], [p[1] for p in pairs], troubles, clocks)
        alive = {(row["id"], row["boot"]): row["drain"] for row in rows}  # two boots of one node may speak at the same time
        now = time.monotonic()
        for pair, futures in waiting.items():
            if pair in alive:
                self.committed[pair[0]] = (pair[1], now)
            for future in futures:
                if not future.done():
                    future.set_result(alive.get(pair))
