"""The counters of a tree's levels, written in the transaction that ends the tasks (C2).

A tally is made from the rows that a statement really moved, never from what an agent said: a repeated report moves no row and
counts nothing, and what is not committed is not counted. The counters are written last, in the order of tree and level.

A strict level may run when everything below it has ended. Its tasks then wait for one thing more than their edges say; `open`
is the highest level from which this has been taken away. Two transactions that end the last tasks of two levels must see each
other, so a strict tree is locked before it is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.control.fanout import is_due, note_due
from headway.domain.lifecycle import State
from headway.domain.tree import runs
from headway.store.database import Connection
from headway.store.queries import query

if TYPE_CHECKING:
    from headway.control.settle import Effects

CHUNK = 5_000
MOST_REMEMBERED = 100_000
_PARTS = query("tree.add_parts")
_LOCK = query("tree.lock_strict")
_COUNT = query("tree.count")
_LOWEST = query("tree.lowest_left")
_OPEN = query("tree.set_open")
_RELEASE = query("tree.release_level")
_CHUNK_END = query("tree.level_end")
_DEFER = query("tree.defer_level")
_NEXT = query("tree.next_deferred")
_END = query("tree.end_deferred")


@dataclass
class LevelChange:
    """What a transaction did to one level."""

    added: int = 0
    ended: dict[State, int] = field(default_factory=dict)
    spared: int = 0  # skipped because nobody needed it
    busy_ms: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


class Tally:
    """What a transaction did to levels, by tree and level."""

    def __init__(self) -> None:
        self.changes: dict[tuple[int, int], LevelChange] = {}

    def clear(self) -> None:
        self.changes.clear()

    def end(self, tree: int, level: int, state: State, *, spared: bool = False, began_ms: int = 0, ended_ms: int = 0) -> None:
        """A task ended."""
        change = self.of(tree, level)
        if spared:
            change.spared += 1
        else:
            change.ended[state] = change.ended.get(state, 0) + 1
        if ended_ms:
            change.last_ms = max(change.last_ms or 0, ended_ms)
        if began_ms:
            change.first_ms = min(change.first_ms or began_ms, began_ms)
            if state is State.SUCCEEDED:
                change.busy_ms += max(ended_ms - began_ms, 0)

    def succeeded(self, tree: int, level: int, began_ms: list[int], ended_ms: list[int]) -> None:
        """Many tasks of a level succeeded: their beginnings and ends."""
        change = self.of(tree, level)
        change.ended[State.SUCCEEDED] = change.ended.get(State.SUCCEEDED, 0) + len(ended_ms)
        change.busy_ms += sum(ended_ms) - sum(began_ms)
        first = min(began_ms)
        change.first_ms = min(change.first_ms or first, first)
        change.last_ms = max(change.last_ms or 0, *ended_ms)

    def back(self, tree: int, level: int, state: State, count: int = 1) -> None:
        """Tasks that had ended in `state` are to run again."""
        change = self.of(tree, level)
        change.ended[state] = change.ended.get(state, 0) - count

    def add(self, tree: int, level: int, count: int) -> None:
        """New tasks on a level."""
        self.of(tree, level).added += count

    def of(self, tree: int, level: int) -> LevelChange:
        return self.changes.setdefault((tree, level), LevelChange())


async def add_parts(connection: Connection, tree: int, tasks: Iterable[tuple[int, int]]) -> None:
    """Tasks that this transaction adds to a tree, as (id, level) in the order of their ids: from now on they are found by the tree."""
    await connection.execute(_PARTS, tree, *runs(tasks))


async def count(connection: Connection, effects: Effects) -> None:
    """Write the tally of this transaction; strict levels with nothing left below them may run."""
    changes = effects.levels.changes
    if not changes:
        return
    unknown = sorted({tree for tree, _ in changes if tree not in _EAGER})
    strict = await connection.fetch(_LOCK, unknown) if unknown else []
    _remember_eager(unknown, {row["id"] for row in strict})
    rows = [
        (tree, level, c.added, *(c.ended.get(s, 0) for s in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED)), c.spared,
         c.ended.get(State.EXPIRED, 0), c.busy_ms, c.first_ms, c.last_ms)
        for (tree, level), c in sorted(changes.items())
    ]  # fmt: skip
    await connection.execute(_COUNT, *([row[i] for row in rows] for i in range(12)))
    effects.levels.clear()
    for row in strict:
        await _open(connection, row["id"], row["open"], effects)


_EAGER: set[int] = set()  # trees known not to be strict, which never changes: they need no lock


def _remember_eager(looked_at: list[int], strict: set[int]) -> None:
    if len(_EAGER) > MOST_REMEMBERED:
        _EAGER.clear()
    _EAGER.update(tree for tree in looked_at if tree not in strict)


async def _open(connection: Connection, tree: int, now_open: int, effects: Effects) -> None:
    lowest = await connection.fetchval(_LOWEST, tree)
    if lowest is not None and lowest > now_open:
        await connection.execute(_OPEN, tree, lowest)
        await _release(connection, tree, lowest, 0, effects)


async def _release(connection: Connection, tree: int, level: int, after: int, effects: Effects) -> None:
    """One chunk of a level; the rest goes on from a durable row."""
    until = await connection.fetchval(_CHUNK_END, tree, level, after, CHUNK)
    if until is None:
        await connection.execute(_END, tree, level)
        return
    rows = await connection.fetch(_RELEASE, tree, level, after, CHUNK)
    effects.now_ready([row for row in rows if row["state"] == State.READY])
    await note_due(connection, [row["id"] for row in rows if is_due(row["state"], row["cap_ms"], row["blocked_on"])], effects)
    await connection.execute(_DEFER, tree, level, until)
    effects.deferred = True


async def open_deferred(connection: Connection, effects: Effects) -> bool:
    """The next chunk of a strict level that is being released; False when there is none."""
    row = await connection.fetchrow(_NEXT)
    if row is not None:
        await _release(connection, row["tree"], row["level"], row["cursor"], effects)
    return row is not None
