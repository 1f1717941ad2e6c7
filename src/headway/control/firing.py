"""Fires schedules: part of the timekeeper's duty. Exactly once, though servers die and change (D2 D3).

One transaction locks the schedules that are due, stores their firings with all tasks, and says where each goes on. The firing's key is
the schedule and the moment, so that even without the lock nothing could fire twice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import msgspec

from headway.control.actions import Actions
from headway.control.allowances import Allowances
from headway.control.leader import Leader
from headway.control.starting import Start, Started, Starter
from headway.control.taken import Taken
from headway.domain.schedule import Overlap, ScheduleSpec, Timing, timing
from headway.errors import Forbidden, HeadwayError, LimitExceeded, StaleEpoch, TooLarge, Unavailable
from headway.logs import log
from headway.policy import firing as policy
from headway.policy.firing import Fate, Kind
from headway.store.database import Connection, Database
from headway.store.queries import query

BATCH = 500
LOOK_S = 5.0  # how often to look by oneself: what is stored here or elsewhere is told by bus and NOTIFY
MOST_TASKS = 20_000  # in one transaction
TIMINGS = 50_000  # kept in memory
AGAIN_S = 2.0  # how often to tell a run again that it is replaced
TURN_S = 0.25  # how often to look whether a run has ended that a firing waits for

# What lies in a schedule itself. Anything else, such as a full disk, is not its fault, and is tried again.
FAULTS = (HeadwayError, msgspec.MsgspecError, ValueError, KeyError, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)

_LOOK = query("schedule.look")
_DUE = query("schedule.due")
_TURNS = query("schedule.turns")
_GOING = query("schedule.going")
_WAITING = query("schedule.waiting")
_FIRE = query("schedule.fire")
_REPLACE = query("schedule.replace_waiting")
_ADVANCE = query("schedule.advance")
_RUNNING = query("schedule.set_running")
_STOP = query("schedule.stop")
_REPLACED = query("schedule.replaced")
_WAITS = query("schedule.waits")
_LIVE = query("tree.live_ids")
_spec = msgspec.json.Decoder(ScheduleSpec)


@dataclass
class Round:
    """What one look decides."""

    starts: list[Start] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)  # firings that start nothing now
    advance: list[tuple[Any, ...]] = field(default_factory=list)
    running: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    replace: list[tuple[int, Any]] = field(default_factory=list)
    waits: list[tuple[int, Any, str]] = field(default_factory=list)  # firings that wait on, and why


@dataclass
class Firing:
    database: Database
    leader: Leader
    starter: Starter
    actions: Actions
    allowances: Allowances
    _timings: dict[int, tuple[str, Timing]] = field(default_factory=dict)
    _cancelled: dict[int, float] = field(default_factory=dict)  # run -> when it was told

    async def run_once(self) -> float:
        async with self.database.hot() as connection:
            look = await connection.fetchrow(_LOOK)
        next_due: float | None = look["next_due"]
        fired = 0
        if next_due is not None and next_due <= 0:
            fired += await self._round(self._due)
        if look["waiting"]:
            await self._cancel_replaced()
            fired += await self._round(self._turns)
        if fired:
            return 0.0
        rest = LOOK_S if next_due is None else min(max(next_due, 0.001), LOOK_S)
        return min(rest, TURN_S) if look["waiting"] else rest

    async def _round(self, work: Any) -> int:
        """One transaction; when it is refused, once more schedule by schedule, and the one that is at fault is stopped."""
        try:
            return await self._transact(work, None)
        except (StaleEpoch, Unavailable):
            raise
        except FAULTS as error:
            log("schedule.batch_failed", level="warning", error=repr(error))
        async with self.database.cold() as connection:
            ids = [row["id"] for row in await connection.fetch(_DUE if work == self._due else _TURNS, BATCH, None)]
        for number in dict.fromkeys(ids):
            try:
                await self._transact(work, [number])
            except (StaleEpoch, Unavailable):
                raise
            except FAULTS as error:
                await self._stop(number, error)
        return len(ids)

    async def _transact(self, work: Any, only: list[int] | None) -> int:
        async def inside(connection: Connection) -> tuple[int, Started]:
            taken.anew()
            await self.leader.fence(connection, "timekeeper")
            count, found = await work(connection, only)
            count -= await self._keep_to_limits(found, taken)
            return count, await self._store(connection, found)

        with Taken(self.allowances) as taken:
            count, started = await self.database.transact(inside)
        self.starter.tell(started)
        return count

    async def _keep_to_limits(self, found: Round, taken: Taken) -> int:
        """A schedule is a way to submit like others: above the tenant's limit a firing is skipped, and one that waits waits on (A3).

        Returns how many wait on.
        """
        allowed = []
        for start in found.starts:
            try:
                await taken.take(start.schedule["tenant"], len(start.schedule["definitions"]))
            except (LimitExceeded, TooLarge, Forbidden) as error:
                if start.waited:
                    found.waits.append((*start.key, error.detail))
                else:
                    found.rows.append((*start.key, start.kind, Fate.SKIPPED, None, start.missed, error.detail, None))
                continue
            allowed.append(start)
        found.starts = allowed
        return len(found.waits)

    async def _due(self, connection: Connection, only: list[int] | None) -> tuple[int, Round]:
        """Schedules whose time has come."""
        rows = _up_to(MOST_TASKS, await connection.fetch(_DUE, BATCH, only))
        found = Round()
        runs = [run for row in rows for run in row["running"]]
        alive = {r["id"] for r in await connection.fetch(_GOING, runs)} if runs else set()
        waiting = dict(await connection.fetch(_WAITING, [row["id"] for row in rows])) if rows else {}
        for row in rows:
            when = self._timing(row)
            due = policy.due(when, name=row["name"], next_at=row["next_at"], anchor=row["anchor"], now=row["now"])
            self._decide(found, row, when, due, [run for run in row["running"] if run in alive], waiting.get(row["id"], 0))
        return len(rows), found

    def _timing(self, row: Any) -> Timing:
        """What the schedule's words mean, remembered: the same words come again with every firing."""
        known = self._timings.get(row["id"])
        if known is None or known[0] != row["spec"]:
            if len(self._timings) > TIMINGS:
                self._timings.clear()
            known = self._timings[row["id"]] = (row["spec"], timing(_spec.decode(row["spec"]), row["name"]))
        return known[1]

    def _decide(self, found: Round, row: Any, when: Timing, due: policy.Due, going: list[int], waiting: int) -> None:
        number = row["id"]
        found.running[number] = going
        if due.missed is not None:
            at, count = due.missed
            found.rows.append((number, at, Kind.CALENDAR, Fate.MISSED, None, count - 1, "nobody was there to fire it", None))
        busy = bool(going)
        for at, missed in due.fire:
            fate = policy.fate(when.overlap, going=busy, waiting=waiting)
            if fate is Fate.STARTED:
                found.starts.append(Start(row, at, missed=missed))
                busy = True
                continue
            note = "an earlier run is still going" if fate is Fate.SKIPPED else None
            found.rows.append((number, at, Kind.CALENDAR, fate, None, missed, note, when.overlap))
            if fate is Fate.WAITING:
                if when.overlap is Overlap.REPLACE:
                    found.replace.append((number, at))
                waiting += 1
        last = due.fire[-1][0] if due.fire else None
        found.advance.append((number, due.next_at, due.due_at, last))

    async def _turns(self, connection: Connection, only: list[int] | None) -> tuple[int, Round]:
        """Firings that waited, and whose turn has come: one of each schedule, unless they need not wait for each other."""
        found = Round()
        for row in await connection.fetch(_TURNS, BATCH, only):
            found.starts.append(Start(row, row["at"], Kind(row["kind"]), row["missed"], waited=True))
            found.running.setdefault(row["id"], list(row["running"]) if row["overlap"] == Overlap.ALLOW else [])
        return len(found.starts), found

    async def _store(self, connection: Connection, found: Round) -> Started:
        if found.rows:
            await connection.fetch(_FIRE, *map(list, zip(*found.rows, strict=True)))
        if found.replace:
            await connection.execute(_REPLACE, *map(list, zip(*found.replace, strict=True)))
        if found.waits:
            await connection.execute(_WAITS, *map(list, zip(*found.waits, strict=True)))
        started = await self.starter.start(connection, found.starts)
        for start in started.starts:
            if start.run is not None and start.fate is Fate.STARTED:
                found.running[start.schedule["id"]].append(start.run)
        if found.advance:
            columns = [list(column) for column in zip(*found.advance, strict=True)]
            await connection.execute(_ADVANCE, *columns, [_array(found.running[number]) for number in columns[0]])
        else:
            await set_running(connection, found.running)
        return started

    async def _cancel_replaced(self) -> None:
        """Ends runs that a later one replaces. The firing that waits is the durable wish, so it is done again if a server dies."""
        async with self.database.cold() as connection:
            runs = [row["id"] for row in await connection.fetch(_REPLACED)]
            now = time.monotonic()
            self._cancelled = {run: at for run, at in self._cancelled.items() if now - at < AGAIN_S}
            tasks = []
            for run in runs:
                if run not in self._cancelled:
                    self._cancelled[run] = now
                    tasks += [row["id"] for row in await connection.fetch(_LIVE, run, 1_000_000)][::-1] or [run]
        if tasks:
            await self.actions.cancel(tasks)

    async def _stop(self, number: int, error: Exception) -> None:
        text = error.detail if isinstance(error, HeadwayError) else str(error) or type(error).__name__

        async def work(connection: Connection) -> str:
            await self.leader.fence(connection, "timekeeper")
            return str(await connection.execute(_STOP, number, f"it could not fire: {text}"))

        if await self.database.transact(work) == "INSERT 0 1":  # not if it is paused already
            log("schedule.stopped", level="error", schedule=number, error=repr(error))


def _up_to(most: int, rows: list[Any]) -> list[Any]:
    """The first of these schedules that have not more tasks together; at least one."""
    found: list[Any] = []
    for row in rows:
        most -= len(row["definitions"])
        if most < 0 and found:
            break
        found.append(row)
    return found


async def set_running(connection: Connection, running: dict[int, list[int]]) -> None:
    if running:
        await connection.execute(_RUNNING, list(running), [_array(runs) for runs in running.values()])


def _array(runs: list[int]) -> str:
    """The runs that are going, with a bound: a person may trigger without end."""
    return "{" + ",".join(map(str, runs[-100:])) + "}"
