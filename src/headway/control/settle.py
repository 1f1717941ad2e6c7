"""What the end of a task means for those that wait for it, in the same transaction (C5).

Dependants whose counter reaches zero are released, those whose wish can no longer come true are skipped, and so on down the graph.
A release too large for one transaction is left as a durable row and goes on in chunks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from headway import telemetry
from headway.control.bus import Bus, Freed, by_group
from headway.control.fanout import is_due, note_due
from headway.control.levels import Tally, count, open_deferred
from headway.domain.identity import MAX_ID
from headway.domain.lifecycle import State
from headway.domain.task import When
from headway.policy.order import Key
from headway.policy.release import satisfied
from headway.store.arrays import longs, unpacked
from headway.store.copy import to_datetime
from headway.store.database import Connection
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo

MANY = 10_000
CHUNK = 5_000
NOT_NEEDED = "NotNeeded"  # why a task was skipped that ran on a failure only, and there was none

_READY = int(State.READY)  # enums are slow to compare
_RELEASE = query("edge.release")
_DOOMED = query("edge.doomed")
_LOCK_DOOMED = query("edge.lock_doomed")
_GO_ON = query("edge.go_on")
_DEFER = query("edge.defer")
_NEXT = query("edge.next_deferred")
_CHUNK_END = query("edge.chunk_end")
_ADVANCE = query("edge.advance_deferred")
_END = query("edge.end_deferred")
_ENDED = query("task.end_without_success")


@dataclass
class Effects:
    """What a transaction changed, to be told after its commit."""

    ready: list[tuple[int, int, Key]] = field(default_factory=list)
    freed: Freed = field(default_factory=dict)  # by attempts that ended
    returned: Freed = field(default_factory=dict)  # by attempts that never began
    ended: list[tuple[int, State]] = field(default_factory=list)
    deferred: bool = False  # a large release goes on in chunks
    scheduled: bool = False  # something waits for its time: a retry, a limit
    levels: Tally = field(default_factory=Tally)
    answered: list[int] = field(default_factory=list)  # controls that nodes have answered
    told: bool = False  # events were written that nobody waits for

    def clear(self) -> None:
        """Before a transaction is tried again."""
        self.ready.clear()
        self.freed.clear()
        self.returned.clear()
        self.ended.clear()
        self.levels.clear()
        self.answered.clear()
        self.deferred = self.scheduled = self.told = False

    def free(self, node: int | None, tenant: int, shape: int, count: int = 1) -> None:
        if node is not None:
            there = (node, tenant, shape)
            self.freed[there] = self.freed.get(there, 0) + count

    def now_ready(self, rows: list[Any]) -> None:
        self.ready += [(r["tenant"], r["shape"], (r["start_by"], r["cap_ms"], r["id"])) for r in rows]


def tell(bus: Bus, effects: Effects) -> None:
    """After the commit: planner, timekeeper, waiting clients and metrics learn what happened."""
    bus.freed(effects.freed)
    bus.returned(effects.returned)
    bus.ready(by_group(effects.ready))
    bus.ended([task for task, _ in effects.ended])
    if effects.scheduled or effects.deferred:
        bus.scheduled()
    bus.answered(effects.answered)
    if effects.told:
        bus.told()
    telemetry.ended(effects.ended)


async def settle(connection: Connection, ended: list[tuple[int, State]], effects: Effects) -> None:
    """Release and skip what waits for these tasks; count the levels of their trees."""
    await _spread(connection, ended, effects, spared=False)
    await count(connection, effects)


async def _spread(connection: Connection, ended: list[tuple[int, State]], effects: Effects, *, spared: bool) -> None:
    """`spared`: these were skipped because nobody needed them, which is no failure; nor is it one of what waits for them."""
    waves = [(spared, ended)]
    while waves:
        spared, wave = waves.pop()
        by_kinds: dict[tuple[When, ...], list[int]] = defaultdict(list)
        for state, same in groupby(wave, key=itemgetter(1)):  # nearly always one
            by_kinds[satisfied(state)] += [task for task, _ in same]
        for kinds, upstreams in by_kinds.items():
            many, doomed = await _release(connection, upstreams, kinds, effects, after=0, until=MAX_ID)
            if many > MANY:
                states = dict(wave)
                await connection.execute(_DEFER, upstreams, [states[u] for u in upstreams], spared)
                effects.deferred = True
            elif doomed:
                benign = spared or When.SUCCEEDED in kinds  # only `when: failed` is disappointed by a success
                skipped = await _skip(connection, upstreams, kinds, effects, after=0, until=MAX_ID, spared=benign)
                if skipped:
                    waves.append((benign, skipped))


async def _release(
    connection: Connection, upstreams: list[int], kinds: tuple[When, ...], effects: Effects, *, after: int, until: int
) -> tuple[int, bool]:
    """Count down dependants with after < id <= until; those at zero become ready. Returns how many there are (above MANY: nothing
    was done) and whether some of them will not get their wish."""
    rows = await connection.fetch(_RELEASE, longs(upstreams), list(kinds), after, until, MANY, min(upstreams), max(upstreams))
    due: list[int] = []
    for _, _, tenant, shape, start_by_us, cap_ms, state, blocked_on, ids in rows:
        if state == _READY:
            moment = to_datetime(start_by_us)
            effects.ready += [(tenant, shape, (moment, cap_ms, task)) for task in unpacked(ids)]
        elif is_due(state, cap_ms, blocked_on):
            due += unpacked(ids)
    await note_due(connection, due, effects)
    return rows[0]["count"], rows[0]["doomed"]


async def _skip(
    connection: Connection, upstreams: list[int], kinds: tuple[When, ...], effects: Effects, *, after: int, until: int, spared: bool
) -> list[tuple[int, State]]:
    doomed = {r["id"]: r for r in await connection.fetch(_DOOMED, upstreams, list(kinds), after, until)}
    if not doomed:
        return []
    locked = await connection.fetch(_LOCK_DOOMED, list(doomed))
    if begun := [r["id"] for r in locked if r["begun"]]:
        await _go_on(connection, begun, [doomed[i]["count"] for i in begun], effects)
    vain = [(r["id"], doomed[r["id"]]["upstream"]) for r in locked if not r["begun"]]
    if spared:
        reasons = [ErrorInfo(NOT_NEEDED, f"it waits for task {upstream} to fail, and that did not happen") for _, upstream in vain]
    else:
        reasons = [ErrorInfo("DependencyFailed", f"task {upstream}, which it waits for, did not end as wished") for _, upstream in vain]
    return await end_waiting(connection, [task for task, _ in vain], State.SKIPPED, reasons, effects)


async def _go_on(connection: Connection, begun: list[int], counts: list[int], effects: Effects) -> None:
    """What began because its upstream failed goes on, though that one was sent again and has succeeded."""
    rows = await connection.fetch(_GO_ON, begun, counts)
    effects.now_ready([row for row in rows if row["state"] == State.READY])
    await note_due(connection, [row["id"] for row in rows if is_due(row["state"], row["cap_ms"], row["blocked_on"])], effects)


async def end_waiting(
    connection: Connection, ids: list[int], state: State, reasons: list[ErrorInfo], effects: Effects
) -> list[tuple[int, State]]:
    """End tasks that no node holds (locked by the caller); returns those that others wait for."""
    if not ids:
        return []
    now = await connection.fetchval("select clock_timestamp()")
    texts = [msgspec.json.encode(reason).decode() for reason in reasons]
    n = len(ids)
    rows = await connection.fetch(_ENDED, ids, [state] * n, [None] * n, texts, [None] * n, [None] * n, [now] * n, [None] * n, [None] * n)
    effects.ended += [(row["id"], state) for row in rows]
    spared = state is State.SKIPPED and reasons[0].type == NOT_NEEDED
    for row in rows:
        if row["tree"] is not None:
            effects.levels.end(row["tree"], row["level"], state, spared=spared, ended_ms=round(now.timestamp() * 1000))
    return [(row["id"], state) for row in rows if row["has_dependants"]]


async def cancel_waiting(connection: Connection, ids: list[int], effects: Effects) -> list[tuple[int, State]]:
    """End tasks that somebody cancelled and that no node holds (locked by the caller); returns those that others wait for."""
    reason = ErrorInfo("Cancelled", "cancelled before it began")
    return await end_waiting(connection, ids, State.CANCELLED, [reason] * len(ids), effects)


async def settle_deferred(connection: Connection) -> Effects | None:
    """The next chunk of a large release; None when there is none."""
    effects = Effects()
    row = await connection.fetchrow(_NEXT)
    if row is None:
        return effects if await open_deferred(connection, effects) else None
    upstream, state, cursor, spared = row["upstream"], State(row["state"]), row["cursor"], row["spared"]
    until = await connection.fetchval(_CHUNK_END, upstream, cursor, CHUNK)
    if until is None:
        await connection.execute(_END, upstream)
        return effects
    _, doomed = await _release(connection, [upstream], satisfied(state), effects, after=cursor, until=until)
    if doomed:
        spared = spared or state is State.SUCCEEDED
        skipped = await _skip(connection, [upstream], satisfied(state), effects, after=cursor, until=until, spared=spared)
        await _spread(connection, skipped, effects, spared=spared)
    await connection.execute(_ADVANCE, upstream, until)
    await count(connection, effects)
    return effects
