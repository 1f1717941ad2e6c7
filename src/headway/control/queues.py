"""The queues as this server knows them (F5): read every few seconds, and at once when one of them is changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.control.bus import Bus
from headway.domain.queues import PREDEFINED, Hours, Queue, Runs, unknown_queue
from headway.domain.task import Definition
from headway.errors import Conflict, InvalidInput, NotFound
from headway.store.database import Database
from headway.store.queries import query

_ALL = query("queue.all")
_ADD = query("queue.add")
_SET = query("queue.set")
_REMOVE = query("queue.remove")


@dataclass
class Queues:
    database: Database
    bus: Bus
    by_name: dict[str, Queue] = field(default_factory=dict)

    def get(self, name: str) -> Queue:
        """The queue; one we have not heard of yet has no rules of its own."""
        return self.by_name.get(name) or Queue(name)

    async def refresh(self) -> bool:
        """Read all queues; says whether anything changed."""
        async with self.database.cold() as connection:
            found = {row["name"]: _queue(row) for row in await connection.fetch(_ALL)}
        changed, self.by_name = found != self.by_name, found
        if changed:
            self.bus.queues()
        return changed

    async def check(self, definition: Definition) -> None:
        """Refuse a task for a queue that does not exist."""
        name = definition.queue
        if name and name not in self.by_name:
            await self.refresh()  # it may have been made elsewhere a moment ago
            if name not in self.by_name:
                raise unknown_queue(name, self.by_name)

    async def add(self, queue: Queue) -> Queue:
        if not await self._write(_ADD, queue):
            raise Conflict(f"there is a queue {queue.name!r} already", hint="`headway queue set` changes it")
        return queue

    async def change(self, name: str, **fields: Any) -> Queue:
        await self.refresh()
        if name not in self.by_name:
            raise NotFound(f"there is no queue {name[:60]!r}", hint=f"queues: {', '.join(sorted(self.by_name)[:20])}")
        queue = msgspec.structs.replace(self.by_name[name], **fields)
        await self._write(_SET, queue)
        return queue

    async def remove(self, name: str) -> None:
        async with self.database.cold() as connection:
            gone = await connection.fetchval(_REMOVE, name, list(PREDEFINED))
        await self.refresh()
        if gone is None and name in PREDEFINED:
            raise InvalidInput(f"queue: {name} is predefined and stays", field="queue", hint="`headway queue pause` stops it")
        if gone is None and name in self.by_name:
            raise Conflict(f"tasks have named the queue {name!r}: it stays", hint="`headway queue pause` stops it")
        if gone is None:
            raise NotFound(f"there is no queue {name[:60]!r}")

    async def _write(self, statement: str, queue: Queue) -> bool:
        hours = msgspec.json.encode(queue.hours).decode()
        async with self.database.cold() as connection:
            row = await connection.fetchval(statement, queue.name, queue.runs.value, hours, queue.timezone, queue.paused)
        await self.refresh()
        return row is not None


def _queue(row: Any) -> Queue:
    hours = msgspec.convert(json.loads(row["hours"]), tuple[Hours, ...])
    return Queue(row["name"], Runs(row["runs"]), hours, row["timezone"], row["paused"])
