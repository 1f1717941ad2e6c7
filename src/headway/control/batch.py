"""One group commit: keys first, then edges to existing tasks, then one COPY of tasks and one of edges."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.control.bus import by_group
from headway.control.draft import Draft
from headway.domain.graph import levels
from headway.domain.lifecycle import State
from headway.domain.task import When
from headway.errors import Conflict, HeadwayError, IdempotencyConflict, InvalidInput
from headway.policy.order import Group, Key
from headway.policy.release import satisfied
from headway.store import copy
from headway.store.database import Connection
from headway.store.queries import query

_CLAIM = query("key.claim")
_EXISTING = query("key.existing")
_UNCLAIM = query("key.unclaim")
_MARK = query("task.mark_upstream")
_ENDED = query("task.ended_upstream")
_TREE = query("tree.add")


@dataclass
class Request:
    """The drafts of one client call and the promise it waits on."""

    tenant: int
    drafts: Sequence[Draft]
    tree_name: str | None
    done: asyncio.Future[None]
    ids: list[int] = field(default_factory=list)
    created: list[bool] = field(default_factory=list)
    tree: int | None = None
    error: HeadwayError | None = None
    state: int = State.READY
    start_by_us: int = 0


@dataclass
class _Row:
    """One task as it goes into the table."""

    id: int
    draft: Draft
    tenant: int
    tree: int | None
    blocked_on: int = 0
    has_dependants: bool = False

    def timing(self, now_us: int) -> tuple[int, int, int]:
        """(state, eligible, start_by): blocked tasks count their tolerance from their release."""
        at = self.draft.at_us
        eligible = at if at is not None and at > now_us else now_us
        state = State.BLOCKED if self.blocked_on else State.SCHEDULED if eligible > now_us else State.READY
        return state, eligible, eligible + self.draft.interned.definition.tolerance_ms * 1000


class Batch:
    """Requests that are committed together."""

    def __init__(self, requests: list[Request], ids: list[int], now_us: int) -> None:
        self.requests = requests
        self.now_us = now_us
        self.scheduled = False
        self._ready: list[tuple[int, int, Key]] = []
        self._moments: dict[int, datetime.datetime] = {}  # most tasks of a batch share their start_by
        supply = iter(ids)
        for request in requests:
            request.tree = next(supply) if request.tree_name else None
            request.ids = [next(supply) for _ in request.drafts]
            request.created = [True] * len(request.drafts)

    def reset(self) -> None:
        """Before every try: a deadlock makes PostgreSQL run the batch again."""
        self._ready.clear()
        for request in self.requests:
            request.error = None
            request.created = [True] * len(request.drafts)

    def probe(self) -> list[int]:
        """Ids by which the batch is found if its commit went through."""
        return [i for r in self.requests if r.error is None for i, new in zip(r.ids, r.created, strict=True) if new][:1]

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

    def rows(self, request: Request, blocked: dict[int, int]) -> tuple[list[bytes], list[bytes]]:
        """The COPY rows of a request's new tasks and edges. `blocked`: position -> existing upstreams it waits for."""
        rows = [_Row(i, d, request.tenant, request.tree) for i, d in zip(request.ids, request.drafts, strict=True)]
        edge_rows: list[bytes] = []
        for position, row in enumerate(rows):
            for upstream, when in row.draft.local:
                rows[upstream].has_dependants = True
                row.blocked_on += 1
                edge_rows.append(copy.edge_row(request.ids[upstream], row.id, when))
            row.blocked_on += blocked.get(position, 0)
        return [self._encode(request, row) for row, new in zip(rows, request.created, strict=True) if new], edge_rows

    def _encode(self, request: Request, row: _Row) -> bytes:
        draft, definition = row.draft, row.draft.interned.definition
        state, eligible, start_by = row.timing(self.now_us)
        request.state, request.start_by_us = state, start_by
        if state == State.READY:
            moment = self._moments.get(start_by)
            if moment is None:
                moment = self._moments[start_by] = copy.to_datetime(start_by)
            self._ready.append((row.tenant, draft.interned.shape, (moment, definition.cap_ms, row.id)))
        self.scheduled |= state == State.SCHEDULED
        return copy.task_row(
            id=row.id, start_by_us=start_by, eligible_us=eligible, tenant=row.tenant, definition=draft.interned.id,
            shape=draft.interned.shape, cap_ms=definition.cap_ms, blocked_on=row.blocked_on, state=state,
            category=definition.category, has_dependants=row.has_dependants, tree=row.tree, level=draft.level, size=draft.size,
            name=draft.name, labels=draft.labels, key=draft.key.encode() if draft.key else None, input=draft.input,
        )  # fmt: skip


