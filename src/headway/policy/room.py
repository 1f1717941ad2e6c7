"""Room on nodes: what is free, why a node refuses, and for each shape the node that fits best (G2).

`refuse` says why not, in one place: placement, explain and the autoscaler ask the same question. `Rooms` keeps, for each shape that is
asked for, the nodes that fit in a heap, and a log of nodes that gained room: a search reads only what changed since the last one, so
its cost does not grow with the fleet.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.domain.resources import DIMENSIONS, Capacity, Resources, describe, missing_labels, shortfall

Need = tuple[tuple[int, int], ...]  # (dimension, amount) of what a shape asks for: zeros cost nothing in the loops below
SHAPES_KEPT = 64  # each costs an entry for every node that fits


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

    def fits(self, need: Need) -> bool:
        """Whether one more runs there at once."""
        free = self.free
        return all(free[i] >= amount for i, amount in need)

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


Looseness = tuple[bool, int, float, int]


def looseness(asked: Resources, node: NodeRoom) -> Looseness:
    """Low is better: nodes where it fits at once, then nodes without labels the task does not ask for, then the fullest."""
    spare = len(node.capacity.labels) - len(asked.labels)
    left = sum(
        (free - amount) / whole
        for amount, free, whole in zip(asked.amounts(), node.free, node.capacity.amounts(), strict=True)
        if whole
    )
    return (not node.fits(need_of(asked)), spare, left, node.id)


class _Candidates:
    """The nodes that fit one shape, best first. An entry counts only while it is the node's latest."""

    __slots__ = ("asked", "heap", "latest", "need", "position")

    def __init__(self, asked: Resources, position: int) -> None:
        self.asked = asked
        self.need = need_of(asked)
        self.heap: list[Looseness] = []
        self.latest: dict[int, Looseness] = {}
        self.position = position  # how far in the log it has read

    def consider(self, node: NodeRoom) -> None:
        # Room first: on a busy fleet most nodes have none, and asking for the reason costs ten times as much.
        if node.room_for(self.need, 1) > 0 and refuse(self.asked, node) is None:
            entry = self.latest[node.id] = looseness(self.asked, node)
            heapq.heappush(self.heap, entry)
        else:
            self.latest.pop(node.id, None)


class Rooms(dict[int, NodeRoom]):
    """All nodes by id, the best of them for each shape, and how much of the fleet is taken.

    Change a node's room through `allocate`, or call `changed` afterwards.
    """

    def __init__(self, shapes: Mapping[int, Resources]) -> None:
        super().__init__()
        self.shapes = shapes
        self.capacity = [0] * len(DIMENSIONS)  # of nodes that accept tasks
        self.used = [0] * len(DIMENSIONS)
        self._counted: dict[int, tuple[list[int], list[int]]] = {}  # what of each node is in the sums above
        self._log: list[int] = []
        self._base = 0
        self._by_shape: dict[int, _Candidates] = {}

    def need(self, shape: int) -> Need:
        found = self._by_shape.get(shape)
        return found.need if found is not None else need_of(self.shapes[shape])

    def allocate(self, node: NodeRoom, need: Need, count: int) -> None:
        """Take `count` times `need` away from the node (a negative count gives back)."""
        node.held += count
        free = node.free
        counted = self._counted.get(node.id)
        for i, amount in need:
            before = free[i]
            free[i] = after = before - amount * count
            if counted is not None:
                more = (before if before > 0 else 0) - (after if after > 0 else 0)
                self.used[i] += more
                counted[1][i] += more
        if count < 0:
            self.gained(node.id)

    def changed(self, node: int) -> None:
        """The node came, left, or was set anew."""
        before = self._counted.pop(node, None)
        if before is not None:
            for i, (whole, taken) in enumerate(zip(*before, strict=True)):
                self.capacity[i] -= whole
                self.used[i] -= taken
        room = self.get(node)
        if room is not None and room.accepting:
            amounts = list(room.capacity.amounts())
            taken_now = [whole - max(free, 0) for whole, free in zip(amounts, room.free, strict=True)]
            self._counted[node] = (amounts, taken_now)
            for i, (whole, taken) in enumerate(zip(amounts, taken_now, strict=True)):
                self.capacity[i] += whole
                self.used[i] += taken
        self.gained(node)

    def utilisation(self) -> float:
        """How much of the fleet is taken, in the resource of which most is taken."""
        return max((used / whole for used, whole in zip(self.used, self.capacity, strict=True) if whole > 0), default=0.0)

    def below(self, share: float, need: Need, most: int) -> int:
        """How many tasks of this need may still be given before the fleet is taken to `share`: the last one may exceed it."""
        for i, amount in need:
            left = share * self.capacity[i] - self.used[i]
            most = min(most, int(left // amount) + 1 if left > 0 else 0)
        return most

    def best(self, shape: int) -> NodeRoom | None:
        """The node that should take the next task of this shape, or None when no node has room."""
        found = self._by_shape.get(shape)
        if found is None or found.position < self._base:
            found = self._survey(shape)
        else:
            self._catch_up(found)
        heap, need = found.heap, found.need
        while heap:
            entry = heap[0]
            node = self.get(entry[3])
            if node is None or found.latest.get(entry[3]) is not entry:
                heapq.heappop(heap)
            elif not node.accepting or node.room_for(need, 1) <= 0 or (not entry[0] and not node.fits(need)):
                heapq.heappop(heap)
                found.consider(node)
            else:
                return node
        return None

    def _survey(self, shape: int) -> _Candidates:
        """All nodes for a shape that is new here, or that has not been asked for in a long time."""
        if len(self._by_shape) >= SHAPES_KEPT:
            self._by_shape.clear()
        found = self._by_shape[shape] = _Candidates(self.shapes[shape], self._base + len(self._log))
        for node in self.values():
            found.consider(node)
        return found

    def _catch_up(self, found: _Candidates) -> None:
        log, at = self._log, found.position - self._base
        if at == len(log):
            return
        for node_id in dict.fromkeys(log[at:]):
            node = self.get(node_id)
            if node is not None:
                found.consider(node)
        found.position = self._base + len(log)
        if len(found.heap) > 64 + 4 * len(found.latest):
            found.heap = list(found.latest.values())
            heapq.heapify(found.heap)

    def gained(self, node: int) -> None:
        """The node may take more than before: searches look at it again."""
        log = self._log
        log.append(node)
        if len(log) > 1_000 + 4 * len(self):
            kept = min(len(log), len(self))
            self._base += len(log) - kept
            del log[: len(log) - kept]
