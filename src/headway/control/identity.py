"""Leases a submitter number and keeps milliseconds reserved for it, so that ids are made without asking anybody (A4)."""

from __future__ import annotations

import asyncio

from headway.control.clock import Clock
from headway.domain.identity import Exhausted, Ids
from headway.errors import Unavailable
from headway.store.database import Database
from headway.store.queries import query

RESERVE_MS = 30_000
HELD_MS = 60_000  # longer than a reservation: a successor of this number starts after every id we could have made

_CLAIM = query("duty.claim_number")
_ADD = query("duty.add_number")
_RESERVE = query("duty.reserve")
_RELEASE = query("duty.release_number")


class IdSource:
    """Ids for this server."""

    def __init__(self, database: Database, clock: Clock, holder: str) -> None:
        self.database = database
        self.clock = clock
        self.holder = holder
        self._ids: Ids | None = None
        self._reserving = asyncio.Lock()

    @property
    def number(self) -> int:
        return self._ids.number if self._ids else -1

    async def claim(self) -> None:
        """Take a number nobody holds."""
        for _ in range(64):
            async with self.database.cold() as connection:
                row = await connection.fetchrow(_CLAIM, self.holder, RESERVE_MS, HELD_MS)
                if row is not None:
                    self._ids = Ids(row["number"], row["after_ms"], row["until_ms"])
                    return
                await connection.execute(_ADD)
        raise Unavailable("no submitter number is free", hint="at most 1,024 servers can admit at the same time")

    async def renew(self) -> None:
        """Reserve ahead; called by the server's heartbeat so that a submit rarely waits for it."""
        async with self._reserving:
            ids = self._ids
            if ids is None:
                await self.claim()
                return
            async with self.database.cold() as connection:
                row = await connection.fetchrow(_RESERVE, ids.number, RESERVE_MS, HELD_MS, self.holder)
            if row is None:  # silent for longer than we were allowed: somebody else has the number
                self._ids = None
                await self.claim()
            else:
                ids.extend(row["after_ms"] if row["after_ms"] > ids.until_ms else ids.after_ms, row["until_ms"])

    async def take(self, count: int) -> list[int]:
        for _ in range(8):
            if self._ids is not None:
                try:
                    return self._ids.take(count, self.clock.now_us() // 1000)
                except Exhausted:
                    pass
            await self.renew()
        raise Unavailable("ids could not be reserved")

    async def release(self) -> None:
        """Give the number back, with what was not used."""
        if self._ids is not None:
            async with self.database.cold() as connection:
                await connection.execute(_RELEASE, self._ids.number, self.holder, self._ids.after_ms + 1)
            self._ids = None
