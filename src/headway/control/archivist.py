"""The archivist duty: partitions ahead, retention behind, and small clean-ups (B3)."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from headway.control import checkpoints
from headway.control.clock import Clock
from headway.control.leader import Leader
from headway.domain.identity import DAY_MS, first_id_of
from headway.logs import log
from headway.store import blobs, partitions
from headway.store.database import Connection, Database
from headway.store.queries import query

EVERY_S = 60.0
KEYS = 5_000
_KEYS = query("key.expire")
_PROGRESS = query("output.forget_progress")
_NODES = query("node.forget")
_FIRINGS = query("schedule.forget_firings")
_AUDIT = query("audit.forget")
AUDIT_DAYS = 400  # longer than the year an auditor asks about
_CLAIMS = query("once.forget")
_MADE_ROOM = query("preemption.forget")  # of those that went on and ended since: the planner forgets only who never went on
_TREES = query("tree.forget")


@dataclass
class Archivist:
    database: Database
    leader: Leader
    clock: Clock
    retention_days: int

    async def run_once(self) -> float:
        await ensure_partitions(self.database, self.clock)
        oldest = self.clock.now().date() - datetime.timedelta(days=self.retention_days)
        midnight = datetime.datetime.combine(oldest, datetime.time(), datetime.UTC)

        async def work(connection: Connection) -> tuple[list[str], str]:
            await self.leader.fence(connection, "archivist")
            dropped = await partitions.drop_before(connection, oldest)
            cutoff = first_id_of(self.clock.now_us() // 1000 - DAY_MS)
            expired = await connection.execute(_KEYS, cutoff, KEYS)
            await connection.execute(_PROGRESS)
            await connection.execute(_NODES)
            await connection.execute(_FIRINGS, midnight, KEYS)
            await connection.execute(_TREES, first_id_of(int(midnight.timestamp() * 1000)), midnight, KEYS)
            await checkpoints.forget(connection)
            await connection.execute(_AUDIT, AUDIT_DAYS)
            await blobs.sweep(connection)
            await connection.execute(_CLAIMS, float(self.retention_days))
            await connection.execute(_MADE_ROOM)
            return dropped, expired

        dropped, expired = await self.database.transact(work)
        if dropped:
            log("history.dropped", partitions=",".join(dropped))
        return 0.0 if expired == f"DELETE {KEYS}" else EVERY_S


async def ensure_partitions(database: Database, clock: Clock) -> None:
    async with database.cold() as connection:
        made = await partitions.ensure(connection, clock.now().date())
    if made:
        log("history.partitions", level="debug", made=len(made))
