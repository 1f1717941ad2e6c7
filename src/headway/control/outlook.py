"""Once a second while there is something to do, where the planner runs: promotes what can no longer wait (E2), keeps the record of the
peak (E4), and publishes what the planner knows (E3 E5), so that every server can answer for it and the next leader goes on from it.
"""

from __future__ import annotations

import datetime
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway import telemetry
from headway.control.clock import Clock
from headway.control.leader import Leader
from headway.control.planner import TOP_K, Planner
from headway.domain.queues import Rules
from headway.errors import StaleEpoch
from headway.policy.census import asked, counted
from headway.policy.fairness import jain
from headway.policy.placement import Gate
from headway.store.database import Database
from headway.store.queries import query

EVERY_S = 1.0
REPEAT_S = 10.0
PROMOTED_AT_ONCE = 1_000  # a label on top of the order: it must never cost more than the work
SHARE_S = 60.0  # shares are averaged over about a minute: on a small fleet one task is a large share
PUBLISHED = 1_000  # tenants whose shares are published, and shapes; with more tasks waiting, their shapes are not

_PROMOTE = query("queue.promote")
_PUBLISH = query("queue.publish")
_STATE = query("queue.state")
_PEAK = query("queue.peak")
_OPEN_PEAK = query("queue.open_peak")


class TenantState(msgspec.Struct, omit_defaults=True):
    """`share` is weighted and averaged, `rate` is tasks handed out in a second, `served` the same for as long as some of its tasks wait."""

    share: float = 0.0
    rate: float = 0.0
    # Tasks the planner knows of and may hand out, at most 4,000 of each shape; none while it has as many running as it may.
    waiting: int = 0
    due: int = 0  # of those
    at_quota: bool = False  # it has as many running as it may
    served: float = 0.0  # 0: not known. Where nothing waits, a rate says how many tasks came, not how many could be served
    asks: dict[int, int] = {}  # by shape, how many wait; nothing where that would be too much to say


class KeptState(msgspec.Struct):
    """A node that is kept free for a task."""

    task: int
    shape: int


class PlanState(msgspec.Struct, omit_defaults=True):
    """What the planner knows, as it is published."""

    peak: bool = False
    keep: bool = False  # room is kept for urgent tasks
    utilisation: float = 0.0
    lead_s: float = 2.0  # how long before its start_by a task is due
    early: dict[int, float] = {}  # by shape: how much before that, since its rooms are rare
    closed: list[int] = []  # shapes that wait for their queue
    top_k: int = 0
    drain_per_s: float = 0.0
    urgent: float = 0.0  # part of the tasks that come
    due_first: bool = False
    fill: float = 1.0  # what can wait takes the fleet up to here
    level: float = 1.0
    promoted: int = 0
    missed: dict[str, int] = {}  # by queue
    jain: dict[str, float] = {}  # by cost class, over the tenants that wait
    tenants: dict[int, TenantState] = {}
    kept: dict[int, KeptState] = {}  # by node

    def lead_of(self, shape: int) -> float:
        """How long before its start_by a task of this shape is due."""
        return self.lead_s + self.early.get(shape, 0.0)


class Episode(msgspec.Struct):
    """One peak, and what was put off meanwhile."""

    began_at: datetime.datetime
    utilisation: float = 0.0
    capacity: float = 0.0
    held_tasks: int = 0
    held_cpus: float = 0.0
    held_seconds: float = 0.0


