"""One group commit: keys first, then edges to existing tasks, then one COPY of tasks and one of edges."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from headway.control import bounded_waiting, subtasks
from headway.control.bus import by_group
from headway.control.definitions import Interned
from headway.control.draft import Draft, apart
from headway.control.subtasks import Parent
from headway.domain.graph import levels, levels_in_order
from headway.domain.lifecycle import State
from headway.domain.task import When
from headway.domain.tree import runs
from headway.errors import Conflict, HeadwayError, IdempotencyConflict, InvalidInput
from headway.policy.order import Group, Key
from headway.policy.release import satisfied
from headway.store import copy
from headway.store.copy import edge_row, task_row
from headway.store.database import Connection
from headway.store.queries import query

_CLAIM = query("key.claim")
_EXISTING = query("key.existing")
_UNCLAIM = query("key.unclaim")
_MARK = query("task.mark_upstream")
_ENDED = query("task.ended_upstream")
_TREE = query("tree.add_whole")
_IDS = query("tree.first_ids")
_FANS = query("fanout.add")
_NOTHING: list[int] = []
_BLOCKED, _SCHEDULED, _READY = int(State.BLOCKED), int(State.SCHEDULED), int(State.READY)  # enums are slow to pack


@dataclass
class Request:
    """The drafts of one client call and the promise it waits on."""

    tenant: int
    drafts: Sequence[Draft]
    tree_name: str | None
    done: asyncio.Future[None]
    strict: bool = False  # the levels of the tree are barriers
    fresh_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # the fresh ones, or those of tasks that had the key before
    created: list[bool] = field(default_factory=list)
    fresh_tree: int | None = None
    tree: int | None = None  # the fresh one, or the one that had the key before
    key: str | None = None  # of the whole tree
    key_hash: bytes = b""
    twin: Request | None = None  # of the same batch, with the same key before this one
    error: HeadwayError | None = None
    state: int = State.READY
    start_by_us: int = 0
    parent: Parent | None = None  # the running task that submits
    asked: Sequence[Draft] = field(init=False)  # its drafts, before some of them turn out to be there already

    def __post_init__(self) -> None:
        self.asked = self.drafts


class _Kind(NamedTuple):
    """What most tasks of a batch share with others."""

    state: int
    start_by_us: int
    eligible_us: int
    moment: datetime.datetime  # start_by
    cap_ms: int
    group: Group
    common: bytes


class Batch:
    """Requests that are committed together."""

    def __init__(self, requests: list[Request], ids: list[int], now_us: int) -> None:
        self.requests = requests
        self.now_us = now_us
        self.scheduled = False
        self.limited = self.fanned = False  # whether one of its rows has a limit on waiting, or stands for many
        self._ready: list[tuple[int, int, Key]] = []
        self._kinds: dict[tuple[int, int, int, int, int, int | None], _Kind] = {}
        supply = iter(ids)
        for request in requests:
            request.fresh_tree = next(supply) if request.tree_name else None
            request.fresh_ids = list(islice(supply, len(request.drafts)))
        self.reset()

    def reset(self) -> None:
        """Before every try: a deadlock makes PostgreSQL run the batch again."""
        self._ready.clear()
        for request in self.requests:
            request.error = request.twin = None
            request.ids, request.tree = list(request.fresh_ids), request.fresh_tree
            request.drafts = request.asked
            if request.parent is not None:
                request.tree = None
            request.created = [True] * len(request.drafts)

    @property
    def size(self) -> int:
        return sum(len(request.drafts) for request in self.requests)

    @property
    def plain(self) -> bool:
        """Only tasks: no keys, edges, trees, parents or limits on waiting. One COPY is then the whole transaction."""
        return all(
            request.tree_name is None
            and request.parent is None
            and all(
                draft.key is None and not draft.edges and draft.fan is None and not draft.interned.limit_ms for draft in request.drafts
            )
            for request in self.requests
        )

    def probe(self) -> list[int]:
        """Ids by which the batch is found if its commit went through."""
        return [i for r in self.requests if r.error is None for i, new in zip(r.ids, r.created, strict=True) if new][:1]

    def new_tasks(self) -> Iterator[tuple[int, Interned]]:
        """The tasks that are stored, with what they are."""
        for request in self.requests:
            if request.error is None:
                for task, draft, new in zip(request.ids, request.drafts, request.created, strict=True):
                    if new and draft.fan is None:
                        yield task, draft.interned

    def settle(self) -> None:
        """Tell the clients."""
        for request in self.requests:
            if request.done.done():
                continue
            if request.error is not None:
                request.done.set_exception(request.error)
                request.done.exception()
            else:
                request.done.set_result(None)

    def ready(self) -> dict[Group, list[Key]]:
        return by_group(self._ready)

    def values(self) -> list[tuple[Any, ...]]:
        """The tasks of a plain batch as values for an INSERT."""
        found: list[tuple[Any, ...]] = []
        for request in self.requests:
            for task, draft in zip(request.ids, request.drafts, strict=True):
                kind, interned = self._kind(request, draft, 0, 0), draft.interned
                request.state, request.start_by_us = kind.state, kind.start_by_us
                if kind.state == _READY:
                    self._ready.append((*kind.group, (kind.moment, kind.cap_ms, task)))
                found.append(
                    (task, kind.moment, copy.to_datetime(kind.eligible_us), request.tenant, interned.id, interned.shape,
                     interned.cap_ms, interned.category, draft.size, _text(draft.name), _text(draft.labels), draft.input)
                )  # fmt: skip
        return found

    def rows(self, request: Request, blocked: dict[int, int]) -> tuple[list[bytes], list[bytes]]:
        """The COPY rows of a request's new tasks and edges. `blocked`: position -> existing upstreams it waits for."""
        drafts, ids = request.drafts, request.ids
        blocked_on = [0] * len(drafts)
        waited_for = bytearray(len(drafts))
        edge_rows: list[bytes] = []
        for position, count in blocked.items():
            blocked_on[position] = count
        for position, draft in enumerate(drafts):
            if request.strict and draft.level:
                blocked_on[position] += 1  # for the level below
            if draft.fan is not None:
                blocked_on[position] += 1  # it never runs itself
            if local := draft.local:
                mine = ids[position]
                blocked_on[position] += len(local)
                for upstream, when in local:
                    waited_for[upstream] = 1
                    edge_rows.append(edge_row(ids[upstream], mine, when))
        return self._task_rows(request, blocked_on, waited_for), edge_rows

    def _task_rows(self, request: Request, blocked_on: list[int], waited_for: bytearray) -> list[bytes]:
        places: dict[int | None, bytes] = {}
        rows: list[bytes] = []
        columns = zip(request.drafts, request.ids, blocked_on, waited_for, request.created, strict=True)
        for draft, task, count, waited, new in columns:
            if new:
                kind = self._kind(request, draft, count, waited)
                request.state, request.start_by_us = kind.state, kind.start_by_us
                if kind.state == _READY:
                    self._ready.append((*kind.group, (kind.moment, kind.cap_ms, task)))
                place = places.get(draft.level)
                if place is None:
                    place = places[draft.level] = copy.place_columns(request.tree, draft.level)
                key = draft.key.encode() if draft.key else None
                rows.append(task_row(task, kind.common, place, draft.size, draft.name, draft.labels, key, draft.input))
        return rows

    def _kind(self, request: Request, draft: Draft, blocked_on: int, waited_for: int) -> _Kind:
        """What the draft has in common with others of its batch, worked out once for all of them."""
        interned = draft.interned
        cap_ms = interned.cap_ms if draft.fan is None else 0
        key = (request.tenant, interned.id, cap_ms, blocked_on, waited_for, draft.at_us)
        if (known := self._kinds.get(key)) is not None:
            return known
        # A blocked task counts its tolerance from its release, so only its length matters now.
        eligible = draft.at_us if draft.at_us is not None and draft.at_us > self.now_us else self.now_us
        start_by = eligible + interned.tolerance_us
        state = _BLOCKED if blocked_on else _SCHEDULED if eligible > self.now_us else _READY
        common = copy.common_columns(
            start_by, eligible, request.tenant, interned.id, interned.shape, cap_ms, blocked_on, state, interned.category,
            waited_for,
        )  # fmt: skip
        group = (request.tenant, interned.shape)
        self.scheduled |= state == _SCHEDULED
        self.limited |= bool(interned.limit_ms)
        self.fanned |= draft.fan is not None
        made = self._kinds[key] = _Kind(state, start_by, eligible, copy.to_datetime(start_by), cap_ms, group, common)
        return made


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


