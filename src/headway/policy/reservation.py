"""Room for a large task among small ones (E1 E5): the node that will have room for it soonest is kept free.

Room that is too small for a task goes to others behind it, and on a full fleet that is all there is: a task that needs a whole node
would wait for ever. So when a due task of a tenant that holds less than its part was passed by others that took as much as it asks for,
a node is kept: nothing new begins there but the task itself, others of its shape, and what will have ended by its cap before the room
is there.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.domain.resources import fits
from headway.policy.forecast import Held
from headway.policy.order import Group, Head
from headway.policy.room import Kept, Need, NodeRoom, Rooms

MOST_PASSED = 20  # groups that are watched: each costs a look in every round
SOONER = 0.5  # a node is given up for another that has room in half the time
LOOK_S = 1.0  # how often it is looked at again
MOST_NODES = 50  # looked at for one task: those with most room
PART = 0.1  # of the nodes are kept at most, but one always may be


@dataclass(frozen=True)
class Reservation:
    """A node that is kept for a task, and when it will probably have room."""

    node: int
    group: Group
    task: int
    free_at: datetime.datetime

    def left_s(self, now: datetime.datetime) -> float:
        return (self.free_at - now).total_seconds()


class Keeping:
    """Who was passed, and which nodes are kept."""

    def __init__(self, rooms: Rooms, heads: Mapping[Group, Head]) -> None:
        self.rooms, self.heads = rooms, heads
        self.nodes: dict[int, Reservation] = {}
        self.passed: dict[Group, tuple[int, float]] = {}  # first of the order, without room: its task, and what others took behind it

    @property
    def busy(self) -> bool:
        return bool(self.passed or self.nodes)

    def passed_by(self, group: Group, task: int, others: Iterable[tuple[int, int]]) -> None:
        """So many tasks of these shapes were handed out behind it. Only those count that are smaller: others had room of another kind."""
        own = self.rooms.part(group[1])
        took = sum(part * count for shape, count in others if (part := self.rooms.part(shape)) < own)
        known = self.passed.get(group)
        if known is not None and known[0] == task:
            took += known[1]
        if took > 0 and (known is not None or len(self.passed) < MOST_PASSED):
            self.passed[group] = (task, took)

    def starved(self) -> list[tuple[Group, int]]:
        """Groups with their first task, for which a node should be kept."""
        return [(group, task) for group, (task, took) in self.passed.items() if took >= self.rooms.part(group[1])]

    def of(self, group: Group) -> Reservation | None:
        """The node that is kept for the group."""
        return next((one for one in self.nodes.values() if one.group == group), None)

    def possible(self, group: Group) -> list[NodeRoom]:
        """Nodes that could be kept for it, those with most room first; none when enough are kept already."""
        if self.of(group) is None and len(self.nodes) >= max(1, int(PART * len(self.rooms))):
            return []
        asked, need = self.rooms.shapes[group[1]], self.rooms.need(group[1])
        by_others = {one.node for one in self.nodes.values() if one.group != group}
        rooms = [room for room in self.rooms.values() if not room.closed and room.id not in by_others and fits(asked, room.capacity)]
        return heapq.nsmallest(MOST_NODES, rooms, key=lambda room: max((amount - room.free[i]) / amount for i, amount in need))

    def keep(self, kept: Reservation) -> None:
        """Keep a node for a group, which gives up another that was kept for it."""
        for node in [node for node, one in self.nodes.items() if one.group == kept.group and node != kept.node]:
            self._release(node)
        self.nodes[kept.node] = kept
        self.rooms[kept.node].kept = Kept(self.rooms.shapes[kept.group[1]], kept.task)
        self.rooms.gained(kept.node)

    def review(self) -> None:
        """Forget those that were handed out, ended or changed, and give their nodes back."""
        for group, (task, _) in list(self.passed.items()):
            if self.first_of(group) != task:
                del self.passed[group]
        for node, kept in list(self.nodes.items()):
            room = self.rooms.get(node)
            if room is None or room.closed or self.first_of(kept.group) != kept.task:
                self._release(node)

    def first_of(self, group: Group) -> int | None:
        head = self.heads.get(group)
        first = head.first() if head is not None else None
        return first[2] if first is not None else None

    def _release(self, node: int) -> None:
        del self.nodes[node]
        if (room := self.rooms.get(node)) is not None:
            room.kept = None
            self.rooms.gained(node)


def soonest(need: Need, rooms: Iterable[NodeRoom], held: Sequence[Held], kept: int | None = None) -> tuple[int, float] | None:
    """The node that will have room for `need` first, and in how many seconds.

    One that is `kept` already stays unless another is far sooner.
    """
    on: dict[int, list[tuple[float, Need]]] = {}
    for one in held:
        on.setdefault(one.node, []).append((one.lasting.half_rest(one.ran_s), one.need))
    found = {room.id: _has_room_in(need, room, sorted(on.get(room.id, []))) for room in rooms}
    best = min(((after, node) for node, after in found.items() if after is not None), default=None)
    if best is None:
        return None
    now = found.get(kept) if kept is not None else None
    if kept is not None and now is not None and best[0] > SOONER * now:
        return kept, now
    return best[1], best[0]


def _has_room_in(need: Need, room: NodeRoom, ends: Sequence[tuple[float, Need]]) -> float | None:
    """When enough of what the node holds has ended; None when that is not known of all it holds."""
    free = list(room.free)
    after = 0.0
    for end, amounts in ends:
        if all(free[i] >= amount for i, amount in need):
            break
        after = end
        for i, amount in amounts:
            free[i] += amount
    return after if all(free[i] >= amount for i, amount in need) else None
