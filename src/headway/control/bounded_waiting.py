"""The duty behind `max_wait` (E7): warns before a task has waited too long, then ends it as expired or lets it wait on, as it asked.

Tasks with a limit have a row in a side table, ordered by when to look at them next; tasks without one cost nothing. A row that is
left behind by a crash is found again by its time; one whose task has ended is dropped when its time comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control.bus import Bus
from headway.control.definitions import Interned
from headway.control.leader import Leader
from headway.control.settle import Effects, end_waiting, settle, tell
from headway.domain.lifecycle import State
from headway.domain.units import duration_text
from headway.policy.waiting import WARNED_AT, Step, Verdict, Waiter, judge
from headway.store.database import Connection, Database
from headway.store.partitions import ensure_days_of
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo

BATCH = 500
LOOK_S = 5.0  # how often to look by oneself: what is stored here or elsewhere is told by bus and NOTIFY
_REMEMBER = query("waiting_limit.remember")
_REMEMBER_TREE = query("waiting_limit.remember_tree")
_REMEMBER_RESTORED = query("waiting_limit.remember_restored")
_CHANGE = query("waiting_limit.change")
_NEXT = query("waiting_limit.next")
_DUE = query("waiting_limit.due")
_LOCK = query("waiting_limit.lock")
_LIMITS = query("waiting_limit.limits")
_AGAIN = query("waiting_limit.look_again")
_FORGET = query("waiting_limit.forget")
_TELL = query("event.tell_each")


async def remember(connection: Connection, tasks: Iterable[tuple[int, Interned]]) -> bool:
    """Tasks that were just stored, in their transaction: those with a limit will be looked at. Says whether there are any."""
    limited = [(task, interned) for task, interned in tasks if interned.limit_ms]
    if limited:
        kinds = {interned.id: interned for _, interned in limited}
        await connection.execute(_REMEMBER, [task for task, _ in limited], *_limits(kinds.values()), WARNED_AT)
    return bool(limited)


async def remember_tree(connection: Connection, tree: int, kinds: Iterable[Interned]) -> None:
    """All tasks of a tree that was just stored, of which these are the kinds."""
    if limited := [kind for kind in kinds if kind.limit_ms]:
        await connection.execute(_REMEMBER_TREE, tree, *_limits(limited), WARNED_AT)


async def remember_restored(connection: Connection) -> None:
    """Tasks of a tree that is tried again, in that transaction."""
    await connection.execute(_REMEMBER_RESTORED, WARNED_AT)


async def changed(connection: Connection, task: int, new: Interned) -> None:
    """A waiting task is another kind now, with another limit or another time."""
    if new.limit_ms:
        await connection.execute(_CHANGE, task, new.limit_ms, new.definition.patience.keep)
    else:
        await connection.execute(_FORGET, [task])


def _limits(kinds: Collection[Interned]) -> tuple[list[int], list[int], list[bool]]:
    return [k.id for k in kinds], [k.limit_ms for k in kinds], [k.definition.patience.keep for k in kinds]


@dataclass
class BoundedWaiting:
    database: Database
    leader: Leader
    bus: Bus

    async def run_once(self) -> float:
        async with self.database.hot() as connection:
            rest: float | None = await connection.fetchval(_NEXT)
        if rest is None or rest > 0:
            return LOOK_S if rest is None else min(max(rest, 0.001), LOOK_S)
        effects = Effects()

        async def work(connection: Connection) -> int:
            effects.clear()
            await self.leader.fence(connection, "bounded_waiting")
            return await _look(connection, effects)

        looked = await self.database.transact(work)
        tell(self.bus, effects)
        return 0.0 if looked == BATCH else 0.001


async def _look(connection: Connection, effects: Effects) -> int:
    ids = [row["task"] for row in await connection.fetch(_DUE, BATCH)]
    tasks = {row["id"]: row for row in await connection.fetch(_LOCK, ids)}
    due = await connection.fetch(_LIMITS, ids)
    verdicts = [(row, tasks.get(row["task"]), _verdict(row, tasks.get(row["task"]))) for row in due]
    told = [_warning(row, task, verdict) for row, task, verdict in verdicts if task is not None and _is_news(row, verdict)]
    if told:
        await connection.execute(_TELL, *([one[i] for one in told] for i in range(4)))
    again = [
        (row["task"], verdict.next_at, verdict.since, verdict.step is Step.WARN)
        for row, _, verdict in verdicts
        if verdict.step in (Step.LOOK_AGAIN, Step.WARN)
    ]
    if again:
        await connection.execute(_AGAIN, *([one[i] for one in again] for i in range(4)))
    expired = [(row["task"], row["limit_ms"]) for row, _, verdict in verdicts if verdict.step is Step.EXPIRE]
    await _expire(connection, expired, effects)
    gone = [row["task"] for row, _, verdict in verdicts if verdict.step in (Step.FORGET, Step.EXPIRE)]
    await connection.execute(_FORGET, gone)
    return len(ids)


async def _expire(connection: Connection, expired: list[tuple[int, int]], effects: Effects) -> None:
    """End these tasks (locked by the caller); what depends on them is released or skipped."""
    if expired:
        ids = [task for task, _ in expired]
        await ensure_days_of(connection, ids)
        words = [f"it waited {duration_text(limit_ms / 1000)}, the limit it was given (max_wait)" for _, limit_ms in expired]
        waited_for = await end_waiting(connection, ids, State.EXPIRED, [ErrorInfo("Expired", text) for text in words], effects)
        await settle(connection, waited_for, effects)


def _verdict(row: Any, task: Any) -> Verdict:
    if task is None:
        return Verdict(Step.FORGET)
    waiter = Waiter(
        State(task["state"]), task["eligible_at"], row["since"], task["requeues"], row["limit_ms"] / 1000, row["keep"], row["warned"]
    )
    return judge(waiter, task["now"])


def _is_news(row: Any, verdict: Verdict) -> bool:
    """The warning always comes before the end, also of a limit too short to be looked at in between."""
    return verdict.step is Step.WARN or (verdict.step is Step.EXPIRE and not row["warned"])


def _warning(row: Any, task: Any, verdict: Verdict) -> tuple[int, str, int, str]:
    data = {
        "limit_s": row["limit_ms"] / 1000,
        "waited_s": round(task["now"] - (verdict.since or task["now"]), 3),
        "then": "keep" if row["keep"] else "expire",
    }
    return task["tenant"], "task.waiting_too_long", row["task"], msgspec.json.encode(data).decode()
