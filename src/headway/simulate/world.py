"""A fleet in simulated time: tasks arrive, are placed by policy.placement, run and end.

Policies: `headway` is what the planner does (shares, due tasks, peak); `fifo` takes them as they come; `priority` takes urgent ones first,
then as they come. All three use the same nodes and the same placement.
"""

from __future__ import annotations

import datetime
import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from headway.domain.queues import Queue
from headway.domain.resources import GIB, Capacity
from headway.policy.fairness import jain
from headway.policy.order import Head, Key
from headway.policy.peak import BEGINS, KEEP_S, is_peak, judge
from headway.policy.placement import Board, Gate, NodeRoom, Round
from headway.policy.promotion import lead, top_k
from headway.simulate.load import KINDS, Arrival, shapes

POLICIES = ("headway", "fifo", "priority")
GRACE_S = 1.0  # a start so much after its time is not counted as a miss
SAMPLE_S = 60.0
FAIRNESS_S = 300.0
_EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Fleet:
    nodes: int = 10
    cpus: float = 8.0
    memory_gib: float = 32.0
    tick_s: float = 1.0  # a round of planning


@dataclass
class Waits:
    """Waiting times of one kind, in buckets that grow by a tenth."""

    count: int = 0
    missed: int = 0
    total: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float, *, missed: bool) -> None:
        self.count += 1
        self.missed += missed
        self.total += seconds
        bucket = math.ceil(math.log(max(seconds, 0.001) / 0.001, 1.1))
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def quantile(self, part: float) -> float:
        left = part * self.count
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return float(0.001 * 1.1**bucket)
        return 0.0


@dataclass
class Outcome:
    """What became of a load under one policy."""

    policy: str
    fleet: Fleet
    waits: dict[str, Waits] = field(default_factory=lambda: {kind: Waits() for kind in KINDS})
    utilisation: list[tuple[float, float]] = field(default_factory=list)  # (time, part taken)
    waiting: list[tuple[float, int]] = field(default_factory=list)
    jain: float = 1.0
    peak_s: float = 0.0
    put_off_cpus: float = 0.0  # the most that waited only because it was peak
    ended_at: float = 0.0

    @property
    def missed(self) -> float:
        """Part of all tasks that began too late."""
        return sum(waits.missed for waits in self.waits.values()) / max(sum(waits.count for waits in self.waits.values()), 1)

    @property
    def mean_utilisation(self) -> float:
        return sum(part for _, part in self.utilisation) / max(len(self.utilisation), 1)


