"""Room on nodes: what is free, why a node refuses, and for each shape the node that fits best (G2).

`refuse` says why not, in one place: placement, explain and the autoscaler ask the same question. `Rooms` keeps, for all shapes that
ask for the same, the nodes that fit in a heap, and a log of nodes that gained room: a search reads only what changed since the last one,
so its cost does not grow with the fleet.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.domain.resources import DIMENSIONS, Capacity, Resources, describe, missing_labels, shortfall

Need = tuple[tuple[int, int], ...]  # (dimension, amount) of what a shape asks for: zeros cost nothing in the loops below
NEEDS_KEPT = 64  # each costs an entry for every node that fits
SHAPES_KEPT = 4096


@dataclass(frozen=True)
class Kept:
    """For whom a node is kept free; task 0 is one that whoever asks may not know of."""

    asked: Resources
    task: int


@dataclass(slots=True)
class NodeRoom:
    """One node as the planner sees it. `free` may be negative: tasks given ahead wait at the node."""

    id: int
    name: str
    capacity: Capacity
    free: list[int] = field(default_factory=list)
    held: int = 0
    ahead: int = 0  # tasks it should hold in all, though they do not fit at once (see policy.pace)
    closed: str = ""  # why it takes no new tasks
    rests: bool = False  # it gave back what it was given (see policy.rest)
    kept: Kept | None = None  # for tasks that ask for something else, only what ends in time may begin here (see policy.reservation)

    def __post_init__(self) -> None:
        if not self.free:
            self.free = list(self.capacity.amounts())

    def allocate(self, need: Need, count: int) -> None:
        """Take `count` times `need` away (a negative count gives back)."""
        self.held += count
        free = self.free
        for i, amount in need:
            free[i] -= amount * count

    @property
    def at_once(self) -> int:
        """About how many of those it holds fit at once, as if all were alike."""
        over = max((1 - free / most for free, most in zip(self.free, self.capacity.amounts(), strict=True) if most), default=0.0)
        return int(self.held / over) if over > 1 else self.held

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
            if (there := free[i] // amount) < fits:
                fits = there
        return fits if fits > ahead and fits > 0 else ahead if ahead > 0 else 0


def need_of(resources: Resources) -> Need:
    return tuple((i, amount) for i, amount in enumerate(resources.amounts()) if amount)


@dataclass(frozen=True)
class Refusal:
    """Why a node cannot take a task now; `ever` says that an empty node could not either, `closed` that it takes no task at all."""

    node: str
    reason: str
    ever: bool
    closed: bool = False


def refuse(asked: Resources, node: NodeRoom) -> Refusal | None:
    """Why `node` cannot take a task of this shape now, or None."""
    if missing := missing_labels(asked, node.capacity.labels):
        return Refusal(node.name, f"has no label {', '.join(missing)}", ever=True)
    if short := shortfall(asked, node.capacity.amounts()):
        return Refusal(node.name, f"is too small: {', '.join(short)} (asked: {describe(asked)})", ever=True)
    if node.closed:
        return Refusal(node.name, f"takes no new tasks: it {node.closed}", ever=False, closed=True)
    if node.rests:
        return Refusal(node.name, "has just given back what it was given", ever=False)
    if node.kept is not None and node.kept.asked != asked:
        return Refusal(node.name, f"is being kept free for {f'task {node.kept.task}' if node.kept.task else 'another task'}", ever=False)
    if node.room_for(need_of(asked), 1) <= 0:
        return Refusal(node.name, f"is full: {', '.join(shortfall(asked, tuple(node.free)))}", ever=False)
    return None


Looseness = tuple[bool, int, float, int]
Fit = tuple[int, tuple[tuple[int, int, float], ...]]  # labels nobody asked for; (dimension, amount, part of the node that one unit is)


def fit_of(asked: Resources, node: NodeRoom) -> Fit | None:
    """How a shape fits a node when that is empty, or None when it never does: does not change while the node stays what it is."""
    if missing_labels(asked, node.capacity.labels) or shortfall(asked, node.capacity.amounts()):
        return None
    whole = node.capacity.amounts()
    return len(node.capacity.labels) - len(asked.labels), tuple((i, amount, 1.0 / whole[i]) for i, amount in need_of(asked))


def looseness(fit: Fit, node: NodeRoom) -> Looseness | None:
    """Low is better: nodes where it fits at once, then nodes without labels the task does not ask for, then the fullest. None: no room."""
    left, free, late = 0.0, node.free, False
    for i, amount, part in fit[1]:
        there = free[i] - amount
        if there < 0:
            if node.ahead <= node.held or node.kept is not None:
                return None
            late = True
        left += there * part
    return (late, fit[0], left, node.id)


class _Candidates:
    """The nodes that fit what some shapes ask for, best first. An entry counts only while it is the node's latest."""

    __slots__ = ("asked", "fits", "heap", "latest", "need", "position")

    def __init__(self, asked: Resources, position: int) -> None:
        self.asked = asked
        self.need = need_of(asked)
        self.heap: list[Looseness] = []
        self.latest: dict[int, Looseness] = {}
        self.fits: dict[int, Fit | None] = {}
        self.position = position  # how far in the log it has read

    def consider(self, node: NodeRoom) -> None:
        """The node has changed: note it, if it has room now."""
        number = node.id
        try:
            fit = self.fits[number]
        except KeyError:
            fit = self.fits[number] = fit_of(self.asked, node)
        may = not node.closed and not node.rests and (node.kept is None or node.kept.asked == self.asked)
        entry = looseness(fit, node) if fit is not None and may else None
        if entry is not None:
            self.latest[number] = entry
            heapq.heappush(self.heap, entry)
        elif number in self.latest:
            del self.latest[number]


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
        self._by_asked: dict[Resources, _Candidates] = {}  # the same ones: shapes that differ in their rules only share one

    def need(self, shape: int) -> Need:
        found = self._by_shape.get(shape)
        return found.need if found is not None else need_of(self.shapes[shape])

    def allocate(self, node: NodeRoom, need: Need, count: int) -> None:
        """Take `count` times `need` away from the node (a negative count gives back)."""
        counted = self._counted.get(node.id)
        if counted is None:
            node.allocate(need, count)
        else:
            node.held += count
            free, used, taken = node.free, self.used, counted[1]
            for i, amount in need:
                more = amount * count
                before = free[i]
                free[i] = after = before - more
                if before < 0 or after < 0:  # what waits at a node takes nothing of it
                    more = (before if before > 0 else 0) - (after if after > 0 else 0)
                used[i] += more
                taken[i] += more
        if count < 0:
            self.gained(node.id)

    def changed(self, node: int) -> None:
        """The node came, left, or was set anew."""
        for found in self._by_asked.values():
            found.fits.pop(node, None)
        before = self._counted.pop(node, None)
        if before is not None:
            for i, (whole, taken) in enumerate(zip(*before, strict=True)):
                self.capacity[i] -= whole
                self.used[i] -= taken
        room = self.get(node)
        if room is not None and not room.closed:
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

    def part(self, shape: int) -> float:
        """The largest part of any resource of the fleet that one task of this shape takes."""
        return max((amount / self.capacity[i] for i, amount in self.need(shape) if self.capacity[i] > 0), default=0.0)

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
        elif found.position < self._base + len(self._log):
            self._catch_up(found)
        heap, latest, need = found.heap, found.latest, found.need
        while heap:
            entry = heap[0]
            number = entry[3]
            if latest.get(number) is not entry:
                heapq.heappop(heap)
                continue
            node = self[number]
            if not entry[0]:  # it only became fuller since: it is the best as long as one more fits
                free = node.free
                for i, amount in need:
                    if free[i] < amount:
                        break
                else:
                    return node
            fit = found.fits[number] if node.ahead > node.held else None
            now = looseness(fit, node) if fit is not None else None
            if now is not None and now[0] == entry[0]:
                return node
            heapq.heappop(heap)
            if now is None:
                del latest[number]
            else:
                latest[number] = now
                heapq.heappush(heap, now)
        return None

    def _survey(self, shape: int) -> _Candidates:
        """All nodes for a shape that is new here, or that has not been asked for in a long time."""
        asked = self.shapes[shape]
        if len(self._by_asked) >= NEEDS_KEPT or len(self._by_shape) >= SHAPES_KEPT:
            self._by_asked.clear()
            self._by_shape.clear()
        found = self._by_asked.get(asked)
        if found is None or found.position < self._base:
            found = self._by_asked[asked] = _Candidates(asked, self._base + len(self._log))
            for node in self.values():
                found.consider(node)
        else:
            self._catch_up(found)
        self._by_shape[shape] = found
        return found

    def _catch_up(self, found: _Candidates) -> None:
        log, at = self._log, found.position - self._base
        for number in set(log[at:]):
            node = self.get(number)
            if node is not None:
                found.consider(node)
            else:
                found.latest.pop(number, None)
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
