"""Which task goes next, and to which node (E1 E2 E5 G2): a function of what waits, who holds what, the nodes' room and the time.

The order, best first:

1. tasks that are due (they stand within the horizon) of tenants that hold less than they are entitled to, earliest first;
2. at peak, other tasks that are due: the tenant with the smaller share first, then the earlier task;
3. everything else, likewise.

A task stands at its `start_by`, or earlier when rooms of its size are rare: small tasks would break them up (policy.promotion.early).

Everything is kept between rounds: a round costs what it hands out, not what waits. Tenants that wait with tasks of one shape stand in a
lane. Ranks only fall behind what was noted when a tenant gets something, so an old note is corrected when it comes to the front;
whatever improves a rank (room given back, an earlier task, a task becoming due) notes it anew.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Mapping

from headway.domain.resources import Resources
from headway.policy import census
from headway.policy.fairness import EQUAL, Claim, Usage
from headway.policy.lanes import DUE, SOONER, Entry, Lane, Top
from headway.policy.order import AFTER_ALL, BEGINNING, LOW_HEAD, Group, Head, Key
from headway.policy.reservation import Keeping
from headway.policy.room import Need, NodeRoom, Refusal, Rooms, fit_of, need_of, refuse
from headway.policy.rounds import Gate, Placed, Round

__all__ = ["Board", "Gate", "Need", "NodeRoom", "Placed", "Refusal", "Round", "need_of", "refuse"]


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
        self.tight = False  # the last round filled the fleet as far as what can wait may
        self.sooner = 0.0  # added to the share of a tenant whose task is due
        self.flooded = False  # more is due than the fleet holds: parts decide, or one tenant's backlog would shut out all others
        self.lanes: dict[int, Lane] = {}
        self.closed: set[int] = set()  # shapes of the last round whose tasks might not be handed out, due or not
        self.keeping = Keeping(self.rooms, self.heads)
        self.horizon = BEGINNING[0]
        self.early: Mapping[int, datetime.timedelta] = {}
        self._lanes_of: dict[int, set[int]] = {}  # tenant -> shapes it waits with
        self._freed: set[int] = set()  # tenants that hold less since the last round
        self._held: dict[int, dict[Group, int]] = {}  # by node

    @property
    def empty(self) -> bool:
        """Nothing waits, and nothing may wait unread."""
        return not (self.lanes or self.hungry)

    @property
    def quiet(self) -> bool:
        """Nothing waits, and no node holds anything."""
        return self.empty and not any(self._held.values())

    @property
    def going(self) -> dict[int, Lane]:
        """The lanes that count for how much waits and is due: what a paused or closed queue holds back presses nobody."""
        return {shape: lane for shape, lane in self.lanes.items() if shape not in self.closed} if self.closed else self.lanes

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
        self._hold(self.rooms[node], group, self.rooms.need(group[1]), count)
        if count < 0:
            self._freed.add(group[0])

    def _hold(self, room: NodeRoom, group: Group, need: Need, count: int) -> None:
        self.rooms.allocate(room, need, count)
        there = self._held.get(room.id)
        if there is None:
            there = self._held[room.id] = {}
        left = there.get(group, 0) + count
        if left:
            there[group] = left
        else:
            there.pop(group, None)
        self.usage.add(group[0], need, count)

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
        self._begin_round(asked)
        tight, most = self.is_tight(asked), asked.most
        doors = self._doors(asked, tight)
        needs = {shape: self.rooms.need(shape) for shape in doors}
        shy = {shape for shape in doors if asked.gate(shape, True) is not Gate.OPEN} if asked.fill is not None and not tight else set()
        heap = self._tops(doors)
        plan: list[Placed] = []
        stale: set[int] = set()  # lanes whose best may be another since it was looked at
        rooms: dict[int, int] = {}  # tasks a node had room for when the round came to it
        served: set[tuple[int, int]] = set()  # (node, tenant)
        best, lanes = self.rooms.best, self.lanes
        short: Top | None = None  # the first in the order that is due and finds no room
        before = 0  # what was planned when it came to that
        while heap and most > 0:
            first = heap[0]
            tenant, shape = first[3], first[4]
            if shape in stale:
                stale.discard(shape)
                self._look(shape, doors[shape], heap)
                continue
            node = best(shape)
            if node is None:
                heapq.heappop(heap)  # no room for this shape: it waits for the next round
                if short is None and first[0] == DUE:
                    short, before = first, len(plan)
                continue
            lane, need = lanes[shape], needs[shape]
            allowed = room = node.room_for(need, most)
            if room > 1:
                # All of a round is leased at once, so a tenant's part of the room a node had may be one turn; then, of what is left.
                whole = rooms.setdefault(node.id, room)
                turn = int((room if (node.id, tenant) in served else whole) * self.usage.part(tenant)) or 1
                served.add((node.id, tenant))
                allowed = min(room, self._run(lane, need, heap, turn, due_only=shape in shy or doors[shape] is Gate.DUE))
            if shape in shy and first[2][0] > lane.horizon and asked.fill is not None:
                allowed = self.rooms.below(asked.fill, need, allowed)
                if allowed <= 0:  # the rest is kept for urgent tasks
                    tight, shy, stale = True, set(), set(doors)
                    doors = self._doors(asked, tight)
                    continue
            placed = self._take(lane, (tenant, shape), need, node, allowed)
            if placed is not None:
                plan.append(placed)
                most -= len(placed.keys)
                for other in self._lanes_of.get(tenant, ()):
                    if other != shape and (order := lanes[other].order) and order[0][2] == tenant:
                        stale.add(other)
            self._look(shape, doors[shape], heap)
        if asked.windows and most > 0:
            plan += self._backfill(asked.windows, doors, most)
        if short is not None and len(plan) > before:
            self.keeping.passed_by((short[3], short[4]), short[2][2], [(one.group[1], len(one.keys)) for one in plan[before:]])
        self.tight = tight
        return plan

    def _doors(self, asked: Round, tight: bool) -> dict[int, Gate]:
        """What may go of each lane. Who waits only where nothing may go does not wait: it takes no part from others."""
        doors = {shape: asked.gate(shape, tight) for shape in self.lanes}
        closed = {shape for shape, door in doors.items() if door is Gate.CLOSED}
        if closed != self.closed:
            for shape in closed ^ self.closed:
                for tenant in self.lanes[shape].tenants if shape in self.lanes else ():
                    self.usage.waits(tenant, -1 if shape in closed else 1)
            self.closed = closed
        return doors

    def _begin_round(self, asked: Round) -> None:
        """What has changed since the last one counts from now on."""
        self.horizon, self.early = asked.horizon, asked.early
        for shape, lane in self.lanes.items():
            lane.move(asked.horizon, asked.early.get(shape))
        if self.sooner != (sooner := SOONER if asked.due_first and not self.flooded else 0.0):
            self.sooner = sooner
            self._freed.update(self._lanes_of)
        for tenant in self._freed:
            self._renote(tenant)
        self._freed.clear()
        if self.keeping.busy:
            self.keeping.review()

    def _tops(self, doors: Mapping[int, Gate]) -> list[Top]:
        """A heap of the best of each lane that may go."""
        heap: list[Top] = []
        for shape, lane in self.lanes.items():
            self._surface(shape, lane, doors[shape])
            if (top := self._top(lane, doors[shape])) is not None:
                heap.append(lane.stands(top))
        heapq.heapify(heap)
        return heap

    def _backfill(self, windows: Mapping[int, float], doors: Mapping[int, Gate], most: int) -> list[Placed]:
        """Tasks that will have ended by their caps before a kept node has room for whom it is kept, in order."""
        plan: list[Placed] = []
        for number, window in windows.items():
            node = self.rooms.get(number)
            if node is None or node.kept is None or node.rests:
                continue
            shapes = [shape for shape in self.lanes if shape in doors and fit_of(self.shapes[shape], node) is not None]
            lanes = [(self.lanes[shape], doors[shape]) for shape in shapes]
            tops = sorted(lane.stands(top) for lane, door in lanes if (top := self._top(lane, door)) is not None)
            for _, _, key, tenant, shape in tops:
                need = self.rooms.need(shape)
                if len(plan) < most and key[1] <= window * 1000 and node.fits(need):
                    placed = self._take(self.lanes[shape], (tenant, shape), need, node, 1)
                    plan += [placed] if placed is not None else []
        return plan

    def is_tight(self, asked: Round) -> bool:
        """Whether only the room that is kept for urgent tasks is left."""
        return asked.fill is not None and self.rooms.utilisation() >= asked.fill

    def _look(self, shape: int, door: Gate, heap: list[Top]) -> None:
        """The first lane of the heap may have another best: put it where it belongs now."""
        lane = self.lanes.get(shape)
        top = self._top(lane, door) if lane is not None else None
        if lane is None or top is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, lane.stands(top))

    def _take(self, lane: Lane, group: Group, need: Need, node: NodeRoom, allowed: int) -> Placed | None:
        """Hand tasks of the group to the node, as many as its tenant's quotas allow."""
        count = self.usage.allowance(group[0], need, allowed) if self.usage.tenants[group[0]].limited else allowed
        if count <= 0:
            lane.drop(group[0])  # at its quota: it comes back when it holds less
            return None
        head = lane.tenants[group[0]]
        keys = head.take(count)
        self._hold(node, group, need, len(keys))
        known = len(head.keys) - head.taken
        if known and (first := head.keys[head.taken])[0] > lane.horizon:
            lane.wait_until_due(group[0], first)
        if known < LOW_HEAD:
            if head.more:
                self.hungry.add(group)
            if not known:
                self._leave(group)
        return Placed(group, node.id, keys)

    def divide(self, *, due_first: bool) -> None:
        """Find anew what a tenant is entitled to. At peak, what can wait asks for nothing yet, and leaves its part to what is due.

        Unless that is more than the fleet holds at once: then in the order everyone has an equal part, and no backlog delays another's
        single task (E5).
        """
        due = census.due(self.going, self.rooms)
        self.flooded = sum(due.values()) > 1.0
        self.usage.divide(due, self.rooms.utilisation(), evenly=self.flooded or not due_first)

    def divide_evenly(self) -> None:
        """In the order everyone has an equal part. What each asks for is not counted: with 100,000 tenants that takes 70 ms."""
        self.flooded = False
        self.usage.order_evenly()

    # Ranks

    def _entry(self, lane: Lane, tenant: int, shape: int, first: Key) -> Entry:
        rank = self.usage.share(tenant)
        if first[0] <= lane.horizon:
            rank = DUE if rank < self.usage.level else rank + self.sooner
        return (rank, first, tenant, shape)

    def _top(self, lane: Lane, door: Gate) -> Entry | None:
        """The tenant to be served next in this lane, with its entry of now."""
        if door is Gate.CLOSED:
            return None
        order, noted, tenants = lane.order, lane.noted, lane.tenants
        shares, level, horizon, sooner = self.usage.tenants, self.usage.level, lane.horizon, self.sooner
        while order:
            entry = order[0]
            tenant = entry[2]
            if noted.get(tenant) is not entry:
                heapq.heappop(order)
                continue
            if door is Gate.DUE and sooner and entry[0] >= 0:
                return None  # nothing behind it is due
            head = tenants[tenant]
            first = head.keys[head.taken]
            rank = shares[tenant].share
            if first[0] <= horizon:
                rank = DUE if rank < level else rank + sooner
            elif door is Gate.DUE or entry[0] < 0 or first is not entry[1]:  # not due, or no longer: leads may shrink
                lane.wait_until_due(tenant, first)
                if door is Gate.DUE:
                    heapq.heappop(order)
                    lane.drop(tenant)
                    lane.parked.add(tenant)
                    continue
            if rank == entry[0] and first is entry[1]:
                return entry
            noted[tenant] = entry = (rank, first, tenant, entry[3])
            heapq.heapreplace(order, entry)
        return None

    def _run(self, lane: Lane, need: Need, heap: list[Top], turn: int, *, due_only: bool) -> int:
        """How many tasks the first tenant of the lane may get before somebody else is next: at least a turn."""
        rank, first, tenant, _ = lane.order[0]
        head = lane.tenants[tenant]
        most = len(head)
        if rank < 0 or (due_only and first[0] <= lane.horizon):
            most = head.run_before((lane.horizon, AFTER_ALL, AFTER_ALL))
        bound = self._next(lane, heap)
        if bound is not None and rank != DUE and DUE != bound[0] <= rank and (rank < 0) == (bound[0] < 0) and bound[3] != tenant:
            return min(most, turn)  # equal shares: turn by turn
        if rank == DUE:
            most = self.usage.until(tenant, need, self.usage.level, most)
        if bound is None or rank < 0 <= bound[0]:
            return most
        if bound[3] == tenant or rank == bound[0] == DUE:
            return min(most, head.run_before(lane.meets(bound)))
        if rank == DUE:
            return most
        share = bound[0] if bound[0] >= 0 else bound[0] - SOONER
        return min(most, max(self.usage.until(tenant, need, share, most), turn))

    def _next(self, lane: Lane, heap: list[Top]) -> Top | None:
        """Who would be served after the first of this lane, which is the first of all: the smallest of the rest is a child of a root."""
        own = min(lane.order[1:3], default=None)
        return min((*heap[1:3], lane.stands(own)) if own is not None else heap[1:3], default=None)

    def _renote(self, tenant: int) -> None:
        """The tenant holds less, or its share is another."""
        share = self.usage.share(tenant)
        due = DUE if share < self.usage.level else share + self.sooner
        for shape in self._lanes_of.get(tenant, ()):
            lane = self.lanes[shape]
            if tenant not in lane.parked:
                head = lane.tenants[tenant]
                first = head.keys[head.taken]
                lane.note((due if first[0] <= lane.horizon else share, first, tenant, shape))

    def _surface(self, shape: int, lane: Lane, door: Gate) -> None:
        """Tenants whose first task has become due since the last round, and those that were parked while only that might go."""
        while lane.dues and lane.dues[0][0][0] <= lane.horizon:
            key, tenant = heapq.heappop(lane.dues)
            if lane.awaited.get(tenant) != key:
                continue
            del lane.awaited[tenant]
            if (head := lane.tenants.get(tenant)) is None:
                continue
            first = head.keys[head.taken]
            if first[0] > lane.horizon:
                lane.wait_until_due(tenant, first)
            else:
                lane.note(self._entry(lane, tenant, shape, first))
        if lane.parked and door is Gate.OPEN:
            for tenant in list(lane.parked):
                head = lane.tenants[tenant]
                lane.note(self._entry(lane, tenant, shape, head.keys[head.taken]))
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
            lane.move(self.horizon, self.early.get(shape))
        if tenant not in lane.tenants:
            lane.tenants[tenant] = head
            self._lanes_of.setdefault(tenant, set()).add(shape)
            if shape not in self.closed:
                self.usage.waits(tenant, 1)
        if first[0] > lane.horizon:
            lane.wait_until_due(tenant, first)
        if tenant not in lane.parked or first[0] <= lane.horizon:
            lane.note(self._entry(lane, tenant, shape, first))

    def _leave(self, group: Group) -> None:
        tenant, shape = group
        lane = self.lanes.get(shape)
        if lane is None or tenant not in lane.tenants:
            return
        del lane.tenants[tenant]
        lane.parked.discard(tenant)
        lane.drop(tenant)
        self._lanes_of[tenant].discard(shape)
        if not self._lanes_of[tenant]:
            del self._lanes_of[tenant]
        if not lane.tenants:
            del self.lanes[shape]
        if shape not in self.closed:
            self.usage.waits(tenant, -1)