class World:
    """One run. Times are seconds since its begin; keys of the order carry them as they are."""

    def __init__(self, policy: str, fleet: Fleet) -> None:
        self.policy, self.fleet = policy, fleet
        self.outcome = Outcome(policy, fleet)
        resources, self.rules = shapes()
        self.board = Board(resources)
        capacity = Capacity(round(fleet.cpus * 1000), round(fleet.memory_gib * GIB), 10_000 * GIB)
        for number in range(1, fleet.nodes + 1):
            self.board.add_node(NodeRoom(number, f"n{number}", capacity))
        self.board.resize()
        self.board.horizon = cast(Any, -1.0)
        self.now = 0.0
        self.peak = False
        self.urgent_at = -math.inf
        self.running: list[tuple[float, int, int, int, int]] = []  # (end, node, tenant in the order, shape, whose)
        self.seconds: dict[int, tuple[float, float, float, int]] = {}  # task -> (arrived, start_by, run time, tenant)
        self.waiting = 0
        self.ended = 0
        self.drain_per_s = 0.0
        self.holding: dict[int, float] = {}  # by tenant: dominant share of the fleet
        self.wanting: dict[int, float] = {}  # of what waits
        self.served: dict[int, tuple[float, float]] = {}  # by tenant, while something waits: what it held, what would be fair
        self.dominant = {
            shape: max(amount / whole for amount, whole in zip(need.amounts(), self.board.rooms.capacity, strict=True) if whole)
            for shape, need in resources.items()
        }
        self._judged = 0.0
        self._task = 0
        self._sampled = 0.0
        self._foreseen = -math.inf
        self._planned = 0.0
        self._ended = 0  # tasks since then
        self.lead_s = 2.0

    def run(self, arrivals: Iterable[Arrival]) -> Outcome:
        supply = iter(arrivals)
        following = next(supply, None)
        while following is not None or self.waiting or self.running:
            if not self.waiting and following is not None:  # nothing to decide until something comes
                self.now = max(self.now, math.floor(following.at / self.fleet.tick_s) * self.fleet.tick_s)
            self.now += self.fleet.tick_s
            ended = self._end()
            news = ended
            while following is not None and following.at <= self.now:
                self._arrive(following)
                following = next(supply, None)
                news += 1
            self._ended += ended
            if news or self.now - self._planned >= 10 * self.fleet.tick_s:
                self._plan()
            if self.now - self._sampled >= SAMPLE_S:
                self._sample()
        self.outcome.ended_at = self.now
        self.outcome.jain = jain(min(got / fair, 2.0) for got, fair in self.served.values() if fair > 1e-9)
        return self.outcome

    def _arrive(self, one: Arrival) -> None:
        self._task += 1
        tenant = one.tenant if self.policy == "headway" else 1
        self.seconds[self._task] = (one.at, one.start_by, one.seconds, one.tenant)
        self.wanting[one.tenant] = self.wanting.get(one.tenant, 0.0) + self.dominant[one.shape]
        self.waiting += 1
        urgent = self.rules[one.shape].urgent
        order = {"headway": one.start_by, "fifo": one.at, "priority": one.at if urgent else one.at + 1e9}[self.policy]
        group = (tenant, one.shape)
        head = self.board.heads.get(group)
        if head is None:
            head = self.board.heads[group] = Head(more=False)
        _insert(head, (order, 0, self._task))
        self.board.touched(group)
        if urgent and self.board.usage.is_entitled(tenant):
            self.urgent_at = self.now

    def _end(self) -> int:
        count = 0
        while self.running and self.running[0][0] <= self.now:
            _, node, tenant, shape, owner = heapq.heappop(self.running)
            self.board.hold(node, (tenant, shape), -1)
            _add(self.holding, owner, -self.dominant[shape])
            count += 1
        return count

    def _plan(self) -> None:
        tick, rooms = self.fleet.tick_s, self.board.rooms
        passed = max(self.now - self._planned, tick)
        keep = math.exp(-passed / max(10.0, 10 * tick))
        self.drain_per_s = keep * self.drain_per_s + (1 - keep) * self._ended / passed
        self._planned, self._ended = self.now, 0
        asked = Round(top_k(free=self.board.free_tasks(), ahead=self.drain_per_s * 0.25, most=100_000), cast(Any, 0.0))
        if self.policy == "headway":
            self.peak = is_peak(self.peak, rooms.utilisation())
            if self.now - self._foreseen >= 10 * tick:
                self._foreseen = self.now
                waiting = [(cast(float, key[0]) - self.now, count) for key, count in self.board.waiting()] if self.peak else []
                self.lead_s = lead(waiting, drain_per_s=self.drain_per_s, start_up_s=tick, full=self.peak)
            early = self.lead_s
            fill = BEGINS if self.now - self.urgent_at < KEEP_S else None
            asked = Round(asked.most, cast(Any, self.now + early), self._gate, self.peak, fill)
        while plan := self.board.place(asked):
            self.peak = self.board.peaked
            for placed in plan:
                for key in placed.keys:
                    self._begin(placed.node, placed.group[0], placed.group[1], key[2])

    def _begin(self, node: int, tenant: int, shape: int, task: int) -> None:
        arrived, start_by, seconds, owner = self.seconds.pop(task)
        _add(self.wanting, owner, -self.dominant[shape])
        _add(self.holding, owner, self.dominant[shape])
        self.waiting -= 1
        late = self.now > start_by + GRACE_S + self.fleet.tick_s
        self.outcome.waits[self.rules[shape].queue].add(self.now - arrived, missed=late)
        heapq.heappush(self.running, (self.now + seconds, node, tenant, shape, owner))

    def _gate(self, shape: int, peak: bool) -> Gate:
        rules = self.rules[shape]
        keep = self.now - self.urgent_at < KEEP_S
        return judge(rules, Queue(rules.queue), peak=peak, keep=keep, now=_EPOCH).gate

    def _sample(self) -> None:
        self._sampled = self.now
        board, outcome = self.board, self.outcome
        outcome.utilisation.append((self.now, board.rooms.utilisation()))
        outcome.waiting.append((self.now, self.waiting))
        if self.peak:
            outcome.peak_s += SAMPLE_S
            put_off = sum(
                len(head) * board.shapes[shape].cpus_milli / 1000
                for shape, lane in board.lanes.items()
                if self._gate(shape, True) is not Gate.OPEN
                for head in lane.tenants.values()
            )
            outcome.put_off_cpus = max(outcome.put_off_cpus, put_off)
        if self.now - self._judged >= FAIRNESS_S and self.waiting:
            self._judged = self.now
            for tenant, part in fair_parts(self.holding, self._competing()).items():
                got, fair = self.served.get(tenant, (0.0, 0.0))
                self.served[tenant] = (got + self.holding.get(tenant, 0.0), fair + part)


    def _competing(self) -> dict[int, float]:
        """What each tenant asks for now: what waits, without what is put off until it is due."""
        if self.policy != "headway":
            return self.wanting
        found: dict[int, float] = {}
        for shape, lane in self.board.lanes.items():
            put_off = self._gate(shape, self.peak) is not Gate.OPEN
            for tenant in lane.noted:
                head = lane.tenants[tenant]
                count = len(head)
                if put_off:
                    count = sum(1 for key in head.waiting() if key[0] <= self.board.horizon)
                found[tenant] = found.get(tenant, 0.0) + count * self.dominant[shape]
        return found


def fair_parts(holding: dict[int, float], wanting: dict[int, float]) -> dict[int, float]:
    """What everyone would hold if all that is held now were divided evenly, and nobody got more than it asks for (max-min)."""
    asked = {tenant: holding.get(tenant, 0.0) + wanting.get(tenant, 0.0) for tenant in {*holding, *wanting}}
    left, found = sum(holding.values()), {}
    waiting = sorted((amount, tenant) for tenant, amount in asked.items() if amount > 1e-12)
    for number, (amount, tenant) in enumerate(waiting):
        found[tenant] = min(amount, left / (len(waiting) - number))
        left -= found[tenant]
    return found


def _add(amounts: dict[int, float], tenant: int, amount: float) -> None:
    left = amounts.get(tenant, 0.0) + amount
    if left > 1e-12:
        amounts[tenant] = left
    else:
        amounts.pop(tenant, None)


def _insert(head: Head, key: tuple[float, int, int]) -> None:
    """Into the known part of a head, in order: mostly at its end."""
    keys, made = head.keys, cast(Key, key)
    if not keys or keys[-1] <= made:
        keys.append(made)
        return
    low, high = head.taken, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < made:
            low = middle + 1
        else:
            high = middle
    keys.insert(low, made)
