"""What runs where in simulated time, and who makes room for an urgent task (E9): policy.preemption.choose, as in the real system.

A frozen task keeps its own room in the books, and goes on when those it stopped for have ended; one that is ended instead waits again
with all of its work before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.domain.resources import Resources
from headway.policy.order import Group
from headway.policy.preemption import LONGEST_LOAN_S, MOST_NODES, STAYING, Candidate, Choice, Late, Space, choose, room_for_all
from headway.policy.room import Rooms
from headway.simulate.load import Arrival

CAP_S = 3600.0  # what a task may run at most, as long as the longest that is generated


@dataclass(slots=True)
class Run:
    """A task that holds a place."""

    task: int
    one: Arrival
    node: int
    group: Group  # in the order
    began: float
    ends: float
    times: int = 0  # how often it made room
    stopped_at: float = 0.0
    away_s: float = 0.0
    back_at: float = 0.0
    frozen: bool = False
    owes: Sequence[Run] = ()  # who is frozen for it


@dataclass
class Loans:
    """What runs where, and who is out of the way."""

    may_stop: frozenset[int]  # shapes
    on: dict[int, dict[int, Run]] = field(default_factory=dict)  # node -> task -> what runs there
    over: list[tuple[float, Sequence[Run]]] = field(default_factory=list)  # since when nobody needs the room of these

    def begin(self, run: Run) -> None:
        there = self.on.get(run.node)
        if there is None:
            there = self.on[run.node] = {}
        there[run.task] = run

    def end(self, run: Run) -> None:
        del self.on[run.node][run.task]

    def settle(self, node: int, rooms: Rooms) -> list[Run]:
        """Who was out of the way on a node that has room by now for all it holds: nobody owes them anything any more."""
        if not room_for_all(rooms[node].free):
            return []
        owners: list[Run] = []
        for run in self.on.get(node, {}).values():
            owners += run.owes
            run.owes = ()
        return owners

    def choose(self, late: Late, rooms: Rooms, now: float) -> Choice | None:
        """Who stops for this urgent task: looked for on some of the nodes, others for each task."""
        first = late.id * MOST_NODES % max(len(rooms), 1)
        ids = list(range(1, len(rooms) + 1))
        nodes = (ids[first:] + ids[:first])[:MOST_NODES]
        spaces = [Space(node, tuple(rooms[node].free), rooms[node].capacity) for node in nodes]
        need = {shape: resources.amounts() for shape, resources in rooms.shapes.items()}
        candidates = [
            Candidate(
                run.task, node, need[run.one.shape], CAP_S, now - run.began, now - run.began, run.times, run.away_s, now - run.back_at,
                run.one.tenant,
            )
            for node in nodes
            for run in self.on.get(node, {}).values()
            if run.one.shape in self.may_stop and not run.frozen
        ]  # fmt: skip
        return choose(late, spaces, candidates)

    def may_pass_on(self, owners: Sequence[Run], late: Late, rooms: Rooms, now: float) -> bool:
        """Whether the room of those who are out of the way may serve this one as well."""
        if any(now - run.stopped_at > LONGEST_LOAN_S or not (late.entitled or run.one.tenant == late.tenant) for run in owners):
            return False
        room = list(rooms[owners[0].node].free)
        for run in owners:
            for i, amount in rooms.need(run.one.shape):
                if i not in STAYING:
                    room[i] += amount
        return all(asked <= there for asked, there in zip(late.asked.amounts(), room, strict=True))


def late_of(task: int, asked: Resources, tenant: int, *, entitled: bool) -> Late:
    return Late(task, asked, urgent=True, cap_s=CAP_S, tenant=tenant, entitled=entitled)
