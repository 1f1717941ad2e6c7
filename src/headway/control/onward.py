"""The short way on: what waited for a task that ended is leased by the transaction that releases it (C5 L2).

As with the short way in (control.express), only when this server plans, nothing else waits and all of them fit at once, so nobody is
passed; the lease is fenced by the planner's epoch. A chain then takes one wait for the disk a link, not two.
"""

from __future__ import annotations

from typing import Any

from headway.control.bus import by_group
from headway.control.planner import Planner
from headway.control.sessions import Session
from headway.control.settle import Effects
from headway.store.arrays import ints, longs
from headway.store.database import Connection
from headway.store.queries import query

MOST = 16  # tasks; more are as well planned together
_LEASE = query("task.lease")


class Onward:
    """One transaction's way on. Room is taken before the commit: afterwards say `committed`, or `lost` when it is unknown what happened."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._nodes: set[int] = set()  # where room is taken
        self._rows: list[Any] = []
        self._sessions: dict[int, Session] = {}
        self._asked = 0

    async def lease(self, connection: Connection, effects: Effects) -> None:
        """Lease what is ready now, if it can be; the rest stays in `effects`, to be told."""
        self._give_up()  # an earlier try was rolled back
        if not 0 < len(effects.ready) <= MOST or not self._planner.may_reserve:
            return
        nodes = self._planner.reserve(by_group(effects.ready), effects.freed)
        if nodes is None:
            return
        self._nodes, self._sessions, self._asked = set(nodes.values()), self._planner.talking(), len(nodes)
        wanted = sorted((key[2], nodes[key[2]], shape) for _, shape, key in effects.ready)
        ids, places, shapes = ([row[i] for row in wanted] for i in range(3))
        self._rows = await connection.fetch(
            _LEASE, longs(ids), ints(places), self._planner.leading_epoch, ints(shapes), ints(list(self._nodes))
        )
        leased = {row["id"] for row in self._rows}
        effects.ready = [one for one in effects.ready if one[2][2] not in leased]

    def committed(self) -> None:
        if not self._nodes:
            return
        self._planner.stored(self._nodes)
        self._planner.dispatch(self._rows, self._sessions)
        if len(self._rows) < self._asked:
            self._planner.recount(self._nodes)

    def lost(self) -> None:
        """Unknown whether they were leased."""
        if self._nodes:
            self._planner.stored(self._nodes)
            self._planner.step_down()

    def _give_up(self) -> None:
        if self._nodes:
            self._planner.stored(self._nodes)
            self._planner.recount(self._nodes)
        self._nodes, self._rows, self._asked = set(), [], 0