async def store_plain(connection: Connection, batch: Batch) -> None:
    """A plain batch: atomic by itself, two round trips less."""
    batch.reset()
    rows = [row for request in batch.requests for row in batch.rows(request, {})[0]]
    await copy_tasks(connection, rows)


async def store_batch(connection: Connection, batch: Batch) -> None:
    """Everything of the batch in the caller's transaction."""
    batch.reset()
    await _claim_keys(connection, batch)
    _part(batch)
    tasks: list[bytes] = []
    edges: list[bytes] = []
    for request in batch.requests:
        try:
            if request.parent is not None and (len(request.asked) > 1 or request.asked[0].edges):
                async with connection.transaction():  # when some of them are refused, the keys of the others are not taken
                    new_tasks, new_edges = await _rows_of(connection, batch, request)
            else:
                new_tasks, new_edges = await _rows_of(connection, batch, request)
        except HeadwayError as error:
            request.error = error
            continue
        tasks += new_tasks
        edges += new_edges
    for request in batch.requests:
        if request.twin is not None:
            request.error = request.error or request.twin.error
    await _unclaim_failed(connection, batch)
    await copy_tasks(connection, tasks)
    await copy_edges(connection, edges)
    if batch.fanned:
        batch.scheduled |= await _add_fans(connection, batch)
    if batch.limited:
        batch.scheduled |= await bounded_waiting.remember(connection, batch.new_tasks())


