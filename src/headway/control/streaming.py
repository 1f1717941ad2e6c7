"""Trees too large for one request body: a stream of tasks, kept on disk until its last line, stored in one transaction (A2 C3).

What stays in memory is some 135 bytes a task (see domain.large_graph). Nothing is stored before everything was checked; one
transaction makes all of it visible at once, so a stream that breaks off, a server that dies or a full disk leave nothing behind.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import tempfile
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import msgspec

from headway import telemetry
from headway.control import bounded_waiting
from headway.control.allowances import Allowances
from headway.control.bus import Bus
from headway.control.clock import Clock
from headway.control.definitions import Interned
from headway.control.draft import Draft, Drafts, draft_of
from headway.control.fleet import Fleet
from headway.control.identity import IdSource
from headway.control.levels import add_parts
from headway.control.taken import Taken
from headway.domain.large_graph import LargeGraph
from headway.domain.lifecycle import State
from headway.domain.spec import MAX_INPUT, TaskSpec
from headway.domain.wrong_kind import decoded
from headway.errors import HeadwayError, InvalidInput, TooLarge, Unavailable
from headway.policy.order import HEAD_LIMIT, Group, Key
from headway.store import copy
from headway.store.database import Connection, Database
from headway.store.queries import query

MOST_TASKS = 5_000_000
LONGEST_LINE = MAX_INPUT + 2**20
ROWS = 2_000  # made at a time: a few milliseconds in which nobody else is served
AT_ONCE = 2  # trees that are stored: each holds a hot connection for as long as that takes
COPIES = 100_000  # rows in one statement, far below the timeout of a statement
_TREE = query("tree.add")
_LEVELS = query("tree.add_levels")
_spec = msgspec.json.Decoder(TaskSpec)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, int | None, float | None, bytes | None, bytes | None, bytes]).decode
_LENGTH = struct.Struct(">I")


@dataclass
class Streams:
    """Makes trees out of streams."""

    database: Database
    drafts: Drafts
    fleet: Fleet
    ids: IdSource
    clock: Clock
    bus: Bus
    allowances: Allowances
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _turns: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary)  # of each tenant one tree at a time

    async def submit(self, tenant: int, name: str, strict: bool, body: AsyncIterator[bytes]) -> tuple[int, int]:
        """The id of the tree, and of how many tasks it is."""
        with Spool(tenant, self.drafts) as spool:
            await spool.fill(body)
            self.fleet.check_satisfiable(spool.kinds.values())
            counts = await asyncio.to_thread(spool.graph.join, spool.named)
            async with self._turns.setdefault(tenant, asyncio.Lock()), self._places:
                with Taken(self.allowances) as taken:
                    await taken.take(tenant, len(spool.graph))
                    (tree,) = await self.ids.take(1)
                    ready = await self._store(tenant, tree, name, strict, spool, counts)
            self.bus.ready(ready)
            self.bus.scheduled()
            telemetry.submitted(len(spool.graph))
            return tree, len(spool.graph)

    async def _store(
        self, tenant: int, tree: int, name: str, strict: bool, spool: Spool, counts: list[int]
    ) -> dict[Group, list[Key]]:
        writer = _Writer(spool, tenant, tree, strict, self.clock.now_us())
        while len(writer.ids) < len(spool.graph):
            writer.ids.extend(await self.ids.take(min(COPIES, len(spool.graph) - len(writer.ids))))
        async with self.database.hot() as connection, connection.transaction():
            await connection.execute(_TREE, tree, tenant, name, counts, strict)
            for low in range(0, len(counts), COPIES):
                part = counts[low : low + COPIES]
                await connection.execute(_LEVELS, tree, list(range(low, low + len(part))), part)
            await writer.parts(connection)
            await writer.tasks(connection)
            await bounded_waiting.remember_tree(connection, tree, spool.kinds.values())
            await writer.edges(connection)
        return writer.ready


class Spool:
    """The tasks of a stream on disk, their graph in memory."""

    def __init__(self, tenant: int, drafts: Drafts) -> None:
        self.tenant, self.drafts = tenant, drafts
        self.graph = LargeGraph()
        self.kinds: dict[int, Interned] = {}
        self._salt = os.urandom(16)
        self._offsets = array("q")
        self._size = 0

    def __enter__(self) -> Spool:
        self.file = tempfile.TemporaryFile(prefix="headway-tree-")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    async def fill(self, body: AsyncIterator[bytes]) -> None:
        """All lines of the stream, each checked like a task of its own."""
        rest = b""
        async for data in body:
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            await self._take(lines)
            await asyncio.sleep(0)  # what has come already is read without waiting for anything
            if len(rest) > LONGEST_LINE:
                raise TooLarge(f"line {len(self.graph) + 1} is longer than {LONGEST_LINE} bytes")
        await self._take([rest])
        if not len(self.graph):
            raise InvalidInput("the stream is empty", hint="send one task a line")

    async def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if not line or line.isspace():
                continue
            try:
                draft, spec, name = self._read_line(line)
                draft.interned = self.drafts.known(self.tenant, spec) or await self.drafts.interned(self.tenant, spec)
                self._keep(draft, name)
            except HeadwayError as error:
                raise error.at("line", len(self.graph) + 1) from None
            except OSError as error:
                raise Unavailable(f"this server has no room for the stream: {error.strerror}", retry_after=30.0) from None

    def _read_line(self, line: bytes) -> tuple[Draft, TaskSpec, str | None]:
        if len(self.graph) >= MOST_TASKS:
            raise TooLarge(f"more than {MOST_TASKS} tasks in one tree", hint="make several trees")
        spec = decoded(_spec.decode, line, what="it")
        name = spec.name
        draft = draft_of(spec)
        if draft.fan is not None or draft.key is not None:
            field = "for_each" if draft.fan is not None else "idempotency_key"
            raise InvalidInput(f"{field} cannot be part of a stream", field=field, hint="submit such a tree in one request")
        if spec.on_late == "refuse" and not draft.edges:  # by the time it is known what stands before it, much is stored
            raise InvalidInput("on_late: refuse cannot be part of a stream", field="on_late", hint="submit such a tree in one request")
        return draft, spec, name

    def _keep(self, draft: Draft, name: str | None) -> None:
        self.kinds.setdefault(draft.interned.id, draft.interned)
        edges: list[tuple[int, int]] = []
        if draft.edges:
            seen = {edge.task for edge in draft.edges}
            if len(seen) < len(draft.edges) or any(isinstance(task, int) for task in seen):
                raise InvalidInput("after: a stream names each task once, and only tasks of its own", field="after")
            edges = [(self._hash(str(edge.task)), int(edge.when)) for edge in draft.edges]
        self._write(draft)
        self.graph.add(self._hash(name) if name else None, edges)

    def _hash(self, name: str) -> int:
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, key=self._salt).digest(), "big") or 1

    def _write(self, draft: Draft) -> None:
        row = _pack((draft.interned.id, draft.at_us, draft.size, draft.name, draft.labels, draft.input))
        self._offsets.append(self._size)
        self.file.write(_LENGTH.pack(len(row)) + row)
        self._size += 4 + len(row)

    def named(self, position: int) -> str:
        """The name of a task, for an error."""
        self.file.seek(self._offsets[position])
        name = _unpack(self._read())[3]
        return name.decode() if name else f"task {position}"

    def rewind(self) -> None:
        self.file.seek(0)

    def next(self) -> tuple[int, int | None, float | None, bytes | None, bytes | None, bytes]:
        return _unpack(self._read())

    def _read(self) -> bytes:
        return self.file.read(_LENGTH.unpack(self.file.read(4))[0])


class _Writer:
    """Turns the spool into rows, a few at a time."""

    def __init__(self, spool: Spool, tenant: int, tree: int, strict: bool, now_us: int) -> None:
        self.spool, self.graph = spool, spool.graph
        self.tenant, self.tree, self.strict, self.now_us = tenant, tree, strict, now_us
        self.ids = array("q")
        self.ready: dict[Group, list[Key]] = {}
        self._common: dict[tuple[int, int, int, int | None], bytes] = {}
        self._places: dict[int, bytes] = {}  # by level

    async def parts(self, connection: Connection) -> None:
        for low in range(0, len(self.graph), COPIES):
            high = min(low + COPIES, len(self.graph))
            await add_parts(connection, self.tree, zip(self.ids[low:high], self.graph.level[low:high], strict=True))

    async def tasks(self, connection: Connection) -> None:
        self.spool.rewind()
        for low in range(0, len(self.graph), COPIES):
            high = min(low + COPIES, len(self.graph))
            await connection.copy_to_table("task", source=self._tasks(low, high), columns=copy.COLUMNS, format="binary", timeout=600)

    async def edges(self, connection: Connection) -> None:
        for low in range(0, len(self.graph.above), COPIES):
            high = min(low + COPIES, len(self.graph.above))
            source = self._edges(low, high)
            await connection.copy_to_table("edge", source=source, columns=copy.EDGE_COLUMNS, format="binary", timeout=600)

    async def _tasks(self, low: int, high: int) -> AsyncIterator[bytes]:
        yield copy.document_begin()
        for start in range(low, high, ROWS):
            yield b"".join(self._task(position) for position in range(start, min(start + ROWS, high)))
            await asyncio.sleep(0)
        yield copy.document_end()

    def _task(self, position: int) -> bytes:
        definition, at_us, size, name, labels, data = self.spool.next()
        kind, level = self.spool.kinds[definition], self.graph.level[position]
        blocked_on = self.graph.blocked_on[position] + (self.strict and level > 0)
        key = (definition, blocked_on, self.graph.waited_for[position], at_us)
        common = self._common.get(key)
        eligible = at_us if at_us is not None and at_us > self.now_us else self.now_us
        state = State.BLOCKED if blocked_on else State.SCHEDULED if eligible > self.now_us else State.READY
        if common is None:
            if len(self._common) > 10_000:
                self._common.clear()
            common = self._common[key] = copy.common_columns(
                eligible + kind.tolerance_us, eligible, self.tenant, kind.id, kind.shape, kind.cap_ms, blocked_on, state, kind.category,
                self.graph.waited_for[position],
            )  # fmt: skip
        if state is State.READY:
            head = self.ready.setdefault((self.tenant, kind.shape), [])
            if len(head) <= HEAD_LIMIT:  # one more than the planner keeps: it then reads the rest for itself
                head.append((copy.to_datetime(eligible + kind.tolerance_us), kind.cap_ms, self.ids[position]))
        place = self._places.get(level)
        if place is None:
            if len(self._places) > 10_000:  # a chain has as many levels as tasks
                self._places.clear()
            place = self._places[level] = copy.place_columns(self.tree, level)
        return copy.task_row(self.ids[position], common, place, size, name, labels, None, data)

    async def _edges(self, low: int, high: int) -> AsyncIterator[bytes]:
        yield copy.document_begin()
        ids, above, below, kinds = self.ids, self.graph.above, self.graph.below, self.graph.kinds
        for start in range(low, high, ROWS):
            numbers = range(start, min(start + ROWS, high))
            yield b"".join(copy.edge_row(ids[below[n]], ids[above[n]], kinds[n]) for n in numbers)
            await asyncio.sleep(0)
        yield copy.document_end()
