"""What people do to whole trees: cancel all of one, try again what failed and what was skipped behind it (C5 H7).

Trying again keeps the ids. The edges, the handles of clients and what other requests wait for stay true, the fence of each task
goes on rising, and the attempts that failed stay on record as attempts. What succeeded is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control import bounded_waiting
from headway.control.actions import Actions
from headway.control.bus import Bus
from headway.control.levels import count
from headway.control.settle import Effects, tell
from headway.domain.identity import DAY_MS, MAX_ID, first_id_of, ms_of
from headway.domain.lifecycle import State
from headway.errors import Conflict, NotFound
from headway.policy.order import HEAD_LIMIT
from headway.store.database import Connection, Database
from headway.store.partitions import ensure_days_of
from headway.store.queries import query

CHUNK = 5_000
ABOVE_ALL = 2**31 - 1
LEFT_S = 60.0  # a cancelling that is not over after this long was left behind, or is so large that two may share it
LONGEST_S = 600  # a tree of a million tasks may take this long to come back
_WISH = query("tree.wish_cancel")
_CANCELLED = query("tree.cancelled")
_LEFT = query("tree.left_cancelling")
_TO_CANCEL = query("tree.to_cancel")
_SUMS = query("tree.sums")
_ANY = query("tree.live_ids")
_TREE, _STAGE, _KNOWN, _COLLECT = (query(f"restore.{name}") for name in ("tree", "stage", "known", "collect"))
_LOCK, _REFUSE, _COUNT, _LEVELS = (query(f"restore.{name}") for name in ("lock_upstream", "refuse", "count", "sums"))
_LOCK_DEAD, _FORGET_GONE = query("restore.lock_dead"), query("restore.forget_gone")
_LOCK_BEHIND, _AGAIN = query("restore.lock_downstream"), query("restore.wait_again")
_KEEP, _DEAD, _ENDED, _FANS = (query(f"restore.{name}") for name in ("keep_attempts", "dead", "ended", "fans"))
_READY, _BEGIN, _LOWEST, _SPAN, _TELL = (query(f"restore.{name}") for name in ("ready", "begin", "lowest", "span", "tell"))


@dataclass
class TreeActions:
    database: Database
    actions: Actions
    bus: Bus

    async def cancel(self, tree: int) -> None:
        """Every task of the tree that is not final, also those that come into it meanwhile. The wish is stored first: should this
        server die, another goes on where it stopped."""
        async with self.database.cold() as connection:
            await connection.execute(_WISH, tree)
        await self._cancel_all(tree)

    async def run_once(self) -> int:
        """Go on with what a server that died left half cancelled; returns how many trees."""
        count = 0
        while True:
            async with self.database.cold() as connection:
                tree = await connection.fetchval(_LEFT, LEFT_S)
            if tree is None:
                return count
            await self._cancel_all(tree)
            count += 1

    async def _cancel_all(self, tree: int) -> None:
        while await self._cancel_once(tree):
            pass
        async with self.database.cold() as connection:
            await connection.execute(_CANCELLED, tree)

    async def _cancel_once(self, tree: int) -> bool:
        """One pass from the top down; whether there was anything."""
        level, task, found = ABOVE_ALL, MAX_ID, False
        while True:
            async with self.database.cold() as connection:
                rows = await connection.fetch(_TO_CANCEL, tree, level, task, CHUNK)
            if not rows:
                return found
            found = True
            level, task = rows[-1]["level"], rows[-1]["id"]
            await self.actions.cancel([row["id"] for row in rows])

    async def retry(self, tree: int, tenant: int | None) -> int:
        """Run the failed part again, and what was skipped behind it; of a cancelled tree, what was cancelled. Returns how many."""
        effects = Effects()

        async def work(connection: Connection) -> int:
            effects.clear()
            return await self._retry(connection, tree, tenant, effects)

        restored = await self.database.transact(work)
        tell(self.bus, effects)
        return restored

    async def _retry(self, connection: Connection, tree: int, tenant: int | None, effects: Effects) -> int:
        row = await connection.fetchrow(_TREE, tree, tenant)
        if row is None:
            raise NotFound(f"there is no tree {tree}")
        self.actions.tenants.check_there(row["tenant"])
        sums = await connection.fetchrow(_SUMS, tree)
        await connection.execute(f"set local statement_timeout = '{LONGEST_S}s'")
        if await connection.fetchval(_KNOWN, tree) < sums["total"]:
            raise Conflict(
                f"part of tree {tree} is no longer on record", hint="its history was dropped by retention: submit it anew"
            )
        await connection.execute(_STAGE)
        states = _states(sums, whole=row["cancel_at"] is not None)
        await connection.execute(_COLLECT, tree, states)
        await _own_dead(connection)
        await connection.fetch(_LOCK)
        await connection.fetch(_LOCK_BEHIND)
        await connection.execute(_COLLECT, tree, states)
        if not await _own_dead(connection):
            await connection.fetch(_LOCK)  # what was sent again meanwhile is still to run too
        while await connection.execute(_REFUSE) != "DELETE 0":
            pass
        levels = await connection.fetch(_LEVELS)
        if not levels:
            raise Conflict(f"nothing of tree {tree} failed", hint="only what failed, expired or was cancelled is run again")
        await _begin(connection, row)
        await ensure_days_of(connection, _a_day_apart(*await connection.fetchrow(_SPAN)))
        for statement in (_AGAIN, _KEEP, _DEAD, _ENDED, _FANS):
            await connection.execute(statement)
        await bounded_waiting.remember_restored(connection)
        for one in levels:
            effects.levels.back(tree, one["level"], State(one["state"]), one["count"])
        effects.now_ready(await connection.fetch(_READY, HEAD_LIMIT + 1))
        effects.deferred = effects.scheduled = True
        restored: int = sum(one["count"] for one in levels)
        await connection.execute(_TELL, row["tenant"], tree, msgspec.json.encode({"tree": str(tree), "tasks": restored}).decode())
        await count(connection, effects)
        return restored


def _a_day_apart(first: int, last: int) -> list[int]:
    """Ids of every day from the first to the last."""
    return [*(first_id_of(ms) for ms in range(ms_of(first), ms_of(last), DAY_MS)), first, last]


def _states(sums: Any, *, whole: bool) -> list[int]:
    """What is run again. Somebody who cancelled one task of a tree that failed did not want that one to run; who cancelled the `whole`
    tree wants all of it back."""
    failed = [State.FAILED, State.EXPIRED, State.SKIPPED]
    if not whole and (sums["failed"] or sums["expired"] or not sums["cancelled"]):
        return [int(state) for state in failed]
    return [int(state) for state in (*failed, State.CANCELLED)]


async def _own_dead(connection: Connection) -> bool:
    """Nobody else sends those again that failed, or purges them; False when somebody was faster with one: that one is left out."""
    await connection.fetch(_LOCK_DEAD)
    return bool(await connection.execute(_FORGET_GONE) == "DELETE 0")


async def _begin(connection: Connection, tree: Any) -> None:
    """Count what each waits for. A strict tree of which nothing runs starts over at the lowest level; otherwise levels that were
    open stay open."""
    opened = tree["open"]
    if tree["strict"] and not await connection.fetch(_ANY, tree["id"], 1):
        opened = await connection.fetchval(_LOWEST)
    await connection.execute(_BEGIN, tree["id"], opened)
    await connection.execute(_COUNT, tree["strict"], opened)
