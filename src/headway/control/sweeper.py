"""Sweeps the hot table while tasks go through it (L1).

Each task leaves two or three dead rows in `task` and its indexes. At full load that is a hundred thousand in two seconds; autovacuum comes
once a minute unless its database is told otherwise, and waking up more often costs an idle machine more than all of Headway's own loops.
So who ends tasks sweeps after them. A sweep that another server has begun is passed over. While somebody holds an old snapshot it can
remove nothing, and would read everything again and again: it rests a few times as long as the last one took.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import asyncpg

from headway.control.bus import Bus
from headway.errors import HeadwayError
from headway.logs import log
from headway.store.database import Database
from headway.store.queries import query

AFTER = 100_000  # ended tasks
LONGEST_S = 600  # a table that holds a backlog of many millions
RESTS = 4  # times as long as the last one took
_SWEEP = query("task.sweep")


@dataclass
class Sweeper:
    database: Database
    bus: Bus
    after: int = AFTER
    _ended: int = 0
    _due: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.bus.on_ended.append(self._count)

    def _count(self, ids: list[int]) -> None:
        self._ended += len(ids)
        if self._ended >= self.after:
            self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            self._ended = 0
            began = time.monotonic()
            try:
                await self.sweep()
            except (HeadwayError, asyncpg.PostgresError) as error:
                log("sweep.failed", level="warning", error=repr(error))
            await asyncio.sleep(RESTS * (time.monotonic() - began))

    async def sweep(self) -> None:
        async with self.database.cold() as connection:
            await connection.execute(f"set statement_timeout = '{LONGEST_S}s'")
            try:
                await connection.execute(_SWEEP, timeout=LONGEST_S + 10)
            finally:
                await connection.execute(f"set statement_timeout = '{self.database.statement_timeout_s}s'")  # a reset would give the role's
