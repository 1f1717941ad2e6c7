"""Which task goes next, and to which node (E1 E2 E5 G2): a function of what waits, who holds what, the nodes' room and the time.

The order, best first:

1. tasks that are due (`start_by` within the horizon) of tenants that hold less than they are entitled to, earliest first;
2. everything else: the tenant with the smaller share first, then the earlier task.

Everything is kept between rounds: a round costs what it hands out, not what waits. Tenants that wait with tasks of one shape stand in a
lane. Ranks only fall behind what was noted when a tenant gets something, so an old note is corrected when it comes to the front;
whatever improves a rank (room given back, an earlier task, a task becoming due) notes it anew.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headway.domain.resources import Resources
from headway.policy.fairness import EQUAL, Claim, Usage
from headway.policy.order import BEGINNING, Group, Head, Key
from headway.policy.room import Need, NodeRoom, Refusal, Rooms, need_of, refuse

__all__ = ["Board", "Gate", "Need", "NodeRoom", "Placed", "Refusal", "Round", "need_of", "refuse"]

LOW_HEAD = 64  # a head with fewer known tasks is read on
_LAST = 2**63


class Gate(Enum):
    """Whether tasks of a shape may be handed out now."""

    OPEN = "open"
    DUE = "only what is due"
    CLOSED = "closed"


Rank = tuple[int, float, Key]


@dataclass(frozen=True)
class Placed:
    group: Group
    node: int
    keys: list[Key]


@dataclass(frozen=True)
class Round:
    """What one round of planning goes by."""

    most: int
    horizon: datetime.datetime  # a task with a start_by up to here is due
    gate: Callable[[int, bool], Gate] = lambda _shape, _peak: Gate.OPEN  # of a shape, off or at peak
    peak: bool = False
    fill: float | None = None  # what can wait may take the fleet up to here only: then it is peak


@dataclass
class Lane:
    """The tenants that wait with tasks of one shape."""

    order: list[tuple[Rank, int]] = field(default_factory=list)
    noted: dict[int, Rank] = field(default_factory=dict)  # the entry of each tenant that counts
    dues: list[tuple[Key, int]] = field(default_factory=list)  # when they become due
    awaited: dict[int, Key] = field(default_factory=dict)  # the entry of each tenant in `dues` that counts
    parked: set[int] = field(default_factory=set)  # not due, while only that may go
    tenants: set[int] = field(default_factory=set)  # everyone with a known task

    def note(self, tenant: int, rank: Rank) -> None:
        """A rank that may be better than what was noted."""
        before = self.noted.get(tenant)
        if before is None or rank < before:
            self.noted[tenant] = rank
            heapq.heappush(self.order, (rank, tenant))
            self.parked.discard(tenant)
            if len(self.order) > 64 + 4 * len(self.noted):
                self.order = [(one, of) for of, one in self.noted.items()]
                heapq.heapify(self.order)

    def drop(self, tenant: int) -> None:
        self.noted.pop(tenant, None)

    def wait_until_due(self, tenant: int, first: Key) -> None:
        before = self.awaited.get(tenant)
        if before is None or first < before:
            self.awaited[tenant] = first
            heapq.heappush(self.dues, (first, tenant))


class Board:
    """What waits, what is held, and where there is room."""

    def __init__(self, shapes: Mapping[int, Resources], claim_of: Callable[[int], Claim] = lambda _: EQUAL) -> None:
        self.shapes = shapes
        self.claim_of = claim_of
        self.clear()

    def clear(self) -> None:
        self.usage = Usage(self.claim_of)
        self.rooms = Rooms(self.shapes)
        self.heads: dict[Group, Head] = {}
        self.hungry: set[Group] = set()  # heads to read on
        self.peaked = False  # the last round ended at peak
        self.lanes: dict[int, Lane] = {}
        self.horizon = BEGINNING[0]
        self._lanes_of: dict[int, set[int]] = {}  # tenant -> shapes it waits with
        self._held: dict[int, dict[Group, int]] = {}  # by node

    # What happens

    def head(self, group: Group) -> Head:
        found = self.heads.get(group)
        if found is None:
            found = self.heads[group] = Head()
            self.hungry.add(group)
        return found

    def touched(self, group: Group) -> None:
        """The group's head was told of tasks, read on, or emptied."""
        head = self.heads[group]
        if head.more and len(head) < LOW_HEAD:
            self.hungry.add(group)
        else:
            self.hungry.discard(group)
        self._enter(group, head)

    def forget(self, group: Group) -> None:
        """Nothing of this group waits."""
        del self.heads[group]
        self.hungry.discard(group)
        self._leave(group)

    def hold(self, node: int, group: Group, count: int) -> None:
        """`count` more attempts are held by the node (given back, if negative)."""
        tenant, shape = group
        need = self.rooms.need(shape)
        self.rooms.allocate(self.rooms[node], need, count)
        there = self._held.setdefault(node, {})
        left = there.get(group, 0) + count
        if left:
            there[group] = left
        else:
            there.pop(group, None)
        self.usage.add(tenant, need, count)
        if count < 0:
            self._renote(tenant)

    def set_held(self, node: int, counts: Mapping[Group, int]) -> None:
        """What a node holds was counted: absolutely, whatever was assumed."""
        before = self._held.get(node, {})
        for group in {*before, *counts}:
            if (more := counts.get(group, 0) - before.get(group, 0)) != 0:
                self.hold(node, group, more)

    def add_node(self, room: NodeRoom) -> None:
        self.rooms[room.id] = room
        self.rooms.changed(room.id)

    def remove_node(self, node: int) -> None:
        self.set_held(node, {})
        self._held.pop(node, None)
        del self.rooms[node]
        self.rooms.changed(node)

    def resize(self) -> None:
        """The fleet or the subscriptions changed: every share and rank did."""
        self.usage.resize(tuple(self.rooms.capacity))
        self.usage.reclaim()
        for tenant in self._lanes_of:
            self._renote(tenant)

    # What is decided

    def place(self, asked: Round) -> list[Placed]:
        """Hand out the best tasks. Takes them from the heads, and their room from the nodes."""
        self.horizon = asked.horizon
        peak, most = asked.peak, asked.most
        doors = {shape: asked.gate(shape, peak) for shape in self.lanes}
        shy = {shape for shape in doors if asked.gate(shape, True) is not Gate.OPEN} if asked.fill is not None and not peak else set()
        heap: list[tuple[Rank, int]] = []
        for shape, lane in self.lanes.items():
            self._surface(shape, lane, doors[shape])
            if (top := self._top(shape, lane, doors[shape])) is not None:
                heap.append((top[0], shape))
        heapq.heapify(heap)
        plan: list[Placed] = []
        while heap and most > 0:
            rank, shape = heap[0]
            found = self.lanes.get(shape)
            top = None if found is None else self._top(shape, found, doors[shape])
            if found is None or top is None:
                heapq.heappop(heap)
                continue
            if top[0] != rank:
                heapq.heapreplace(heap, (top[0], shape))
                continue
            node = self.rooms.best(shape)
            if node is None:
                heapq.heappop(heap)  # no room for this shape: it waits for the next round
                continue
            allowed = min(most, self._run(found, shape, top, heap, due_only=shape in shy or doors[shape] is Gate.DUE))
            if shape in shy and rank[2][0] > self.horizon and asked.fill is not None:
                allowed = self.rooms.below(asked.fill, self.rooms.need(shape), allowed)
                if allowed <= 0:  # from here on it is peak
                    peak, shy = True, set()
                    doors = {one: asked.gate(one, True) for one in self.lanes}
                    continue
            placed = self._take(found, shape, top[1], node, allowed)
            if placed is not None:
                plan.append(placed)
                most -= len(placed.keys)
        self.peaked = peak
        return plan

    def _take(self, lane: Lane, shape: int, tenant: int, node: NodeRoom, allowed: int) -> Placed | None:
        """Hand tasks of the tenant to the node, as many as room and quotas allow."""
        need = self.rooms.need(shape)
        count = self.usage.allowance(tenant, need, node.room_for(need, allowed))
        if count <= 0:
            lane.drop(tenant)  # at its quota: it comes back when it holds less
            return None
        group = (tenant, shape)
        head = self.heads[group]
        keys = head.take(count)
        self.hold(node.id, group, len(keys))
        if head.more and len(head) < LOW_HEAD:
            self.hungry.add(group)
        if not len(head):
            self._leave(group)
        return Placed(group, node.id, keys)

    def fit(self, tasks: Mapping[Group, list[Key]], asked: Round) -> list[Placed] | None:
        """Room for all of these tasks at once, or none of it: the short way, when nothing else waits."""
        plan: list[Placed] = []
        for group, keys in tasks.items():
            if not self._fit(group, keys, asked, plan):
                for placed in plan:
                    self.hold(placed.node, placed.group, -len(placed.keys))
                return None
        return plan

    def _fit(self, group: Group, keys: list[Key], asked: Round, plan: list[Placed]) -> bool:
        tenant, shape = group
        door, need = asked.gate(shape, asked.peak), self.rooms.need(shape)
        if door is Gate.CLOSED or (door is Gate.DUE and keys[-1][0] > asked.horizon):
            return False
        if self.usage.allowance(tenant, need, len(keys)) < len(keys):
            return False
        while keys:
            node = self.rooms.best(shape)
            if node is None:
                return False
            taken = keys[: node.room_for(need, len(keys))]
            self.hold(node.id, group, len(taken))
            plan.append(Placed(group, node.id, taken))
            keys = keys[len(taken) :]
        return True

    def free_tasks(self) -> float:
        """About how many tasks, of the shapes that wait, the fleet has room for."""
        if not self.lanes:
            return 0.0
        needs = [self.rooms.need(shape) for shape in itertools.islice(self.lanes, 16)]
        total = [0] * len(self.rooms.capacity)
        for need in needs:
            for i, amount in need:
                total[i] += amount
        free = [whole - used for whole, used in zip(self.rooms.capacity, self.rooms.used, strict=True)]
        return min((left * len(needs) / asked for left, asked in zip(free, total, strict=True) if asked), default=1e9)

    # Ranks

    def _rank(self, tenant: int, key: Key) -> Rank:
        share = self.usage.share(tenant)
        if key[0] <= self.horizon and share < self.usage.level:
            return (0, 0.0, key)
        return (1, share, key)

    def _first(self, tenant: int, shape: int) -> Key | None:
        head = self.heads.get((tenant, shape))
        return head.first() if head is not None else None

    def _top(self, shape: int, lane: Lane, door: Gate) -> tuple[Rank, int] | None:
        """The tenant to be served next in this lane, with its rank of now."""
        if door is Gate.CLOSED:
            return None
        while lane.order:
            rank, tenant = lane.order[0]
            first = self._first(tenant, shape)
            if lane.noted.get(tenant) != rank or first is None:
                heapq.heappop(lane.order)
                continue
            now = self._rank(tenant, first)
            if door is Gate.DUE and first[0] > self.horizon:
                heapq.heappop(lane.order)
                lane.drop(tenant)
                lane.parked.add(tenant)
                lane.wait_until_due(tenant, first)
            elif now == rank:
                return lane.order[0]
            else:
                lane.noted[tenant] = now
                heapq.heapreplace(lane.order, (now, tenant))
                if first[0] > self.horizon:
                    lane.wait_until_due(tenant, first)
        return None

    def _run(self, lane: Lane, shape: int, top: tuple[Rank, int], heap: list[tuple[Rank, int]], *, due_only: bool) -> int:
        """How many tasks the first tenant of the lane may get before somebody else is next: at least one."""
        rank, tenant = top
        head, need = self.heads[(tenant, shape)], self.rooms.need(shape)
        most = len(head)
        if rank[0] == 0 or (due_only and rank[2][0] <= self.horizon):
            most = head.run_before((self.horizon, _LAST, _LAST))
        if rank[0] == 0:
            most = self.usage.until(tenant, need, self.usage.level, most)
        others = lane.order[1:3]  # the smallest of the rest is a child of a heap's root
        for noted, other_shape in heap[1:3]:
            other = self.lanes.get(other_shape)
            if other is not None and other.order:
                others.append((noted, other.order[0][1]))
        if not others:
            return most
        bound, of = min(others)
        if of == tenant or rank[0] == bound[0] == 0:
            return min(most, head.run_before(bound[2]))
        return self.usage.until(tenant, need, bound[1], most) if rank[0] == 1 else most

    def _renote(self, tenant: int) -> None:
        """The tenant holds less, or its share is another."""
        for shape in self._lanes_of.get(tenant, ()):
            lane, first = self.lanes[shape], self._first(tenant, shape)
            if first is not None and tenant not in lane.parked:
                lane.note(tenant, self._rank(tenant, first))

    def _surface(self, shape: int, lane: Lane, door: Gate) -> None:
        """Tenants whose first task has become due since the last round, and those that were parked while only that might go."""
        while lane.dues and lane.dues[0][0][0] <= self.horizon:
            key, tenant = heapq.heappop(lane.dues)
            if lane.awaited.get(tenant) != key:
                continue
            del lane.awaited[tenant]
            if (first := self._first(tenant, shape)) is None:
                continue
            if first[0] > self.horizon:
                lane.wait_until_due(tenant, first)
            else:
                lane.note(tenant, self._rank(tenant, first))
        if lane.parked and door is Gate.OPEN:
            for tenant in list(lane.parked):
                if (first := self._first(tenant, shape)) is not None:
                    lane.note(tenant, self._rank(tenant, first))
            lane.parked.clear()

    def _enter(self, group: Group, head: Head) -> None:
        tenant, shape = group
        first = head.first()
        if first is None:
            self._leave(group)
            return
        lane = self.lanes.get(shape)
        if lane is None:
            lane = self.lanes[shape] = Lane()
        if tenant not in lane.tenants:
            lane.tenants.add(tenant)
            self._lanes_of.setdefault(tenant, set()).add(shape)
            self.usage.waits(tenant, 1)
        if first[0] > self.horizon:
            lane.wait_until_due(tenant, first)
        if tenant not in lane.parked or first[0] <= self.horizon:
            lane.note(tenant, self._rank(tenant, first))

    def _leave(self, group: Group) -> None:
        tenant, shape = group
        lane = self.lanes.get(shape)
        if lane is None or tenant not in lane.tenants:
            return
        lane.tenants.discard(tenant)
        lane.parked.discard(tenant)
        lane.drop(tenant)
        self._lanes_of[tenant].discard(shape)
        if not self._lanes_of[tenant]:
            del self._lanes_of[tenant]
        if not lane.tenants:
            del self.lanes[shape]
        self.usage.waits(tenant, -1)
