"""Keeps nodes for large tasks that small ones pass, in simulated time: policy.reservation, as control.reserving asks it."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, cast

from headway.policy.forecast import MOST_RUNNING, Held, Lasting
from headway.policy.order import Group
from headway.policy.placement import Board
from headway.policy.reservation import LOOK_S, Reservation, soonest
from headway.simulate.loans import CAP_S, Loans, Run

KNOWN = 200  # run times of a shape that are remembered


class Keeper:
    def __init__(self, board: Board, loans: Loans) -> None:
        self.board, self.loans = board, loans
        self.times: dict[int, deque[float]] = {shape: deque(maxlen=KNOWN) for shape in board.shapes}
        self._looked = -math.inf

    def ended(self, run: Run) -> None:
        self.times[run.one.shape].append(run.one.seconds)

    def look(self, now: float) -> None:
        """Keep a node for each task that was passed too often."""
        if self.board.keeping.busy and now - self._looked >= LOOK_S:
            self._looked = now
            for group, task in self.board.keeping.starved():
                self._keep(group, task, now)

    def windows(self, now: float) -> dict[int, float]:
        """Seconds until there is room on each node that is kept."""
        return {node: cast(float, kept.free_at) - now for node, kept in self.board.keeping.nodes.items()}

    def _keep(self, group: Group, task: int, now: float) -> None:
        keeping, rooms = self.board.keeping, self.board.rooms
        possible = keeping.possible(group)
        there = [run for room in possible for run in self.loans.on.get(room.id, {}).values()]
        if not possible or len(there) > MOST_RUNNING:
            return
        lasting = {shape: Lasting(tuple(sorted(times)), CAP_S) for shape, times in self.times.items()}
        held = [
            Held(run.node, run.one.tenant, rooms.need(run.one.shape), max(now - run.began, 0.0), lasting[run.one.shape]) for run in there
        ]
        before = keeping.of(group)
        found = soonest(rooms.need(group[1]), possible, held, before.node if before else None)
        if found is not None:
            keeping.keep(Reservation(found[0], group, task, cast(Any, now + found[1])))
