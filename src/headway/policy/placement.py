"""Which node takes which task: a function of the queue's heads and the nodes' room (G2).

`refuse` says why not, in one place: placement, explain and the autoscaler ask the same question.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headway.domain.resources import Capacity, Resources, describe, missing_labels, room, shortfall
from headway.policy.order import Group, Head, Key

Need = tuple[tuple[int, int], ...]  # (dimension, amount) of what a shape asks for: zeros cost nothing in the loops below


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

    def allocate(self, need: Need, count: int) -> None:
        """Take `count` times `need` away (a negative count gives back)."""
        self.held += count
        free = self.free
        for i, amount in need:
            free[i] -= amount * count

    def room_for(self, need: Need, most: int) -> int:
        """How many more tasks of this shape, at most `most`, the node should be given now."""
        ahead = self.ahead - self.held
        if ahead >= most:
            return most
        fits, free = most, self.free
        for i, amount in need:
            fits = min(fits, free[i] // amount)
        return max(fits, ahead, 0)


def need_of(resources: Resources) -> Need:
    return tuple((i, amount) for i, amount in enumerate(resources.amounts()) if amount)


@dataclass(frozen=True)
class Refusal:
    """Why a node cannot take a task now; `ever` says that an empty node could not either."""

    node: str
    reason: str
    ever: bool


def refuse(asked: Resources, node: NodeRoom) -> Refusal | None:
    """Why `node` cannot take a task of this shape now, or None."""
    if missing := missing_labels(asked, node.capacity.labels):
        return Refusal(node.name, f"has no label {', '.join(missing)}", ever=True)
    if short := shortfall(asked, node.capacity.amounts()):
        return Refusal(node.name, f"is too small: {', '.join(short)} (asked: {describe(asked)})", ever=True)
    if not node.accepting:
        return Refusal(node.name, "takes no new tasks (draining or lost)", ever=False)
    if node.room_for(need_of(asked), 1) <= 0:
        return Refusal(node.name, f"is full: {', '.join(shortfall(asked, tuple(node.free)))}", ever=False)
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
        _, group = heap[0]
        found = candidates.best(group[1])
        if found is None:
            heapq.heappop(heap)  # no room for this shape: the group waits for the next round
            continue
        node, need = found
        head = heads[group]
        bound = min(heap[1:3])[0] if len(heap) > 1 else None  # the smallest of the rest is a child of the root
        wanted = min(head.run_before(bound), most)
        keys = head.take(node.room_for(need, wanted))
        node.allocate(need, len(keys))
        plan.append(Placed(group, node.id, keys))
        most -= len(keys)
        first = head.first()
        if first is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (first, group))
    return plan


class _Candidates:
    """For each shape the nodes with room, tightest first; built when the shape is first met in a round."""

    def __init__(self, nodes: list[NodeRoom], shapes: Mapping[int, Resources]) -> None:
        self.nodes = nodes
        self.shapes = shapes
        self.by_shape: dict[int, tuple[Need, list[NodeRoom]]] = {}

    def best(self, shape: int) -> tuple[NodeRoom, Need] | None:
        known = self.by_shape.get(shape)
        if known is None:
            need = need_of(self.shapes[shape])
            known = self.by_shape[shape] = (need, self._open(self.shapes[shape], need))
        need, waiting = known
        while waiting:
            node = waiting[-1]
            if node.room_for(need, 1) > 0:
                return node, need
            waiting.pop()
        return None

    def _open(self, asked: Resources, need: Need) -> list[NodeRoom]:
        # Room first: on a busy fleet most nodes have none, and asking for the reason costs ten times as much.
        nodes = [node for node in self.nodes if node.room_for(need, 1) > 0 and refuse(asked, node) is None]
        nodes.sort(key=lambda node: looseness(asked, node), reverse=True)
        return nodes


def looseness(asked: Resources, node: NodeRoom) -> tuple[bool, int, float, int]:
    """Low is better: nodes where it fits at once, then nodes without labels the task does not ask for, then the fullest."""
    spare = len(node.capacity.labels) - len(asked.labels)
    left = sum(
        (free - amount) / whole
        for amount, free, whole in zip(asked.amounts(), node.free, node.capacity.amounts(), strict=True)
        if whole
    )
    return (room(asked, tuple(node.free)) <= 0, spare, left, node.id)
