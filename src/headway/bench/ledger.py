"""What happened, by SQL: when the last task was finished, how many ended how, whether results are what they must be.

All questions are about the ids of one run, so that other tasks of a running instance do not count.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from headway.domain.lifecycle import State
from headway.errors import HeadwayError

OFTEN_S, SELDOM_S = 0.005, 0.04  # between questions: near the end of a run, and before, where each would only take time from it
NEAR = 0.9  # of a run's ids: the rest is near the end
STALL_S = 60.0  # without one more task finished for so long, the run is over

_LOWEST = "select id from headway.task where id between $1 and $2 order by id limit 1"
# By name too: between our first and last id a running instance may have admitted tasks of others.
_STATES = """
    select t.state, count(*) from headway.task_anywhere t
    where t.id between $1 and $2
      and t.definition in (select id from headway.definition where name = any($3))
    group by t.state
"""
_FINISHED = "select count(*) from headway.task_history where id between $1 and $2"
# The input is ["..."] and the function answers with its first eight characters.
_RIGHT = """
    select count(*) from headway.task_history t
    where t.id between $1 and $2 and t.state = 6
      and t.definition in (select id from headway.definition where name = 'noop')
      and t.result = '"'::bytea || substring(t.input from 3 for 8) || '"'::bytea
"""
_RESULTS = "select id, result from headway.task_history where id between $1 and $2 and state = 6"
_SIZES = """
    select c.relname, pg_relation_size(c.oid)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'headway' and c.relkind in ('r', 'i')
      and (c.relname = 'task' or c.oid in (select indexrelid from pg_index where indrelid = 'headway.task'::regclass))
    order by c.relkind desc, c.relname
"""
_NEWEST = "select greatest((select max(id) from headway.task), (select max(id) from headway.task_history), 0)"
_HOT = "select min(id), count(*) from (select id from headway.task where id > $1 order by id limit $2) t"
_BY_PARTS = """
    select floor(extract(epoch from ended_at - $3) / $4)::int, count(*)
    from headway.task_history where id between $1 and $2 and ended_at >= $3 and ended_at < $3 + $4 * $5 * interval '1 second'
    group by 1
"""


class WrongCount(HeadwayError):
    """The figures would be of work that was not done."""

    code = "conflict"
    title = "Tasks are missing or did not succeed"


@dataclass(frozen=True)
class Ids:
    """The tasks of one run: all ids from `first` to `last`, `count` of them ours."""

    first: int
    last: int
    count: int


class Ledger:
    """One connection that asks; the questions are cheap, since they are asked while the clock runs."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def all_finished(self, ids: Ids) -> float:
        """When (monotonic) no task of the run was left in the hot table.

        Ids only leave it from below, roughly, so each question starts where the last one ended: it stays cheap
        however many dead rows lie before it.
        """
        lowest, moved = ids.first, time.monotonic()
        near = ids.first + NEAR * (ids.last - ids.first)
        while (found := await self._connection.fetchval(_LOWEST, lowest, ids.last)) is not None:
            if found > lowest:
                lowest, moved = found, time.monotonic()
            elif time.monotonic() - moved > STALL_S:
                raise WrongCount(f"task {found} did not finish within {STALL_S:.0f} s")
            await asyncio.sleep(OFTEN_S if found >= near else SELDOM_S)
        return time.monotonic()

    async def require_success(self, ids: Ids, *names: str) -> None:
        """Every task of the run succeeded, by count."""
        rows = await self._connection.fetch(_STATES, ids.first, ids.last, list(names))
        found = {State(row[0]).word: row[1] for row in rows}
        if found != {"succeeded": ids.count}:
            raise WrongCount(f"{ids.count} tasks were acknowledged; the database has {found}")

    async def require_results(self, ids: Ids) -> None:
        """Every result belongs to its input."""
        right = await self._connection.fetchval(_RIGHT, ids.first, ids.last)
        if right != ids.count:
            raise WrongCount(f"{right} of {ids.count} results belong to their input")

    async def finished(self, ids: Ids) -> tuple[float, int]:
        """How many of the run are finished, and when that was so."""
        count = await self._connection.fetchval(_FINISHED, ids.first, ids.last)
        return time.monotonic(), int(count)

    async def reached(self, ids: Ids, count: int, *, every_s: float) -> tuple[float, int]:
        """The first look, of one every so often, that finds `count` of the run finished."""
        moved, before = time.monotonic(), -1
        while True:
            at, found = await self.finished(ids)
            if found >= count:
                return at, found
            if found > before:
                moved, before = at, found
            elif at - moved > STALL_S:
                raise WrongCount(f"{found} of {count} tasks were finished, and for {STALL_S:.0f} s not one more")
            await asyncio.sleep(every_s)

    async def results(self, ids: Ids) -> dict[int, bytes]:
        rows = await self._connection.fetch(_RESULTS, ids.first, ids.last)
        return {row[0]: bytes(row[1]) for row in rows}

    async def now(self) -> datetime:
        """The time by the clock that the ends of tasks are written with."""
        found: datetime = await self._connection.fetchval("select clock_timestamp()")
        return found

    async def finishes_by_parts(self, ids: Ids, since: datetime, *, part_s: float, parts: int) -> list[int]:
        """How many of the run ended in each of so many parts of the time since then. Reads all of its history: for afterwards."""
        rows = await self._connection.fetch(_BY_PARTS, ids.first, ids.last, since, part_s, parts)
        found = {row[0]: int(row[1]) for row in rows}
        return [found.get(part, 0) for part in range(parts)]

    async def backlog(self) -> Backlog:
        """What is submitted from now on and not yet final."""
        return Backlog(self._connection, await self._connection.fetchval(_NEWEST))

    async def sizes(self) -> dict[str, int]:
        """Bytes of the hot table and of each of its indexes."""
        return {row[0]: row[1] for row in await self._connection.fetch(_SIZES)}


class Backlog:
    """How many tasks of a run wait, counted in the hot table itself.

    PostgreSQL's statistics would be cheaper, but a session that rests keeps its numbers to itself for up to ten seconds: a
    generator that went by them slept while nothing was left to do.
    """

    def __init__(self, connection: asyncpg.Connection, newest: int) -> None:
        self._connection = connection
        self._before = newest  # no task of the run up to this id waits any more: ids leave from below, and so do dead rows

    async def look(self, most: int) -> int:
        """How many wait, counted up to `most`."""
        lowest, count = await self._connection.fetchrow(_HOT, self._before, most)
        if lowest is not None:
            self._before = lowest - 1
        return int(count)
