"""Daily partitions: made ahead of time, dropped by retention (B3). A day of ids is a range, because the time is in the id."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from headway.domain.identity import DAY_MS, first_id_of, ms_of
from headway.store.database import Connection

BY_ID = ("task_history", "attempt", "edge", "output", "stage", "subtask", "attempt_io")
BY_TIME = ("event",)
AHEAD_DAYS = 3
_LOCK = 0x4EAD_0002
# Nothing reads these by statistics, and a sample taken every few seconds of a table that grows all day costs 3 % of the database.
_RARELY = "autovacuum_analyze_scale_factor = 2, autovacuum_analyze_threshold = 1000000"
_OPTIONS = {
    "task_history": f"with (autovacuum_vacuum_insert_scale_factor = 0.2, {_RARELY})",
    "edge": f"with ({_RARELY})",
    "event": f"with ({_RARELY})",
}


def name_of(table: str, day: datetime.date) -> str:
    return f"{table}_{day:%Y%m%d}"


async def ensure(connection: Connection, today: datetime.date) -> list[str]:
    """Partitions from yesterday to three days ahead (ids may be made slightly before midnight and stored after)."""
    async with connection.transaction():
        return await _make(connection, [today + datetime.timedelta(days=offset) for offset in range(-1, AHEAD_DAYS + 1)])


async def ensure_days_of(connection: Connection, ids: Iterable[int]) -> list[str]:
    """Partitions for the days of these ids, in the caller's transaction: a dead letter outlives the history of its day, and needs it
    again to end there. Until the commit nothing is dropped."""
    return await _make(connection, sorted({datetime.datetime.fromtimestamp(ms_of(i) // 1000, datetime.UTC).date() for i in ids}))


async def _make(connection: Connection, days: list[datetime.date]) -> list[str]:
    made = []
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
    there = await _existing(connection)
    for day in days:
        for table in (*BY_ID, *BY_TIME):
            name = name_of(table, day)
            if name not in there:
                low, high = _bounds(table, day)
                await connection.execute(
                    f"create table {name} partition of {table} for values from ({low}) to ({high}) {_OPTIONS.get(table, '')}"
                )
                made.append(name)
    return made


async def drop_before(connection: Connection, day: datetime.date) -> list[str]:
    """Drop whole days older than `day`, except days that still have tasks in the hot table (their edges are needed); in a transaction."""
    dropped = []
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
    for name in sorted(await _existing(connection)):
        table, _, stamp = name.rpartition("_")
        if table not in (*BY_ID, *BY_TIME) or not stamp.isdigit():
            continue
        this = datetime.datetime.strptime(stamp, "%Y%m%d").date()
        if this >= day:
            continue
        if table in BY_ID:
            low, high = _bounds(table, this)
            if await connection.fetchval("select exists (select 1 from task where id >= $1 and id < $2)", int(low), int(high)):
                continue
        await connection.execute(f"alter table {table} detach partition {name}")
        await connection.execute(f"drop table {name}")
        dropped.append(name)
    return dropped


async def _existing(connection: Connection) -> set[str]:
    rows = await connection.fetch(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent "
        "join pg_namespace n on n.oid = p.relnamespace where n.nspname = 'headway' and c.relkind = 'r'"
    )
    return {row["relname"] for row in rows}


def _bounds(table: str, day: datetime.date) -> tuple[str, str]:
    if table in BY_TIME:
        return f"'{day:%Y-%m-%d} 00:00:00+00'", f"'{day + datetime.timedelta(days=1):%Y-%m-%d} 00:00:00+00'"
    start = int(datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp() * 1000)
    return str(first_id_of(start)), str(first_id_of(start + DAY_MS))
