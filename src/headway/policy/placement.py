"""Which node takes which task: a function of the queue's heads and the nodes' room (G2).

`refuse` says why not, in one place: placement, explain and the autoscaler ask the same question.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headway.domain.resources import Capacity, Resources, describe, missing_labels, room, shortfall
from headway.policy.order import Group, Head, Key


@dataclass
class NodeRoom:
    """One node as the planner sees it. `free` may be negative: tasks given ahead wait at the node."""

    id: int
    name: str
    capacity: Capacity
    free: list[int] = field(default_factory=list)
    held: int = 0
    ahead: int = 0  # tasks it should hold in all, though they do not fit at once (see policy.pace)
    accepting: bool = True  # up and not draining

    def __post_init__(self) -> None:
        if not self.free:
            self.free = list(self.capacity.amounts())

    def allocate(self, need: Resources, count: int) -> None:
        """Take `count` times `need` away (a negative count gives back)."""
        self.held += count
        for i, amount in enumerate(need.amounts()):
            if amount:
                self.free[i] -= amount * count

    def room_for(self, need: Resources) -> int:
        """How many more tasks of this shape the node should be given now."""
        return max(room(need, tuple(self.free)), self.ahead - self.held, 0)


@dataclass(frozen=True)
class Refusal:
    """Why a node cannot take a task now; `ever` says that an empty node could not either."""

    node: str
    reason: str
    ever: bool


def refuse(need: Resources, node: NodeRoom) -> Refusal | None:
    """Why `node` cannot take a task of this shape now, or None."""
    if missing := missing_labels(need, node.capacity.labels):
        return Refusal(node.name, f"has no label {', '.join(missing)}", ever=True)
    if short := shortfall(need, node.capacity.amounts()):
        return Refusal(node.name, f"is too small: {', '.join(short)} (asked: {describe(need)})", ever=True)
    if not node.accepting:
        return Refusal(node.name, "takes no new tasks (draining or lost)", ever=False)
    if node.room_for(need) <= 0:
        return Refusal(node.name, f"is full: {', '.join(shortfall(need, tuple(node.free)))}", ever=False)
    return None


@dataclass(frozen=True)
class Placed:
    group: Group
    node: int
    keys: list[Key]


def place(heads: Mapping[Group, Head], nodes: Iterable[NodeRoom], shapes: Mapping[int, Resources], *, most: int) -> list[Placed]:
    """Hand out the best tasks, at most `most`, in the common order of all groups.

    Takes them from the heads, and their room from the nodes.
    """
    candidates = _Candidates(list(nodes), shapes)
    heap = [(first, group) for group, head in heads.items() if (first := head.first()) is not None]
    heapq.heapify(heap)
    plan: list[Placed] = []
    while heap and most > 0:
        _, group = heapq.heappop(heap)
        node = candidates.best(group[1])
        if node is None:
            continue  # no room for this shape: the group waits for the next round
        head, need = heads[group], shapes[group[1]]
        bound = heap[0][0] if heap else None
        keys = head.take(min(head.run_before(bound), node.room_for(need), most))
        node.allocate(need, len(keys))
        plan.append(Placed(group, node.id, keys))
        most -= len(keys)
        if (first := head.first()) is not None:
            heapq.heappush(heap, (first, group))
    return plan


class _Candidates:
    """For each shape the nodes with room, tightest first; built when the shape is first met in a round."""

    def __init__(self, nodes: list[NodeRoom], shapes: Mapping[int, Resources]) -> None:
        self.nodes = nodes
        self.shapes = shapes
        self.by_shape: dict[int, list[NodeRoom]] = {}

    def best(self, shape: int) -> NodeRoom | None:
        need = self.shapes[shape]
        waiting = self.by_shape.get(shape)
        if waiting is None:
            open_nodes = [node for node in self.nodes if refuse(need, node) is None]
            open_nodes.sort(key=lambda node: looseness(need, node), reverse=True)
            waiting = self.by_shape[shape] = open_nodes
        while waiting:
            if waiting[-1].room_for(need) > 0:
                return waiting[-1]
            waiting.pop()
        return None


def looseness(need: Resources, node: NodeRoom) -> tuple[bool, int, float, int]:
    """Low is better: nodes where it fits at once, then nodes without labels the task does not ask for, then the fullest."""
    spare = len(node.capacity.labels) - len(need.labels)
    left = max(
        (free - asked) / whole
        for asked, free, whole in zip(need.amounts(), node.free, node.capacity.amounts(), strict=True)
        if whole
    )
    return (room(need, tuple(node.free)) <= 0, spare, left, node.id)