async def _rows_of(connection: Connection, batch: Batch, request: Request) -> tuple[list[bytes], list[bytes]]:
    """The COPY rows of a request, after all that is stored before them; an error of ours refuses the request alone."""
    if request.parent is not None:
        await _admit_subtasks(connection, request, request.parent)
    if request.error is not None or True not in request.created:
        return [], []
    blocked, edges = await _existing_edges(connection, request)
    if request.tree_name is not None:
        await _add_tree(connection, request)
    new_tasks, new_edges = batch.rows(request, blocked)
    return new_tasks, new_edges + edges


async def copy_tasks(connection: Connection, rows: list[bytes]) -> None:
    await _copy(connection, "task", copy.COLUMNS, rows)


async def copy_edges(connection: Connection, rows: list[bytes]) -> None:
    await _copy(connection, "edge", copy.EDGE_COLUMNS, rows)


async def _copy(connection: Connection, table: str, columns: Sequence[str], rows: list[bytes]) -> None:
    if rows:
        await connection.copy_to_table(table, source=_stream(copy.document(rows)), columns=columns, format="binary")


async def _stream(data: bytes) -> AsyncIterator[bytes]:
    """Bytes as asyncpg likes them best: from a file-like object it would read in a thread."""
    yield data


async def _admit_subtasks(connection: Connection, request: Request, parent: Parent) -> None:
    """Its keys count under the parent alone, and its tasks belong to the parent's tree."""
    admitted = await subtasks.admit(connection, parent, request.asked, request.fresh_ids)
    request.drafts, request.ids, request.created = admitted.drafts, admitted.ids, admitted.created
    request.tree = admitted.tree


_WHOLE = -1  # the position of the key of a whole tree


def _wanted_keys(batch: Batch) -> Iterator[tuple[int, str, bytes, int, int, int]]:
    """(tenant, key, hash, id, request, position) of every key of the batch."""
    for n, request in enumerate(batch.requests):
        if request.key is not None and request.tree is not None:
            yield request.tenant, request.key, request.key_hash, request.tree, n, _WHOLE
        for position, draft in enumerate(request.drafts):
            if draft.key is not None and request.parent is None:
                yield request.tenant, draft.key, draft.key_hash, request.ids[position], n, position


async def _claim_keys(connection: Connection, batch: Batch) -> None:
    wanted = sorted(_wanted_keys(batch))
    if not wanted:
        return
    columns = [list(column) for column in zip(*wanted, strict=True)]
    new = {(r["tenant"], r["key"]) for r in await connection.fetch(_CLAIM, *columns[:4])}
    owner: dict[tuple[int, str], int] = {}
    for tenant, key, _, task, _, _ in wanted:
        if (tenant, key) in new:
            owner.setdefault((tenant, key), task)
    repeated = [row for row in wanted if owner.get((row[0], row[1])) != row[3]]
    if not repeated:
        return
    there = {
        (r["tenant"], r["key"]): r for r in await connection.fetch(_EXISTING, [r[0] for r in repeated], [r[1] for r in repeated])
    }
    for tenant, key, digest, _, n, position in repeated:
        first, request = there[(tenant, key)], batch.requests[n]
        if first["hash"] != digest:
            request.error = IdempotencyConflict(
                f"the idempotency key {key!r} was used with another payload",
                hint="use a new key for a new task",
                task=str(first["task"]),
            )
        elif position == _WHOLE:
            await _give_back(connection, batch, request, first["task"])
        elif request.tree == request.fresh_tree:
            request.ids[position] = first["task"]
            request.created[position] = False