async def store_batch(connection: Connection, batch: Batch) -> None:
    """Everything of the batch in the caller's transaction."""
    batch.reset()
    await _claim_keys(connection, batch)
    tasks: list[bytes] = []
    edges: list[bytes] = []
    for request in batch.requests:
        if request.error is not None or True not in request.created:
            continue
        blocked, more_edges, refused = await _existing_edges(connection, request)
        if refused is not None:
            request.error = refused
            continue
        if request.tree is not None:
            await _add_tree(connection, request)
        new_tasks, new_edges = batch.rows(request, blocked)
        tasks += new_tasks
        edges += new_edges
        edges += more_edges
    await _unclaim_failed(connection, batch)
    if tasks:
        await connection.copy_to_table("task", source=_Source(copy.document(tasks)), columns=copy.COLUMNS, format="binary")
    if edges:
        await connection.copy_to_table(
            "edge", source=_Source(copy.document(edges)), columns=("upstream", "downstream", "kind"), format="binary"
        )


class _Source:
    """Bytes as the file-like object asyncpg reads; one read, no copies into small pieces."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, _size: int) -> bytes:
        data, self.data = self.data, b""
        return data


async def _claim_keys(connection: Connection, batch: Batch) -> None:
    wanted = sorted(
        (request.tenant, draft.key, draft.key_hash, request.ids[position], n, position)
        for n, request in enumerate(batch.requests)
        for position, draft in enumerate(request.drafts)
        if draft.key is not None
    )
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
        else:
            request.ids[position] = first["task"]
            request.created[position] = False


async def _unclaim_failed(connection: Connection, batch: Batch) -> None:
    """A request that is refused leaves no key behind."""
    rows = [
        (request.tenant, draft.key, task)
        for request in batch.requests
        if request.error is not None
        for draft, task, new in zip(request.drafts, request.ids, request.created, strict=True)
        if draft.key is not None and new
    ]
    if rows:
        await connection.execute(_UNCLAIM, *([r[i] for r in rows] for i in range(3)))


async def _existing_edges(connection: Connection, request: Request) -> tuple[dict[int, int], list[bytes], HeadwayError | None]:
    """Edges to tasks stored earlier: those still hot are locked and counted, those that ended are judged now.

    Returns upstreams to wait for by position, the edge rows, and why the request must be refused, if it must.
    """
    wanted = sorted({upstream for draft in request.drafts for upstream, _ in draft.existing})
    if not wanted:
        return {}, [], None
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
                rows.append(copy.edge_row(upstream, request.ids[position], when))
            elif upstream not in ended:
                return {}, [], InvalidInput(f"after: there is no task {upstream}", field="after")
            elif when not in satisfied(State(ended[upstream])):
                return {}, [], _never(upstream, when, State(ended[upstream]))
    return blocked, rows, None


def _never(upstream: int, when: When, state: State) -> Conflict:
    return Conflict(
        f"after: task {upstream} has {state.word}, this task waits for it to be {when.name.lower()}",
        hint="it could never run; use `when: done` to run it however the other ended",
    )


async def _add_tree(connection: Connection, request: Request) -> None:
    after = {position: [upstream for upstream, _ in draft.local] for position, draft in enumerate(request.drafts)}
    level_of = levels(after)
    counts = [0] * (max(level_of.values()) + 1)
    for position, draft in enumerate(request.drafts):
        draft.level = level_of[position]
        counts[draft.level] += 1
    await connection.execute(_TREE, request.tree, request.tenant, request.tree_name, counts)