@dataclass
class Outlook:
    database: Database
    leader: Leader
    planner: Planner
    clock: Clock
    wake: Callable[[], None] = lambda: None
    promoted: int = 0
    peak: Episode | None = None
    shares: dict[int, float] = field(default_factory=dict)  # averaged
    rates: dict[int, float] = field(default_factory=dict)
    served: dict[int, tuple[float, float]] = field(default_factory=dict)  # (tasks, seconds), of tenants with tasks that wait
    _promoted_ids: set[int] = field(default_factory=set)
    _epoch: int = -1
    _seen_at: datetime.datetime | None = None
    _passed: float = 0.0  # seconds between the last two looks
    _published: tuple[str, float] = ("", 0.0)
    _resting: bool = False  # nothing waits or runs: the planner tells when that changes

    def __post_init__(self) -> None:
        self.planner.on_stir.append(self._stirred)

    def _stirred(self) -> None:
        if self._resting:
            self._resting = False
            self.wake()

    async def run_once(self) -> float:
        if self.planner.leading_epoch < 0:
            return EVERY_S
        if self._epoch != self.planner.leading_epoch:
            await self._take_over()
        now = self.clock.now()
        self._average(now)
        await self._promote()
        await self._record_peak(now)
        await self._publish()
        self._resting = self.planner.board.quiet and self.peak is None
        return REPEAT_S if self._resting else EVERY_S

    async def read(self) -> PlanState:
        """What the leading planner last said."""
        async with self.database.cold() as connection:
            row = await connection.fetchrow(_STATE)
        return msgspec.json.decode(row["body"], type=PlanState, strict=False) if row is not None else PlanState()

    async def _take_over(self) -> None:
        """Go on from what the last leader published: counters, averages, and whether it was peak."""
        state = await self.read()
        self.promoted = max(self.promoted, state.promoted)
        conditions = self.planner.conditions
        conditions.pressure.peak = conditions.pressure.peak or state.peak
        conditions.missed.clear()
        conditions.missed.update(state.missed)
        self.shares = {tenant: one.share for tenant, one in state.tenants.items()}
        self.rates = {tenant: one.rate for tenant, one in state.tenants.items()}
        async with self.database.cold() as connection:
            row = await connection.fetchrow(_OPEN_PEAK)
        if row is not None:  # it goes on, or ends with our first look
            self.peak = Episode(**row)
        self._promoted_ids.clear()
        self._epoch = self.planner.leading_epoch

    def _average(self, now: datetime.datetime) -> None:
        passed = (now - self._seen_at).total_seconds() if self._seen_at is not None else EVERY_S
        self._seen_at, self._passed = now, max(passed, 0.0)
        fresh = 1 - math.exp(-max(passed, 0.0) / SHARE_S)
        usage, handed = self.planner.board.usage, self.planner.conditions.handed
        for tenant in {*self.shares, *usage.tenants}:
            before = self.shares.get(tenant)
            share = usage.share(tenant)
            self.shares[tenant] = share if before is None else before + fresh * (share - before)
            rate = handed.get(tenant, 0) / max(passed, 0.1)
            self.rates[tenant] = self.rates.get(tenant, rate) + fresh * (rate - self.rates.get(tenant, rate))
            if tenant not in usage.tenants and self.shares[tenant] < 1e-6:
                del self.shares[tenant], self.rates[tenant]
        self._serve(passed)
        handed.clear()

    def _serve(self, passed: float) -> None:
        """How fast those are served that had tasks waiting at the last look and have now."""
        handed, keep = self.planner.conditions.handed, math.exp(-max(passed, 0.0) / SHARE_S)
        before, self.served = self.served, {}
        for tenant in {tenant for lane in self.planner.board.going.values() for tenant in lane.tenants}:
            if (known := before.get(tenant)) is None:
                self.served[tenant] = (0.0, 0.0)
            else:
                self.served[tenant] = (known[0] * keep + handed.get(tenant, 0), known[1] * keep + max(passed, 0.1))

    async def _promote(self) -> None:
        """Tasks that are due and still wait are urgent from now on, and their clients are told."""
        board, rules = self.planner.board, self.planner.definitions.rules
        due: list[int] = []
        for shape, lane in board.going.items():
            if rules.get(shape, _DEFAULT).urgent:
                continue
            for tenant in lane.tenants:
                head = board.heads[(tenant, shape)]
                due += [key[2] for key in itertools.islice(head.waiting(), lane.due(head))]
                if len(due) > 100 * PROMOTED_AT_ONCE:
                    break
        wanted = list(itertools.islice((task for task in due if task not in self._promoted_ids), PROMOTED_AT_ONCE))
        self._promoted_ids.intersection_update(due)
        if not wanted:
            return
        async with self.database.hot() as connection:
            rows = await connection.fetch(_PROMOTE, wanted, self._epoch)
        self._promoted_ids.update(wanted)
        self.promoted += len(rows)
        telemetry.promoted(len(rows))
        if rows:
            self.planner.bus.told()

    async def _record_peak(self, now: datetime.datetime) -> None:
        """Write down how high the peak was and what was put off: at its begin, while it lasts, and at its end."""
        conditions, rooms = self.planner.conditions, self.planner.rooms
        if not conditions.pressure.peak and self.peak is None:
            return
        passed = self._passed  # since the last look, which a busy machine may take late
        if self.peak is None:
            self.peak, passed = Episode(now), 0.0
        episode = self.peak
        tasks, cpus = self._put_off()
        episode.utilisation = max(episode.utilisation, rooms.utilisation())
        episode.capacity = rooms.capacity[0] / 1000
        episode.held_tasks, episode.held_cpus = max(episode.held_tasks, tasks), max(episode.held_cpus, cpus)
        episode.held_seconds += cpus * passed
        ended = None if conditions.pressure.peak else now
        if ended is not None:
            self.peak = None
        async with self.database.cold() as connection:
            await connection.execute(
                _PEAK, episode.began_at, ended, episode.utilisation, episode.capacity, episode.held_tasks, episode.held_cpus,
                episode.held_seconds,
            )  # fmt: skip

    def _put_off(self) -> tuple[int, float]:
        """Known tasks, and their cpus, that wait only because it is peak."""
        board, conditions = self.planner.board, self.planner.conditions
        tasks, cpus = 0, 0.0
        for shape, lane in board.lanes.items():
            gate = conditions.put_off(shape)
            if gate is Gate.OPEN:
                continue
            heads = [board.heads[(tenant, shape)] for tenant in lane.tenants]
            waiting = sum(len(head) - (lane.due(head) if gate is Gate.DUE else 0) for head in heads)  # what is due is put off no longer
            tasks += waiting
            cpus += waiting * board.shapes[shape].cpus_milli / 1000
        return tasks, cpus

    async def _publish(self) -> None:
        state = self.state()
        body = msgspec.json.encode(state).decode()
        if body == self._published[0] and time.monotonic() - self._published[1] < REPEAT_S:
            return  # an idle system writes nothing every second
        async with self.database.hot() as connection:
            written: Any = await connection.fetchval(_PUBLISH, body, self._epoch)
        if written is None:
            raise StaleEpoch("the planner is led elsewhere")
        self._published = (body, time.monotonic())
        self._measure(state)

    def state(self) -> PlanState:
        board, conditions = self.planner.board, self.planner.conditions
        usage, pressure = board.usage, conditions.pressure
        waiting = counted(board.going)
        waiting = {tenant: count for tenant, count in waiting.items() if usage.allowance(tenant, (), 1)}
        asks = asked(board.going) if sum(count for count, _ in waiting.values()) <= PUBLISHED else {}
        known = sorted(self.shares, key=lambda tenant: (tenant not in waiting, -self.shares[tenant]))[:PUBLISHED]
        classes: dict[str, list[float]] = {}
        for tenant in waiting:
            held = usage.tenants.get(tenant)
            if held is not None:
                classes.setdefault(held.claim.cost_class, []).append(self.shares.get(tenant, 0.0))
        return PlanState(
            peak=pressure.peak,
            keep=conditions.tight,
            utilisation=board.rooms.utilisation(),
            lead_s=pressure.lead_s,
            closed=sorted(board.closed)[:PUBLISHED],
            early={shape: round(seconds, 1) for shape, seconds in itertools.islice(pressure.early.items(), PUBLISHED)},
            top_k=conditions.top_k or TOP_K,
            drain_per_s=pressure.drain_per_s,
            urgent=min(pressure.urgent_per_s / pressure.drain_per_s, 1.0) if pressure.drain_per_s > 0 else 0.0,
            due_first=pressure.due_first and not board.flooded,
            fill=pressure.fill if pressure.fill is not None else 1.0,
            level=usage.level,
            promoted=self.promoted,
            missed=dict(conditions.missed),
            jain={name: jain(shares) for name, shares in classes.items()},
            tenants={t: self._tenant(t, waiting.get(t, (0, 0)), asks.get(t, {})) for t in known},
            kept={node: KeptState(one.task, one.group[1]) for node, one in board.keeping.nodes.items()},
        )

    def _tenant(self, tenant: int, waiting: tuple[int, int], asks: dict[int, int]) -> TenantState:
        at_quota = not self.planner.board.usage.allowance(tenant, (), 1)
        tasks, seconds = self.served.get(tenant, (0.0, 0.0))
        served = tasks / seconds if seconds else 0.0
        return TenantState(self.shares[tenant], self.rates.get(tenant, 0.0), *waiting, at_quota, served, asks)

    def _measure(self, state: PlanState) -> None:
        names = self.planner.tenants.names
        top = sorted(((one.share, names.get(tenant, str(tenant))) for tenant, one in state.tenants.items()), reverse=True)
        telemetry.fairness(top, state.jain, state.utilisation, state.peak)


_DEFAULT = Rules()
