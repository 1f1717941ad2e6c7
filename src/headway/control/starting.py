"""From firings to tasks: the row of a firing and its tasks are one transaction, the caller's (D3).

Definitions were stored when the schedule was applied, so a firing only reads them, and thousands of firings are one COPY.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway import telemetry
from headway.control import levels
from headway.control.batch import Batch, Request, store_batch
from headway.control.bus import Bus
from headway.control.clock import Clock
from headway.control.definitions import Definitions
from headway.control.draft import Draft, Drafts
from headway.control.identity import IdSource
from headway.control.record import fingerprint
from headway.control.settle import Effects, settle, tell
from headway.domain.lifecycle import Outcome, State
from headway.domain.resources import LABEL_LIMIT
from headway.domain.schedule import Work
from headway.domain.wrong_kind import decoded
from headway.policy.firing import Fate, Kind
from headway.store.database import Connection
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo

_FIRE = query("schedule.fire")
_TAKE_TURNS = query("schedule.take_turns")
_ALARM = query("schedule.alarm")
_FAIL = query("task.fail")
_work = msgspec.json.Decoder(Work)
FIRING = b"${firing}"  # stands for the moment in a task's input: a backfill is of little use without it


@dataclass
class Start:
    """A firing that is to become tasks."""

    schedule: Any  # its row
    at: datetime.datetime
    kind: Kind = Kind.CALENDAR
    missed: int = 0
    waited: bool = False  # its row exists already, and waited for its turn
    note: str | None = None
    run: int | None = None  # the task or the tree it became

    @property
    def key(self) -> tuple[int, datetime.datetime]:
        return self.schedule["id"], self.at

    @property
    def fate(self) -> Fate:
        """What a person asks for runs, predictions or not."""
        return Fate.IMPOSSIBLE if self.schedule["problem"] and self.kind is Kind.CALENDAR else Fate.STARTED


@dataclass
class Started:
    """What a transaction started, to be told after its commit."""

    batch: Batch | None = None
    effects: Effects = field(default_factory=Effects)
    starts: list[Start] = field(default_factory=list)


@dataclass
class Starter:
    """Turns firings into tasks."""

    drafts: Drafts
    definitions: Definitions
    ids: IdSource
    clock: Clock
    bus: Bus

    async def start(self, connection: Connection, starts: Sequence[Start]) -> Started:
        """Store firings and their tasks. A firing that exists already starts nothing."""
        if not starts:
            return Started()
        known = await self.definitions.load(number for start in starts for number in start.schedule["definitions"])
        requests = []
        for start in starts:
            work: Work = decoded(_work.decode, start.schedule["body"].encode(), what=f"the schedule {start.schedule['name']!r}")
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            drafts = self._drafts(start, work, known)
            name = None if work.task is not None else start.schedule["name"]  # a schedule of a tree makes trees of its own name
            requests.append(Request(start.schedule["tenant"], drafts, name, done, strict=work.levels == "strict"))
        ids = await self.ids.take(sum(len(request.drafts) + bool(request.tree_name) for request in requests))
        batch = Batch(requests, ids, self.clock.now_us())
        for start, request in zip(starts, requests, strict=True):
            start.run = request.tree if request.tree is not None else request.fresh_ids[0]
        fresh = await _claim(connection, starts)
        kept = [(start, request) for start, request in zip(starts, requests, strict=True) if start.key in fresh]
        batch.requests = [request for _, request in kept]
        started = Started(batch, starts=[start for start, _ in kept])
        if kept:
            await store_batch(connection, batch)
            await self._fail_impossible(connection, kept, started.effects)
        return started

    def tell(self, started: Started) -> None:
        """After the commit."""
        if started.batch is None or not started.starts:
            return
        failed = {task for task, _ in started.effects.ended}
        ready = started.batch.ready()
        if failed:
            ready = {group: [key for key in keys if key[2] not in failed] for group, keys in ready.items()}
        self.bus.ready({group: keys for group, keys in ready.items() if keys})
        started.effects.scheduled |= started.batch.scheduled
        tell(self.bus, started.effects)
        telemetry.submitted(started.batch.size)

    def _drafts(self, start: Start, work: Work, known: dict[int, Any]) -> list[Draft]:
        drafts = self.drafts.again(work.specs, [known[number] for number in start.schedule["definitions"]])
        marks = {"schedule": start.schedule["name"], "firing": start.at.isoformat()}
        for draft in drafts:
            draft.labels = _labelled(draft.labels, marks)
            if FIRING in draft.input:
                draft.input = draft.input.replace(FIRING, start.at.isoformat().encode())
        return drafts

    async def _fail_impossible(self, connection: Connection, kept: list[tuple[Start, Request]], effects: Effects) -> None:
        """Runs that cannot be done in time fail at once, in the words that `apply` would have used, and administrators are told (C6)."""
        doomed = [(start, request) for start, request in kept if start.fate is Fate.IMPOSSIBLE]
        if not doomed:
            return
        now = await connection.fetchval("select clock_timestamp()")
        rows = []
        for start, request in doomed:
            error = msgspec.json.encode(ErrorInfo("ImpossibleTree", start.schedule["problem"])).decode()
            for task, draft in zip(request.ids, request.drafts, strict=True):
                if not draft.local:
                    name = draft.interned.definition.name
                    kind = int(Outcome.NOT_STARTABLE)
                    rows.append((task, kind, error, None, None, now, None, None, fingerprint(name, kind, error), 0, 0, 0))
        rows.sort()
        done = await connection.fetch(_FAIL, *(list(column) for column in zip(*rows, strict=True)))
        effects.ended += [(row["id"], State.FAILED) for row in done]
        for row in done:
            if row["tree"] is not None:
                effects.levels.end(row["tree"], row["level"], State.FAILED, ended_ms=round(now.timestamp() * 1000))
        await settle(connection, [(row["id"], State.FAILED) for row in done if row["has_dependants"]], effects)
        await levels.count(connection, effects)
        alarms = [msgspec.json.encode(_alarm(start)).decode() for start, _ in doomed]
        await connection.execute(_ALARM, [start.schedule["tenant"] for start, _ in doomed], alarms)


def _alarm(start: Start) -> dict[str, Any]:
    return {"schedule": start.schedule["name"], "run": str(start.run), "problem": start.schedule["problem"]}


def _labelled(labels: bytes | None, marks: dict[str, str]) -> bytes:
    """The user's labels win, and are never too many for ours."""
    own: dict[str, str] = msgspec.json.decode(labels) if labels else {}
    if len(own) + len(marks) > LABEL_LIMIT:
        return labels or b"{}"
    return msgspec.json.encode({**marks, **own})


async def _claim(connection: Connection, starts: Sequence[Start]) -> set[tuple[int, datetime.datetime]]:
    """Store the rows of the firings; those that are ours to start."""
    fresh = [start for start in starts if not start.waited]
    waited = [start for start in starts if start.waited]
    found = set()
    if fresh:
        columns = [(*s.key, int(s.kind), int(s.fate), s.run, s.missed, s.note, None) for s in fresh]
        found |= {(r["schedule"], r["at"]) for r in await connection.fetch(_FIRE, *map(list, zip(*columns, strict=True)))}
    if waited:
        turns = [(*s.key, int(s.fate), s.run, s.note) for s in waited]
        found |= {(r["schedule"], r["at"]) for r in await connection.fetch(_TAKE_TURNS, *map(list, zip(*turns, strict=True)))}
    return found
