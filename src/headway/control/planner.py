"""The planner duty: gives ready tasks to nodes with room (E1 E3 E5 G2).

It works on groups (same tenant, same shape). Heads of groups live in memory and are refilled behind their cursors; the decision
itself is policy.placement.Board.place, a function of heads, shares and room.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway import telemetry
from headway.control.bus import Bus, Freed
from headway.control.clock import Clock
from headway.control.conditions import Conditions
from headway.control.counting import Counting
from headway.control.definitions import Definitions
from headway.control.fleet import UP, Fleet
from headway.control.leader import Leader
from headway.control.sessions import Session, Sessions
from headway.control.supply import Supply
from headway.control.tenants import Tenants
from headway.domain.resources import Capacity
from headway.policy.census import free_tasks
from headway.policy.fairness import Claim
from headway.policy.order import Group, Key, head_limit
from headway.policy.placement import Board, Gate, NodeRoom, Placed, Round
from headway.policy.preemption import Space
from headway.policy.promotion import top_k
from headway.policy.room import Rooms
from headway.policy.short_way import fit, nobody_is_passed
from headway.store.arrays import ints, longs
from headway.store.copy import to_datetime
from headway.store.database import Database
from headway.store.queries import query
from headway.wire.exchange import Order

TOP_K = 2_000  # most tasks handed out in one round: a statement of a few ms
REFILL_ROWS = 4_000  # most keys read in one round, over all groups
LOOK_S = 1.0  # after a round that handed nothing out: a queue may open, a task become due
RESCAN_S = 5.0  # how often groups are looked for afresh: heals every lost wake-up

_LEASE = query("task.lease")
_HEADS = query("task.heads")
_GROUPS = query("task.groups")


@dataclass
class Planner:
    database: Database
    leader: Leader
    fleet: Fleet
    definitions: Definitions
    sessions: Sessions
    tenants: Tenants
    bus: Bus
    clock: Clock
    tell_elsewhere: Callable[[list[int]], None]
    on_stir: list[Callable[[], None]] = field(default_factory=list)  # there is something to do, after a rest perhaps
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _planning: asyncio.Lock = field(default_factory=asyncio.Lock)
    _epoch: int = -1
    _next_rescan: float = 0.0
    _followed: object = None  # the fleet as it was when the rooms were last compared with it

    def __post_init__(self) -> None:
        self.board = Board(self.definitions.shapes, self.claim_of)
        self.conditions = Conditions(self.board, self.definitions)
        self.counting = Counting(self.database, self.definitions, self.board)
        self.supply = Supply(lambda: self.rooms, self.wake.set)
        self.bus.on_ready.append(self.ready)
        self.bus.on_freed.append(self.freed)
        self.bus.on_returned.append(self.returned)
        self.bus.on_fleet.append(self.wake.set)
        self.bus.on_queues.append(self.wake.set)
        self.bus.on_changed.append(self.changed)
        self.bus.on_tenants.append(self._subscriptions_changed)

    @property
    def rooms(self) -> Rooms:
        return self.board.rooms

    def claim_of(self, tenant: int) -> Claim:
        paid = self.tenants.get(tenant)
        cpus = None if paid.max_cpus is None else round(paid.max_cpus * 1000)
        limits = tuple((i, limit) for i, limit in enumerate((cpus, paid.max_memory)) if limit is not None)
        return Claim(paid.weight, paid.max_running, limits, paid.cost_class)

    def _subscriptions_changed(self) -> None:
        self.board.resize()
        self.wake.set()

    # What others tell

    def ready(self, tasks: dict[Group, list[Key]]) -> None:
        if self._epoch < 0:
            return
        for group, keys in tasks.items():
            self.board.head(group).add(keys, len(self.board.heads))
            self.board.touched(group)
            self.conditions.came(group, len(keys))
        self.wake.set()

    def freed(self, room: Freed) -> None:
        for node, count in self._give_room(room).items():
            self._finished(node, count)

    def returned(self, room: Freed) -> None:
        for node in self._give_room(room):
            self.supply.returned(node)

    def heard_room(self, finished: dict[int, int], returned: list[int]) -> None:
        """Other servers wrote finishes and returns of these nodes: count in the database what they hold."""
        if self._epoch < 0:
            return
        self.counting.due.update(finished, returned)
        for node, count in finished.items():
            if node in self.rooms:
                self._finished(node, count)
        for node in returned:
            if node in self.rooms:
                self.supply.returned(node)
        self.wake.set()

    def _give_room(self, room: Freed) -> dict[int, int]:
        """Take attempts off their nodes; returns how many of each node we know."""
        if self._epoch < 0:
            return {}
        counts: dict[int, int] = {}
        for (node, tenant, shape), count in room.items():
            if node not in self.rooms or shape not in self.definitions.shapes:
                self.counting.due.add(node)
                continue
            self.board.hold(node, (tenant, shape), -count)
            counts[node] = counts.get(node, 0) + count
            self.conditions.pressure.freed(count, self.rooms.part(shape))
            self.counting.happened(node)
        if self.counting.due or self.board.hungry or self.board.going:
            self.wake.set()
        return counts

    def _finished(self, node: int, count: int) -> None:
        self.conditions.pressure.ended(count)
        self.supply.finished(node, count)

    def heard_ready(self, group: Group, before: Key) -> None:
        """Another server made tasks of this group ready, none earlier than `before`."""
        if self._epoch >= 0:
            self.board.head(group).look_again_from(before)
            self.board.touched(group)
            self.conditions.came(group)
            self.wake.set()

    def changed(self, groups: list[Group]) -> None:
        """Waiting tasks of these groups were changed in place: what is known of the groups may be wrong."""
        if self._epoch >= 0:
            for group in groups:
                self.board.head(group).rescan()
                self.board.touched(group)
            self.wake.set()

    def rescan(self) -> None:
        self._next_rescan = 0.0
        self.counting.all_soon()
        self.wake.set()

    # The short way

    @property
    def may_reserve(self) -> bool:
        """Whether we plan and nothing waits that might go, by what the last round knew of queues and peak."""
        conditions = self.conditions
        idle = self._epoch >= 0 and nobody_is_passed(self.board, conditions.gate, tight=conditions.tight)
        return idle and self.leader.leads("planner")

    def reserve(self, tasks: dict[Group, list[Key]], freed: Freed | None = None) -> dict[int, int] | None:
        """Room for these tasks now, as task -> node; None unless we plan, nobody else is passed, and all of them fit at once. `freed`: by
        attempts that have ended and will be told of when that is stored."""
        if not self.may_reserve:
            return None
        if any(shape not in self.definitions.shapes for _, shape in tasks):
            return None
        self.conditions.weigh({group: len(keys) for group, keys in tasks.items()})
        known = {at: count for at, count in (freed or {}).items() if at[0] in self.rooms and at[2] in self.definitions.shapes}
        for (node, *group), count in known.items():
            self.board.hold(node, (group[0], group[1]), -count)
        asked = self._round()
        plan = None
        if nobody_is_passed(self.board, asked.gate, tight=self.board.is_tight(asked)):  # a queue may have opened since the last round
            plan = fit(self.board, tasks, asked)
        for (node, *group), count in known.items():
            self.board.hold(node, (group[0], group[1]), count)
        if plan is None:
            return None
        self.counting.reserved({placed.node for placed in plan})
        self._stir()
        return {key[2]: placed.node for placed in plan for key in placed.keys}

    def stored(self, nodes: set[int]) -> None:
        """What was reserved on these nodes is in the database now, or never will be."""
        self.counting.stored(nodes)

    @property
    def leading_epoch(self) -> int:
        return self._epoch

    def recount(self, nodes: set[int]) -> None:
        """What was assumed of these nodes is wrong: count in the database."""
        self.counting.due |= nodes
        self.wake.set()

    # What pre-emption asks

    def late(self, before: datetime.datetime, most: int) -> list[tuple[Group, Key]]:
        """Tasks that should have begun by then and may, as far as quotas go: tenants below their part first, the most overdue first."""
        found = []
        for (tenant, shape), head in self.board.heads.items():
            first = head.first()
            if first is None or first[0] > before or self.conditions.gate(shape, self.conditions.pressure.peak) is Gate.CLOSED:
                continue
            allowed = self.board.usage.allowance(tenant, self.rooms.need(shape), most)
            found += [((tenant, shape), key) for key in itertools.islice(head.waiting(), allowed) if key[0] <= before]
        entitled = self.board.usage.may_stop_others  # the others stop only their own tasks
        return sorted(found, key=lambda late: (not entitled(late[0][0]), late[1]))[:most]

    def spaces(self) -> list[Space]:
        """Every node with what is free there."""
        return [Space(room.id, tuple(room.free), room.capacity, not room.closed) for room in self.rooms.values()]

    def given(self, group: Group, key: Key, node: int) -> None:
        """This task was given away, or is not what we thought: look again at its group and its node."""
        if (head := self.board.heads.get(group)) is not None:
            head.look_again_from(key)
            self.board.touched(group)
        self.recount({node})

    def waiting(self) -> list[Group]:
        """Tenants and shapes that have ready tasks, or may have."""
        return [group for group, head in self.board.heads.items() if len(head) or head.more]

    def read_again(self, group: Group) -> None:
        """Tasks of this group were ended: read it from the beginning."""
        if (head := self.board.heads.get(group)) is not None:
            head.rescan()
            self.board.touched(group)
            self.wake.set()

    def lent(self, group: Group, node: int) -> None:
        """A task was leased to a node beyond its room. It is held from now on, not from the next count: its end may come first."""
        if self._epoch >= 0 and node in self.rooms:
            self.board.hold(node, group, 1)
            self.counting.happened(node)

    def talking(self) -> dict[int, Session]:
        """The sessions of now: a plan made for one boot of a node is not for the next."""
        return dict(self.sessions.by_node)

    # The duty

    async def run_once(self) -> float:
        """One round; returns how long to wait for the next. Rounds never overlap, whoever asks for one."""
        async with self._planning:
            handed = await self._round_of_plans()
        if self.board.quiet:
            return RESCAN_S
        self._stir()
        return 0.0 if handed else LOOK_S

    def _stir(self) -> None:
        for tell in self.on_stir:
            tell()

    async def _round_of_plans(self) -> int:
        """Hand out what may go now; returns how many tasks that was."""
        began = time.monotonic()
        await self._take_over_or_heal(began)
        self._follow_fleet()
        if not any(not room.closed for room in self.rooms.values()):
            return 0
        came = self.conditions.arrivals()
        await self._refill()
        self.conditions.weigh(came)
        asked = self._round()
        plan = self.board.place(asked)
        self.conditions.placed(self.board.tight, plan)
        if not plan:
            return 0
        count = await self._lease(plan)
        telemetry.planned(time.monotonic() - began, asked.most)
        return count

    def _round(self) -> Round:
        """What this round goes by: the time, the conditions, and how many tasks it may hand out."""
        now = self.clock.now()
        conditions = self.conditions
        conditions.look(now)
        most = top_k(free=free_tasks(self.board.lanes, self.rooms), ahead=self.supply.ahead(), most=TOP_K)
        conditions.top_k = most
        pressure = conditions.pressure
        windows = {node: kept.left_s(now) for node, kept in self.board.keeping.nodes.items()}
        horizon = now + datetime.timedelta(seconds=pressure.lead_s)
        early = {shape: datetime.timedelta(seconds=seconds) for shape, seconds in pressure.early.items()}
        return Round(most, horizon, conditions.gate, pressure.due_first, pressure.fill, windows, early)

    def step_down(self) -> None:
        self._epoch = -1
        self._followed = None
        self.board.clear()

    async def _take_over_or_heal(self, now: float) -> None:
        epoch = self.leader.epoch("planner")
        fresh = epoch != self._epoch
        if fresh:
            self.step_down()
            self._epoch = epoch
        if fresh or now > self._next_rescan:
            await self._find_groups()
            # Looking costs with the number of groups: never more than a fiftieth of the time.
            self._next_rescan = now + max(RESCAN_S, 50 * (time.monotonic() - now))
        self._follow_fleet()
        if fresh:
            self.counting.all_soon()
        await self.counting.run_once()

    async def _find_groups(self) -> None:
        """Every group with ready tasks; heads that believe they know it all are told to look again from the beginning."""
        async with self.database.hot() as connection:
            found = {(row["tenant"], row["shape"]) for row in await connection.fetch(_GROUPS)}
        await self.definitions.load_shapes(group[1] for group in found)
        for group in found:
            head = self.board.head(group)
            if not len(head):
                head.rescan()
                self.board.touched(group)
        # Of the others nothing waits, unless a head was told of tasks while we looked: what it knows, or may find, is read again first.
        for group, head in [(g, head) for g, head in self.board.heads.items() if g not in found and (len(head) or not head.more)]:
            if len(head):
                head.rescan()
                self.board.touched(group)
            else:
                self.board.forget(group)

    def _follow_fleet(self) -> None:
        if self._followed is self.fleet.nodes:
            return
        self._followed = self.fleet.nodes
        before = list(self.rooms.capacity)
        for node in self.fleet.nodes.values():
            room = self.rooms.get(node.id)
            if room is None:
                self.board.add_node(NodeRoom(node.id, node.name, node.capacity, closed=node.closed))
                self.counting.joined(node.id)
            elif room.closed != node.closed or room.capacity != node.capacity:
                room.closed = node.closed
                _resize(room, node.capacity)
                self.rooms.changed(node.id)
        for gone in self.rooms.keys() - self.fleet.nodes.keys():
            self.board.remove_node(gone)
        if self.rooms.capacity != before:
            self.board.resize()

    async def _refill(self) -> None:
        """Read on behind the cursors of heads that run low."""
        if not self.board.hungry:
            return
        low = list(self.board.hungry)[: REFILL_ROWS // 4]
        limit = max(4, min(REFILL_ROWS // len(low), 2_000, head_limit(len(self.board.heads))))
        heads = [self.board.heads[group] for group in low]
        news, cursors = [head.news for head in heads], [head.cursor for head in heads]
        async with self.database.hot() as connection:
            rows = await connection.fetch(
                _HEADS, [g[0] for g in low], [g[1] for g in low], [h.cursor[0] for h in heads], [h.cursor[1] for h in heads],
                [h.cursor[2] for h in heads], limit,
            )  # fmt: skip
        await self.definitions.load_shapes(group[1] for group in low)
        found: dict[int, list[Key]] = {}
        for n, start_by_us, cap_ms, task in rows:
            found.setdefault(n - 1, []).append((to_datetime(start_by_us), cap_ms, task))
        for n, (group, head) in enumerate(zip(low, heads, strict=True)):
            if self.board.heads.get(group) is not head:
                continue  # forgotten while we read
            if head.cursor == cursors[n]:  # else an earlier task arrived while we read: look again next round
                head.refill(found.get(n, []), asked=limit, news=news[n])
            self.board.touched(group)

    async def _lease(self, plan: list[Placed]) -> int:
        wanted = sorted([(key[2], placed.node, placed.group[1]) for placed in plan for key in placed.keys])
        nodes = {placed.node for placed in plan}
        sessions = self.talking()
        try:
            async with self.database.hot() as connection:
                rows = await connection.fetch(
                    _LEASE, longs([w[0] for w in wanted]), ints([w[1] for w in wanted]), self._epoch, ints([w[2] for w in wanted]),
                    ints(list(nodes)),
                )
        except BaseException:
            # Unknown whether they were leased: forget what was assumed, and let count and rescan tell.
            self.step_down()
            raise
        self.dispatch(rows, sessions)  # before anything else is asked: they are leased, and their nodes must hear of it
        if len(rows) < len(wanted):
            await self._refused(plan, {row["id"] for row in rows})
        else:
            telemetry.waited(max(0, self.clock.now_us() - min(row["eligible_us"] for row in rows)) / 1e6)
        return len(rows)

    async def _refused(self, plan: list[Placed], leased: set[int]) -> None:
        """Some were cancelled meanwhile, or we no longer lead, or their node was lost: those are ready still."""
        self.counting.due.update(placed.node for placed in plan)
        if not leased:
            await self.database.transact(lambda connection: self.leader.fence(connection, "planner"))
        await self.fleet.refresh()
        for placed in plan:
            node, head = self.fleet.nodes.get(placed.node), self.board.heads.get(placed.group)
            if head is not None and (node is None or node.state != UP) and not leased.issuperset(key[2] for key in placed.keys):
                head.look_again_from(placed.keys[0])
                self.board.touched(placed.group)

    def dispatch_with_controls(self, node: int) -> None:
        """A task was leased to a node where others stop for it: order and controls go out together.

        An order that comes alone finds no room there, and is given back after a second.
        """
        self.bus.control([node])
        self.sessions.look_up(node)
        if not self.sessions.is_here(node):
            self.tell_elsewhere([node])

    def dispatch(self, leased: list[Any], sessions: dict[int, Session]) -> None:
        """Leased rows become orders for their nodes."""
        telemetry.leased(len(leased))
        orders: dict[int, list[Order]] = {}
        for task, attempt, node, definition, data, name, _ in leased:
            orders.setdefault(node, []).append(Order(task, attempt, definition, data, name))
        elsewhere = self.sessions.offer(orders, sessions)
        if elsewhere:
            self.tell_elsewhere(elsewhere)


def _resize(room: NodeRoom, capacity: Capacity) -> None:
    for i, (new, old) in enumerate(zip(capacity.amounts(), room.capacity.amounts(), strict=True)):
        room.free[i] += new - old
    room.capacity = capacity
