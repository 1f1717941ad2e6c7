"""The database's clock, as this server knows it.

Times that decide anything come from the database. For COPY a server must know them without asking, so it tracks the offset between
its own monotonic clock (which no one can set back) and the database's, and stops admitting when it has not heard for too long.
"""

from __future__ import annotations

import datetime
import time

from headway.errors import Unavailable
from headway.store.database import Database
from headway.store.queries import query

STALE_S = 120.0
_CLOCK = query("duty.clock")


class Clock:
    def __init__(self) -> None:
        self._offset_us: int | None = None
        self._heard = 0.0

    async def ask(self, database: Database) -> None:
        """Learn the offset; the answer is assumed to be half a round trip old."""
        async with database.cold() as connection:
            before = time.monotonic_ns()
            there = await connection.fetchval(_CLOCK)
            after = time.monotonic_ns()
        self._offset_us = there - (before + after) // 2000
        self._heard = time.monotonic()

    def now_us(self) -> int:
        """Unix microseconds by the database's clock."""
        if self._offset_us is None or time.monotonic() - self._heard > STALE_S:
            raise Unavailable(
                "this server has lost touch with the database's clock", hint="it admits again when the database answers"
            )
        return time.monotonic_ns() // 1000 + self._offset_us

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.now_us() / 1_000_000, datetime.UTC)

    def later(self, seconds: float) -> datetime.datetime:
        return self.now() + datetime.timedelta(seconds=seconds)