def _part(batch: Batch) -> None:
    """Requests of which some tasks are there already lose the edges that those have, and wait for them as for any stored task."""
    fresh: set[int] = set()
    for request in batch.requests:
        if request.parent is not None or request.error is not None or False not in request.created or True not in request.created:
            continue
        try:
            request.drafts = apart(request.drafts, request.ids, request.created)
        except HeadwayError as error:
            request.error = error
            continue
        fresh = fresh or {task for each in batch.requests for task in each.fresh_ids}
        if any(upstream in fresh for draft in request.drafts for upstream, _ in draft.existing):
            raise Conflict("a task of this request waits for one that another request is about to store")  # each is then stored alone


async def _give_back(connection: Connection, batch: Batch, request: Request, tree: int) -> None:
    """The key was used before: the answer is the tree of then. What its tasks submitted since has later ids."""
    request.twin = next((r for r in batch.requests if r.fresh_tree == tree), None)  # its tasks are about to be stored
    ids = request.twin.fresh_ids if request.twin else [r["id"] for r in await connection.fetch(_IDS, tree, len(request.drafts))]
    request.tree, request.ids = tree, list(ids)
    request.drafts = request.drafts[: len(ids)]  # those of a dead letter that was purged are not there
    request.created = [False] * len(ids)


async def _unclaim_failed(connection: Connection, batch: Batch) -> None:
    """A request that is refused leaves no key behind."""
    rows = [
        (request.tenant, draft.key, task)
        for request in batch.requests
        if request.error is not None and request.parent is None
        for draft, task, new in zip(request.drafts, request.ids, request.created, strict=True)
        if draft.key is not None and new
    ]
    for request in batch.requests:
        if request.error is not None and request.key is not None and request.fresh_tree is not None:
            rows.append((request.tenant, request.key, request.fresh_tree))
    if rows:
        await connection.execute(_UNCLAIM, *([r[i] for r in rows] for i in range(3)))


async def _existing_edges(connection: Connection, request: Request) -> tuple[dict[int, int], list[bytes]]:
    """Edges to tasks stored earlier: those still hot are locked and counted, those that ended are judged now.

    Returns upstreams to wait for by position, and the edge rows.
    """
    wanted = sorted({upstream for draft in request.drafts for upstream, _ in draft.existing})
    if not wanted:
        return {}, []
    hot = {row["id"] for row in await connection.fetch(_MARK, wanted, request.tenant)}
    ended = {}
    if len(hot) < len(wanted):
        ended = dict(await connection.fetch(_ENDED, [i for i in wanted if i not in hot], request.tenant))
    blocked: dict[int, int] = {}
    rows: list[bytes] = []
    for position, draft in enumerate(request.drafts):
        for upstream, when in draft.existing:
            if upstream in hot:
                blocked[position] = blocked.get(position, 0) + 1
                rows.append(edge_row(upstream, request.ids[position], when))
            elif upstream not in ended:
                raise InvalidInput(f"after: there is no task {upstream}", field="after")
            elif when not in satisfied(State(ended[upstream])):
                raise _never(upstream, when, State(ended[upstream]))
    return blocked, rows


def _never(upstream: int, when: When, state: State) -> Conflict:
    return Conflict(
        f"after: task {upstream} has {state.word}, this task waits for it to be {when.name.lower()}",
        hint="it could never run; use `when: done` to run it however the other ended",
    )


async def _add_fans(connection: Connection, batch: Batch) -> bool:
    """Remember what the tasks that stand for many are made of; those that wait for nothing are due at once."""
    rows = []
    for request in batch.requests:
        for position, draft in enumerate(request.drafts):
            if draft.fan is not None and request.error is None and request.created[position]:
                source = draft.source if draft.source_local is None else request.ids[draft.source_local]
                rows.append((request.ids[position], source, draft.fan.items))
    if rows:
        await connection.execute(_FANS, *([row[i] for row in rows] for i in range(3)))
    return bool(rows)


async def _add_tree(connection: Connection, request: Request) -> None:
    after = [[edge[0] for edge in draft.local] if draft.local else _NOTHING for draft in request.drafts]
    if all(max(waits) < position for position, waits in enumerate(after) if waits):
        found = levels_in_order(after)
    else:
        found = list(dict(sorted(levels(dict(enumerate(after))).items())).values())
    counts = [0] * (max(found) + 1)
    for draft, level, created in zip(request.drafts, found, request.created, strict=True):
        draft.level = level
        counts[level] += created
    where = runs((task, level) for task, level, new in zip(request.ids, found, request.created, strict=True) if new)
    await connection.execute(_TREE, request.tree, request.tenant, request.tree_name, counts, request.strict, *where)
