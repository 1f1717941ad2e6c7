"""Pre-emption in simulated time (E9): who stops for an urgent task is policy.preemption.choose, as in the real system.

A frozen task keeps its own room in the books, and goes on when the one it stopped for has ended; one that is ended instead waits again
with all of its work before it. A pause serves one late task here, the real one several in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.domain.resources import Resources
from headway.policy.preemption import Candidate, Choice, Late, Space, choose
from headway.policy.room import Rooms

CAP_S = 3600.0  # what a task may run at most, as long as the longest that is generated
MOST_NODES = 200  # looked at for one late task, as the real duty does
MOST_LATE = 20  # in one round


@dataclass
class Run:
    """A task that holds a place."""

    task: int
    node: int
    tenant: int  # in the order
    owner: int
    shape: int
    arrived: float
    start_by: float
    seconds: float  # of work in all
    began: float
    ends: float
    times: int = 0  # how often it made room
    stopped_at: float = 0.0
    away_s: float = 0.0
    back_at: float = 0.0
    frozen: bool = False
    owes: list[Run] = field(default_factory=list)  # who is frozen for it


@dataclass
class Loans:
    """What runs where, and may stop."""

    on: dict[int, dict[int, Run]] = field(default_factory=dict)  # node -> task -> what may stop there

    def begin(self, run: Run) -> None:
        there = self.on.get(run.node)
        if there is None:
            there = self.on[run.node] = {}
        there[run.task] = run

    def end(self, run: Run) -> None:
        if (there := self.on.get(run.node)) is not None:
            there.pop(run.task, None)

    def choose(self, task: int, asked: Resources, rooms: Rooms, now: float) -> Choice | None:
        """Who stops for this urgent task: looked for on some of the nodes, others for each task."""
        first = task * MOST_NODES % max(len(rooms), 1)
        ids = list(range(1, len(rooms) + 1))
        nodes = (ids[first:] + ids[:first])[:MOST_NODES]
        spaces = [Space(node, tuple(rooms[node].free), rooms[node].capacity) for node in nodes]
        need = {shape: resources.amounts() for shape, resources in rooms.shapes.items()}
        candidates = [
            Candidate(
                run.task, node, need[run.shape], CAP_S, now - run.began, now - run.began, run.times, run.away_s, now - run.back_at
            )
            for node in nodes
            for run in self.on.get(node, {}).values()
            if not run.frozen
        ]
        return choose(Late(task, asked, urgent=True, cap_s=CAP_S), spaces, candidates)
