"""Keeps a node free for a large task that small ones pass again and again (E1 E5). Runs where the planner runs.

Who was passed is known to the planner's board; which node has room soonest is policy.reservation.soonest. Nothing is asked of the
database while nobody was. Nothing is stored either: a new leader finds out anew who is passed.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

from headway import telemetry
from headway.control.clock import Clock
from headway.control.planner import Planner
from headway.control.scenes import Scenes
from headway.logs import log
from headway.policy.order import Group
from headway.policy.reservation import LOOK_S, Reservation, soonest

REST_S = 10.0


@dataclass
class Reserving:
    planner: Planner
    scenes: Scenes
    clock: Clock
    wake: Callable[[], None] = lambda: None
    _resting: bool = False

    def __post_init__(self) -> None:
        self.planner.on_stir.append(self._stirred)

    def _stirred(self) -> None:
        if self._resting and self.planner.board.keeping.passed:
            self._resting = False
            self.wake()

    async def run_once(self) -> float:
        """Keep a node for each task that was passed too often, as far as nodes may be kept."""
        board = self.planner.board
        for group, task in board.keeping.starved():
            await self._keep(group, task)
        self._resting = not board.keeping.busy
        return REST_S if self._resting else LOOK_S

    async def _keep(self, group: Group, task: int) -> None:
        board = self.planner.board
        before, rooms = board.keeping.of(group), board.keeping.possible(group)
        held = await self.scenes.held([room.id for room in rooms]) if rooms else None
        found = soonest(board.rooms.need(group[1]), rooms, held, before.node if before else None) if held is not None else None
        if found is None or board.keeping.first_of(group) != task:
            return  # unknown, or no longer so
        node, after = found
        board.keeping.keep(Reservation(node, group, task, self.clock.now() + datetime.timedelta(seconds=after)))
        if before is None or before.node != node:
            log("node.kept", node=board.rooms[node].name, task=str(task), seconds=round(after, 1))
            telemetry.kept()
