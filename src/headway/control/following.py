"""Streams that follow events (J6).

The newest facts are read once for all who follow them, and each is given its own part: a thousand streams ask the database no more often
than one, and one of a quiet tenant does not read again and again what all others did. Who resumes from earlier reads by himself until
he has caught up.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from headway.control.bus import Bus
from headway.control.sharing import SharedLook
from headway.store.database import Database
from headway.store.queries import query

LOOK_S = 1.0  # for what nobody told of
COALESCE_S = 0.02
BATCH = 1000
KEPT, KEPT_TASKS = 4_000, 200_000  # facts, and ids of tasks in them
_EVENTS, _END, _RESUME, _SINCE = (query(f"read.{name}") for name in ("events", "event_end", "event_resume", "event_since"))
Cursor = tuple[int, int]  # transaction and sequence
_LAST = 2**62  # above every sequence of a transaction


@dataclass
class Tail:
    """The newest facts of all tenants: everything after `start`, up to `end`."""

    database: Database
    start: Cursor | None = None  # None: nobody follows
    end: Cursor = (0, 0)
    more: bool = False  # the last reading did not reach the end
    _rows: list[Any] = field(default_factory=list)
    _cursors: list[Cursor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reading = SharedLook(self._read)

    def begin(self, at: Cursor) -> None:
        self.forget()
        self.start = self.end = at

    def forget(self) -> None:
        self.start, self.more = None, False
        self._rows, self._cursors = [], []

    def holds(self, at: Cursor) -> bool:
        """Whether everything after it is here, or will be read."""
        return self.start is not None and at >= self.start

    def after(self, at: Cursor) -> list[Any]:
        return self._rows[bisect_right(self._cursors, at) :]

    async def _read(self) -> None:
        asked = self.end
        async with self.database.reads() as connection:
            rows = await connection.fetch(_EVENTS, str(asked[0]), asked[1], None, BATCH, None)
        if self.start is None or self.end != asked:
            return  # all have gone meanwhile, and perhaps others have come
        self._rows += rows
        self._cursors += map(cursor_of, rows)
        self.more = len(rows) == BATCH
        if rows:
            self.end = self._cursors[-1]
            self._trim()

    def _trim(self) -> None:
        """Who is slower than this reads by himself."""
        kept = ids = 0
        for row in reversed(self._rows):
            ids += len(row["tasks"])
            if kept == KEPT or ids > KEPT_TASKS:
                break
            kept += 1
        if gone := len(self._rows) - kept:
            self.start = self._cursors[gone - 1]
            del self._rows[:gone], self._cursors[:gone]


@dataclass
class Following:
    database: Database
    bus: Bus
    _streams: set[asyncio.Event] = field(default_factory=set)
    _stopping: bool = False

    def __post_init__(self) -> None:
        self.tail = Tail(self.database)
        self.bus.on_ended.append(lambda _ids: self._happened())
        self.bus.on_remote.append(self._happened)
        self.bus.on_told.append(self._happened)

    def stop(self) -> None:
        """All streams end; their clients resume elsewhere."""
        self._stopping = True
        self._happened()

    def _happened(self) -> None:
        for event in self._streams:
            event.set()

    async def since(self, seconds: float) -> tuple[str, int] | None:
        """The cursor before the facts of the last so many seconds."""
        async with self.database.reads() as connection:
            row = await connection.fetchrow(_SINCE, seconds)
        return None if row is None else (row["xid"], row["seq"])

    async def events(
        self, tenant: int | None, after: tuple[str, int] | None, kinds: list[str] | None = None, *, follow: bool = True
    ) -> AsyncIterator[list[Any]]:
        """Batches of facts after a cursor, for ever; an empty batch now and then, so that the caller notices a lost client. Without
        `follow` it ends when everything there is was read."""
        at = await self._begin(after)
        wake = asyncio.Event()
        self._streams.add(wake)
        told = -inf  # at once, also on a machine that has just been started
        try:
            while not self._stopping:
                wake.clear()
                rows, at, more = await self._next(at, tenant, kinds)
                if rows or time.monotonic() - told >= LOOK_S:
                    yield rows
                    told = time.monotonic()
                if more:
                    continue
                if not follow:
                    return
                try:
                    async with asyncio.timeout(LOOK_S):
                        await wake.wait()
                except TimeoutError:
                    pass
                await asyncio.sleep(COALESCE_S)  # and let the finishing transactions commit
        finally:
            self._streams.discard(wake)
            if not self._streams:
                self.tail.forget()

    async def _begin(self, after: tuple[str, int] | None) -> Cursor:
        async with self.database.reads() as connection:
            if after is None:
                return int(await connection.fetchval(_END)), _LAST
            return int(await connection.fetchval(_RESUME, after[0])), after[1]

    async def _next(self, at: Cursor, tenant: int | None, kinds: list[str] | None) -> tuple[list[Any], Cursor, bool]:
        """Facts after a cursor, the cursor behind all that was looked at, and whether there is more."""
        if self.tail.holds(at):
            await self.tail.reading.fresh()
        if not self.tail.holds(at):
            return await self._catch_up(at, tenant, kinds)
        found = [
            row for row in self.tail.after(at) if tenant in (None, row["tenant_id"]) and (kinds is None or row["kind"] in kinds)
        ]
        return found, max(at, self.tail.end), self.tail.more

    async def _catch_up(self, at: Cursor, tenant: int | None, kinds: list[str] | None) -> tuple[list[Any], Cursor, bool]:
        async with self.database.reads() as connection:
            edge = int(await connection.fetchval(_END))
            rows = await connection.fetch(_EVENTS, str(at[0]), at[1], tenant, BATCH, kinds)
        if len(rows) == BATCH:
            return rows, cursor_of(rows[-1]), True
        # What was committed below the edge was there when the facts were read: others need not be looked at again.
        reached = max(at, (edge, _LAST), cursor_of(rows[-1]) if rows else at)
        if self.tail.start is None:
            self.tail.begin(reached)
        return rows, reached, False


def cursor_of(row: Any) -> Cursor:
    return int(row["xid"]), row["seq"]
