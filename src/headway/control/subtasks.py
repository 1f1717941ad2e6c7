"""Subtasks of running tasks: submitted under the parent's fence, waited for without holding anything (C4).

A parent runs again from its top after it waited. The key of a submission makes it find the child it already has, so nothing is
submitted twice, however often the parent, its node or a server dies in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control import levels
from headway.control.definitions import Definitions, Interned
from headway.control.draft import Draft, apart
from headway.control.settle import Effects
from headway.domain.beneath import beneath
from headway.domain.lifecycle import Outcome, State
from headway.errors import Conflict, IdempotencyConflict
from headway.store.database import Connection
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo, Finished

LOOKED_AT = 10_000  # waiting tasks behind a parent, in the search for a circle

_PARENT = query("subtask.parent")
_CLAIM = query("subtask.claim")
_CLAIMED = query("subtask.claimed")
_KEEP = query("subtask.keep")
_REPLACE = query("subtask.replace")
_STALE = query("subtask.mark_stale")
_BELOW = query("subtask.below")
_UNFINISHED = query("subtask.unfinished")
_EDGES = query("subtask.wait_for")
_FOR_EVER = query("subtask.would_wait_for_ever")
_SUSPEND = query("subtask.suspend")


@dataclass(frozen=True)
class Parent:
    """The attempt that submits."""

    task: int
    attempt: int


@dataclass
class Admitted:
    """What became of the drafts of a parent: their ids, which of them are new, and the tree they belong to."""

    drafts: Sequence[Draft]
    ids: list[int]
    created: list[bool]
    tree: int | None = None


async def confine(definitions: Definitions, tenant: int, parent: int, drafts: Sequence[Draft]) -> None:
    """Hold what a task submits to what it is allowed itself; `parent` is its definition."""
    above = (await definitions.load({parent}))[parent].definition
    if above.isolation in ("", "none"):
        return
    held: dict[int, Interned] = {}
    for draft in drafts:
        own = draft.interned
        if own.id not in held:
            held[own.id] = await definitions.intern(tenant, beneath(own.definition, above, tenant))
        draft.interned = held[own.id]


async def admit(connection: Connection, parent: Parent, drafts: Sequence[Draft], fresh_ids: Sequence[int]) -> Admitted:
    """Claim the keys of a parent's new subtasks; those it has already keep their ids."""
    admitted = Admitted(drafts, list(fresh_ids), [True] * len(drafts))
    row = await connection.fetchrow(_PARENT, parent.task, parent.attempt)
    if row is None or row["cancelling"]:
        why = "is being cancelled" if row else "has ended"
        raise Conflict(f"attempt {parent.attempt} of task {parent.task} {why}: it submits no more subtasks")
    await _claim(connection, parent, drafts, admitted)
    new = admitted.created.count(True)
    if not new:
        return admitted
    if new < len(drafts):
        admitted.drafts = apart(drafts, admitted.ids, admitted.created)
    if row["tree"] is not None:
        admitted.tree = row["tree"]
        level = max((row["level"] or 0) - 1, 0)
        for draft in admitted.drafts:
            draft.level = level
        effects = Effects()
        effects.levels.add(row["tree"], level, new)
        await levels.count(connection, effects)
        added = ((task, level) for task, is_new in zip(admitted.ids, admitted.created, strict=True) if is_new)
        await levels.add_parts(connection, row["tree"], added)
    return admitted


async def _claim(connection: Connection, parent: Parent, drafts: Sequence[Draft], admitted: Admitted) -> None:
    wanted: dict[str, int] = {}
    for position, draft in enumerate(drafts):
        key = draft.key or f"new/{admitted.ids[position]}"
        if wanted.setdefault(key, position) != position:
            raise IdempotencyConflict(f"the key {key!r} is used twice in one request", hint="give each subtask its own key")
    new = {r["key"] for r in await connection.fetch(_CLAIM, parent.task, parent.attempt, *_columns(wanted, drafts, admitted))}
    known = (
        await connection.fetch(_CLAIMED, parent.task, [key for key in wanted if key not in new]) if len(new) < len(wanted) else []
    )
    replaced: dict[str, int] = {}
    for row in known:
        position = wanted[row["key"]]
        if row["replaceable"]:
            replaced[row["key"]] = position
        elif row["hash"] != drafts[position].key_hash:
            raise IdempotencyConflict(
                f"task {parent.task} has submitted another subtask under the key {row['key']!r}",
                hint="a task that runs again must submit the same under the same key",
                task=str(row["child"]),
            )
        else:
            admitted.ids[position], admitted.created[position] = row["child"], False
    if replaced:
        await connection.execute(_REPLACE, parent.task, parent.attempt, *_columns(replaced, drafts, admitted))
    if len(replaced) < len(known):
        await connection.execute(_KEEP, parent.task, [row["key"] for row in known])


def _columns(keys: dict[str, int], drafts: Sequence[Draft], admitted: Admitted) -> tuple[list[int], list[str], list[bytes]]:
    positions = keys.values()
    return [admitted.ids[p] for p in positions], list(keys), [drafts[p].key_hash for p in positions]


async def failed(connection: Connection, parents: list[int]) -> None:
    """These parents will run again because they failed, and not because they waited."""
    if parents:
        await connection.execute(_STALE, parents)


async def below(connection: Connection, tasks: list[int]) -> list[int]:
    """Every live task that these submitted, directly or through others."""
    return [row["id"] for row in await connection.fetch(_BELOW, tasks)]


async def suspend(connection: Connection, rows: list[tuple[Any, list[int], int]], effects: Effects) -> None:
    """Parents (locked rows) that wait for subtasks, each with what it waits for and how often it was requeued by now."""
    if not rows:
        return
    pairs = [(row["id"], child) for row, waits, _ in rows for child in set(waits)]
    columns = [[pair[0] for pair in pairs], [pair[1] for pair in pairs], [row["id"] for row, _, _ in rows]]
    waiting = [(r["parent"], r["child"]) for r in await connection.fetch(_UNFINISHED, *columns)]
    counts: dict[int, int] = {}
    for parent, _ in waiting:
        counts[parent] = counts.get(parent, 0) + 1
    if waiting:
        await connection.execute(_EDGES, [p for p, _ in waiting], [c for _, c in waiting])
    ids = sorted((row["id"], counts.get(row["id"], 0), requeues) for row, _, requeues in rows)
    moved = await connection.fetch(_SUSPEND, *(list(column) for column in zip(*ids, strict=True)))
    effects.now_ready([row for row in moved if row["state"] == State.READY])


async def refuse_circles(connection: Connection, rows: dict[int, Any], reports: list[Finished]) -> None:
    """A parent whose subtask waits for it in turn would wait for ever: it has failed instead."""
    pairs = [
        (report.id, child)
        for report in reports
        if report.outcome == Outcome.SUSPENDED and report.id in rows and rows[report.id]["has_dependants"]
        for child in set(report.waits)
    ]
    if not pairs:
        return
    found = await connection.fetch(_FOR_EVER, [p for p, _ in pairs], [c for _, c in pairs], LOOKED_AT)
    circular = {row["parent"] for row in found}
    for report in reports:
        if report.id in circular and report.outcome == Outcome.SUSPENDED:
            why = ErrorInfo("WaitsForItself", "a subtask that it waits for waits for this task: neither could ever go on")
            report.outcome, report.error = Outcome.ERROR, msgspec.json.encode(why).decode()
