"""What people do to schedules: apply, pause, resume, trigger, backfill, stop a backfill, delete (D2 D3).

Applying is declarative: the same again changes nothing, another task keeps the rhythm, another rhythm starts from now.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control.allowances import Allowances
from headway.control.bus import Bus
from headway.control.draft import Drafts
from headway.control.feasibility import Feasibility
from headway.control.firing import set_running
from headway.control.fleet import Fleet
from headway.control.starting import Start, Starter
from headway.control.taken import Taken
from headway.domain.checks import check_name, check_nesting
from headway.domain.firings import firings, shortest_gap
from headway.domain.schedule import Overlap, Scheduled, ScheduleSpec, Timing, Work, timing
from headway.domain.spec import TaskSpec
from headway.domain.task import Definition
from headway.domain.tree import check_levels
from headway.errors import Conflict, HeadwayError, ImpossibleTree, InvalidInput, NotFound
from headway.policy.firing import Kind, moments
from headway.store.database import Connection, Database
from headway.store.queries import query

MOST_APPLIED = 10_000  # in one request
MOST_BACKFILLED = 10_000
TOLERANCE_S = 60.0  # of the periodic category
_US = datetime.timedelta(microseconds=1)

_LOCK = query("schedule.lock_named")
_ADD = query("schedule.add")
_CHANGE = query("schedule.change")
_PAUSE = query("schedule.pause")
_RESUME = query("schedule.resume")
_DELETE = query("schedule.delete")
_GOING = query("schedule.going")
_SIZE = query("schedule.size")
_BACKFILL = query("schedule.backfill")
_STOP_BACKFILL = query("schedule.stop_backfill")
_CLOCK = "select clock_timestamp()"
_spec = msgspec.json.Decoder(ScheduleSpec)


@dataclass
class Prepared:
    """A schedule that was checked, ready to be stored."""

    name: str
    spec: ScheduleSpec
    when: Timing
    body: bytes
    definitions: list[int]
    specs: list[TaskSpec]
    definition_values: list[Definition]

    @property
    def hash(self) -> bytes:
        return hashlib.blake2b(msgspec.json.encode(self.spec) + b"\n" + self.body, digest_size=16).digest()


@dataclass
class Applied:
    name: str
    change: str  # created | changed | unchanged
    next_at: datetime.datetime | None


@dataclass
class Schedules:
    database: Database
    drafts: Drafts
    fleet: Fleet
    starter: Starter
    feasibility: Feasibility
    allowances: Allowances
    bus: Bus

    async def apply(self, tenant: int, asked: Sequence[Scheduled]) -> list[Applied]:
        """Store these schedules, all or none."""
        if not 0 < len(asked) <= MOST_APPLIED:
            raise InvalidInput(f"{len(asked)} schedules in one request", hint=f"1 to {MOST_APPLIED}")
        async with self.database.cold() as connection:
            now = await connection.fetchval(_CLOCK)
        prepared: dict[str, Prepared] = {}
        for position, one in enumerate(asked):
            try:
                ready = await self._prepare(tenant, one, now)
            except HeadwayError as error:
                if len(asked) > 1:
                    error.detail = f"schedule {one.name or position}: {error.detail}"
                raise
            if prepared.setdefault(ready.name, ready) is not ready:
                raise InvalidInput(f"two schedules are called {ready.name!r}", field="name", hint="rename one of them")
        await self._refuse_impossible(tenant, list(prepared.values()), now)
        applied = await self.database.transact(lambda connection: _apply(connection, tenant, prepared))
        self.bus.scheduled()
        return applied

    async def _prepare(self, tenant: int, asked: Scheduled, now: datetime.datetime) -> Prepared:
        name = asked.name or ""
        check_name(name)
        if "/" in name:
            raise InvalidInput(f"name: {name!r} has a slash", field="name", hint="a schedule's name is part of its address")
        if (asked.task is None) == (asked.tasks is None):
            raise InvalidInput("give exactly one of task and tasks", field="task", hint="tasks are the tasks of a tree")
        spec = asked.timing_part()
        when = timing(spec, name)
        check_levels(asked.levels)
        body = msgspec.json.encode(Work(asked.task, asked.tasks, asked.levels))
        check_nesting(body, "task" if asked.tasks is None else "tasks")
        specs = msgspec.json.decode(body, type=Work).specs  # a copy: drafting uses specs up
        for task in specs:
            _check(task)
            _make_periodic(task, shortest_gap(when, now, 20))
        named = [msgspec.structs.replace(task) for task in specs]
        drafts = await self.drafts.many(tenant, specs)
        if any(draft.existing for draft in drafts):
            raise InvalidInput("after: a schedule cannot wait for a task that was submitted before", field="after")
        self.fleet.check_satisfiable(draft.interned for draft in drafts)
        definitions = [draft.interned.definition for draft in drafts]
        return Prepared(name, spec, when, body, [draft.interned.id for draft in drafts], named, definitions)

    async def _refuse_impossible(self, tenant: int, prepared: Sequence[Prepared], now: datetime.datetime) -> None:
        """A tree that is known to take longer than its interval (C6)."""
        wanted = [(d, spec.name or d.name) for one in prepared for spec, d in zip(one.specs, one.definition_values, strict=True)]
        await self.feasibility.predictions.models(tenant, wanted)  # all at once: below they are known
        for one in prepared:
            found = await self.feasibility.problem(tenant, one.when, one.specs, one.definition_values, now)
            if found is not None:
                text, path = found
                hint = "give it a longer interval, `overlap: allow`, or make the chain shorter"
                raise ImpossibleTree(f"{one.name}: {text}", field="schedule", hint=hint, chain=path.names)

    async def pause(self, tenant: int, name: str) -> None:
        async with self.database.cold() as connection:
            if await connection.fetchval(_PAUSE, tenant, name) is None:
                raise missing(name)

    async def resume(self, tenant: int, name: str) -> None:
        async def work(connection: Connection) -> None:
            row = await _locked(connection, tenant, name)
            when = timing(_spec.decode(row["spec"]), name)
            if row["paused_at"] is not None:
                await connection.execute(_RESUME, row["id"], *_next(when, name, row["now"], row["anchor"]))

        await self.database.transact(work)
        self.bus.scheduled()

    async def trigger(self, tenant: int, name: str) -> Start:
        """Run it now, whatever its calendar, its policy and a pause say: a person asked."""

        async def work(connection: Connection) -> Any:
            row = await _locked(connection, tenant, name)
            if len(row["definitions"]) != count:
                raise Conflict(f"the schedule {name!r} was changed by somebody else just now", hint="trigger it again")
            start = Start(row, row["now"], Kind.TRIGGER)
            started = await self.starter.start(connection, [start])
            going = [r["id"] for r in await connection.fetch(_GOING, row["running"])]
            if start.run is not None:
                await set_running(connection, {row["id"]: [*going, start.run]})
            return started

        async with self.database.cold() as connection:
            count = await connection.fetchval(_SIZE, tenant, name)
        if count is None:
            raise missing(name)
        with Taken(self.allowances) as taken:
            await taken.take(tenant, count)  # which may take its time: nobody else's connection is held meanwhile
            started = await self.database.transact(work)
        self.starter.tell(started)
        start: Start = started.starts[0]
        return start

    async def backfill(
        self, tenant: int, name: str, since: datetime.datetime, until: datetime.datetime, overlap: str
    ) -> list[datetime.datetime]:
        """Make up for every moment in [since, until) that did not run; returns those that now wait for their turn."""
        policy = _policy(overlap)
        if until <= since:
            raise InvalidInput("until: it lies before since", field="until", hint="the range is from since up to until")

        async def work(connection: Connection) -> list[datetime.datetime]:
            row = await _locked(connection, tenant, name)
            when = timing(_spec.decode(row["spec"]), name)
            if until > row["now"]:
                raise InvalidInput("until: it lies in the future", field="until", hint="a backfill makes up for what is over")
            wanted = []
            for at in firings(when, since - _US, row["anchor"]):
                if at >= until:
                    break
                wanted.append(at)
                if len(wanted) > MOST_BACKFILLED:
                    raise InvalidInput(
                        f"more than {MOST_BACKFILLED} firings lie in this range", field="until", hint="give a shorter range"
                    )
            made = await connection.fetch(_BACKFILL, row["id"], wanted, policy)
            return sorted(r["at"] for r in made)

        found = await self.database.transact(work)
        self.bus.scheduled()
        return found

    async def stop_backfill(self, tenant: int, name: str) -> list[datetime.datetime]:
        """Give up what still waits of backfills; returns those moments. Runs under way go on."""

        async def work(connection: Connection) -> list[datetime.datetime]:
            row = await _locked(connection, tenant, name)  # the timekeeper locks it too: a moment is started or given up, not both
            return sorted(r["at"] for r in await connection.fetch(_STOP_BACKFILL, row["id"]))

        return await self.database.transact(work)

    async def delete(self, tenant: int, name: str) -> None:
        async with self.database.cold() as connection:
            if await connection.fetchval(_DELETE, tenant, name) is None:
                raise missing(name)


async def _apply(connection: Connection, tenant: int, prepared: dict[str, Prepared]) -> list[Applied]:
    there = {row["name"]: row for row in await connection.fetch(_LOCK, tenant, list(prepared))}
    now = await connection.fetchval(_CLOCK)
    return [await _store(connection, tenant, one, there.get(one.name), now) for one in prepared.values()]


async def _store(connection: Connection, tenant: int, one: Prepared, row: Any, now: datetime.datetime) -> Applied:
    texts = (msgspec.json.encode(one.spec).decode(), one.body.decode(), one.definitions)
    if row is None:
        next_at, due_at = _first(one.when, one.name, now, now)
        if await connection.fetchval(_ADD, tenant, one.name, one.hash, *texts, now, next_at, due_at, None) is None:
            raise Conflict(f"the schedule {one.name!r} was made by somebody else just now", hint="apply again")
        return Applied(one.name, "created", next_at)
    if row["hash"] == one.hash:
        return Applied(one.name, "unchanged", row["next_at"])
    anchor, next_at, due_at = row["anchor"], row["next_at"], row["due_at"]
    if _spec.decode(row["spec"]) != one.spec:
        anchor = row["last_at"] or now
        next_at, due_at = _first(one.when, one.name, now, anchor)
    await connection.execute(_CHANGE, row["id"], one.hash, *texts, anchor, next_at, due_at, row["paused_at"])
    return Applied(one.name, "changed", next_at)


def _first(
    when: Timing, name: str, now: datetime.datetime, anchor: datetime.datetime
) -> tuple[datetime.datetime, datetime.datetime]:
    """Where a new schedule begins; one that would never fire is refused."""
    next_at, due_at = _next(when, name, now - _US, anchor)
    if next_at is None or due_at is None:
        field = "start" if when.once else "end"
        raise InvalidInput(f"{field}: it lies in the past, so it would never run", field=field)
    return next_at, due_at


def _next(
    when: Timing, name: str, after: datetime.datetime, anchor: datetime.datetime
) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    return next(moments(when, name=name, after=after, anchor=anchor), (None, None))


async def _locked(connection: Connection, tenant: int, name: str) -> Any:
    rows = await connection.fetch(_LOCK, tenant, [name])
    if not rows:
        raise missing(name)
    return rows[0]


def missing(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name[:60]!r}", hint="`headway schedule ls` lists them")


def _check(task: TaskSpec) -> None:
    """Each firing makes new tasks: what can only be said of one task does not belong here."""
    if task.idempotency_key is not None:
        raise InvalidInput(
            "idempotency_key: every firing makes a new task", field="idempotency_key", hint="a firing happens once without it"
        )
    if task.at is not None:
        raise InvalidInput("at: the schedule says when", field="at", hint="use `start`")


def _make_periodic(task: TaskSpec, gap: float | None) -> None:
    """SPEC: the category is periodic, and the tolerance its category's, or the interval if that is shorter."""
    if task.category is None:
        task.category = "periodic"
        if task.delay_tolerance is None and gap is not None and gap < TOLERANCE_S:
            task.delay_tolerance = gap


def _policy(overlap: str) -> Overlap:
    words = {"queue": Overlap.QUEUE, "allow": Overlap.ALLOW}
    if overlap not in words:
        raise InvalidInput(f"overlap: {overlap[:40]!r} is not for a backfill", field="overlap", hint="queue or allow")
    return words[overlap]
