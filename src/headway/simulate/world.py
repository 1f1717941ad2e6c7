"""A fleet in simulated time: tasks arrive, are placed by policy.placement, run and end.

Policies: `headway` is what the planner does (shares, due tasks, peak, pre-emption); `fifo` takes them as they come; `priority` takes
urgent ones first, then as they come. All three use the same nodes and the same placement.
"""

from __future__ import annotations

import datetime
import heapq
import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from headway.domain.queues import Queue
from headway.domain.resources import GIB, Capacity
from headway.policy import census
from headway.policy.fairness import jain
from headway.policy.order import Group, Head, Key
from headway.policy.peak import judge
from headway.policy.placement import Board, Gate, NodeRoom, Round
from headway.policy.preemption import BREATH_S, MOST_LATE, PATIENCE_S, Late, Mode
from headway.policy.preemption import LOOK_S as PREEMPT_S
from headway.policy.pressure import Pressure
from headway.policy.promotion import top_k
from headway.simulate.keeper import Keeper
from headway.simulate.load import Arrival, shapes
from headway.simulate.loans import CAP_S, Loans, Run, late_of
from headway.simulate.outcome import Evenness, Fleet, Outcome

POLICIES = ("headway", "fifo", "priority")
GRACE_S = 1.0  # a start so much after its time is not counted as a miss
SAMPLE_S = 60.0
FAIRNESS_S = 300.0
LOOK_S = 1.0  # what waits may have become due
_EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_RESOURCES, _RULES = shapes()
_CAP_MS = round(CAP_S * 1000)
_ORDER = {"fifo": 0.0, "priority": 1e9}  # how much later than it came a task that is not urgent stands


class World:
    """One run. Times are seconds since its begin; keys of the order carry them as they are."""

    def __init__(self, policy: str, fleet: Fleet) -> None:
        self.policy, self.fleet = policy, fleet
        self.ours = policy == "headway"
        self.outcome = Outcome(policy, fleet)
        self.board = Board(_RESOURCES)
        capacity = Capacity(round(fleet.cpus * 1000), round(fleet.memory_gib * GIB), 10_000 * GIB)
        for number in range(1, fleet.nodes + 1):
            self.board.add_node(NodeRoom(number, f"n{number}", capacity))
        self.board.resize()
        self.board.horizon = cast(Any, -1.0)
        self.parts = {shape: self.board.rooms.part(shape) for shape in _RESOURCES}
        self.now = 0.0
        self.pressure = Pressure(start_up_s=max(fleet.tick_s, fleet.start_s), look_s=max(fleet.look_s, fleet.tick_s))
        self.loans = Loans(frozenset(shape for shape, rules in _RULES.items() if rules.preemptible))
        self.keeper = Keeper(self.board, self.loans)
        self.evenness = Evenness()
        self.ends: list[tuple[float, int]] = []  # (when, task)
        self.runs: dict[int, Run] = {}
        self.waiting: dict[int, tuple[Arrival, int]] = {}  # task -> what came, and how often it made room
        self.latest: list[tuple[float, int, int, int]] = []  # urgent tasks by start_by: (start_by, task, tenant, shape)
        self._gates: dict[tuple[int, bool, bool, bool], Gate] = {}
        self._task = 0
        self._planned = self._sampled = self._judged = 0.0
        self._stopped = -math.inf  # when somebody to stop was last looked for

    def run(self, arrivals: Iterable[Arrival]) -> Outcome:
        supply, tick = iter(arrivals), self.fleet.tick_s
        following = next(supply, None)
        while following is not None or self.waiting or self.runs:
            self.now = max(self._next(following), self.now + tick)
            self._end()
            while following is not None and following.at <= self.now:
                self._arrive(following)
                following = next(supply, None)
            if self.waiting:
                self._plan()
            if self.loans.over:
                self._give_back()
            if self.now - self._sampled >= SAMPLE_S:
                self._sample()
        self.outcome.ended_at = self.now
        self.outcome.jain = jain(min(got / fair, 2.0) for got, fair in self.evenness.served.values() if fair > 1e-9)
        return self.outcome

    def _next(self, following: Arrival | None) -> float:
        """When something happens, or may have to be done."""
        found = following.at if following is not None else math.inf
        if self.ends:
            found = min(found, self.ends[0][0])
        if self.waiting:
            found = min(found, self._planned + LOOK_S)
        if self.loans.over:
            found = min(found, self.loans.over[0][0] + BREATH_S)
        latest = self.latest
        while latest and latest[0][1] not in self.waiting:
            heapq.heappop(latest)
        if latest:
            found = min(found, max(latest[0][0] + PATIENCE_S, self._stopped + PREEMPT_S))
        return found

    # What happens

    def _arrive(self, one: Arrival) -> None:
        self._task += 1
        urgent = _RULES[one.shape].urgent
        self._wait(self._task, one, 0)
        if urgent and self.ours:
            heapq.heappush(self.latest, (one.start_by, self._task, one.tenant, one.shape))
            self.pressure.came(1, self.parts[one.shape], self.now, under_part=self.board.usage.is_under_part(one.tenant))

    def _wait(self, task: int, one: Arrival, times: int) -> None:
        self.waiting[task] = (one, times)
        order = one.start_by if self.ours else one.at if _RULES[one.shape].urgent else one.at + _ORDER[self.policy]
        group = (one.tenant if self.ours else 1, one.shape)
        head = self.board.heads.get(group)
        if head is None:
            head = self.board.heads[group] = Head(more=False)
        made = _key(order, task)
        keys = head.keys
        if not keys or keys[-1] <= made:
            keys.append(made)
        else:
            insort(keys, made, lo=head.taken)
        if len(keys) - head.taken == 1 or keys[head.taken] is made:  # else it stands behind what is known already
            self.board.touched(group)

    def _end(self) -> None:
        count, ends = 0, self.ends
        while ends and ends[0][0] <= self.now:
            when, task = heapq.heappop(ends)
            run = self.runs.get(task)
            if run is None or run.ends != when or run.frozen:
                continue  # it was stopped meanwhile
            self._leave(run)
            self.keeper.ended(run)
            self.pressure.freed(1, self.parts[run.one.shape])
            count += 1
            if run.owes:
                self.loans.over.append((self.now, run.owes))
            for owner in self.loans.settle(run.node, self.board.rooms):
                self._resume(owner)
        self.pressure.ended(count)

    def _leave(self, run: Run) -> None:
        del self.runs[run.task]
        self.loans.end(run)
        self.board.hold(run.node, run.group, -1)

    def _resume(self, run: Run) -> None:
        run.frozen, run.back_at, run.away_s = False, self.now, self.now - run.stopped_at
        run.ends += run.away_s
        heapq.heappush(self.ends, (run.ends, run.task))

    # What is decided

    def _plan(self) -> None:
        self._planned = self.now
        board, pressure = self.board, self.pressure
        most = top_k(free=census.free_tasks(board.lanes, board.rooms), ahead=pressure.drain_per_s * 0.25, most=100_000)
        asked = Round(most, cast(Any, 0.0))
        if self.ours:
            if pressure.look(self.now, board.rooms.utilisation(), self._slacks, self._parts):
                board.divide(due_first=pressure.due_first)
            self.keeper.look(self.now)
            windows = self.keeper.windows(self.now) if board.keeping.nodes else {}
            horizon, early = cast(Any, self.now + pressure.lead_s), cast(Any, pressure.early)
            asked = Round(most, horizon, self._gate, pressure.due_first, pressure.fill, windows, early)
        while plan := board.place(asked):
            pressure.peak = pressure.peak or (self.ours and board.tight)
            count = 0
            for placed in plan:
                count += len(placed.keys)
                for key in placed.keys:
                    self._begin(key[2], placed.node, placed.group)
            if count < most:
                break
        if self.latest:
            self._make_room()

    def _begin(self, task: int, node: int, group: Group) -> Run:
        one, times = self.waiting.pop(task)
        began = self.now + self.fleet.start_s
        rules = _RULES[group[1]]
        ends = began + one.seconds + self.fleet.turn_s
        run = Run(task, one, node, group, began, ends, times)
        if not times:
            late = began > one.start_by + GRACE_S + self.fleet.tick_s
            self.outcome.waits[rules.queue].add(began - one.at, missed=late)
        self.runs[task] = run
        self.loans.begin(run)
        heapq.heappush(self.ends, (ends, task))
        return run

    def _make_room(self) -> None:
        """Urgent tasks that should have begun and find every node full."""
        if self.now - self._stopped < PREEMPT_S or self.latest[0][0] + PATIENCE_S > self.now:
            return
        self.board.divide(due_first=self.pressure.due_first)  # who may stop others: the planner counts it twice a second
        late = self._late()
        if late:
            self._stopped = self.now
        for one in late:
            self._stop_others(replace(one, entitled=self.board.usage.may_stop_others(one.tenant)))  # it may hold more since the last one

    def _late(self) -> list[Late]:
        """Urgent tasks that should have begun, tenants below their part first."""
        latest, found = self.latest, list[tuple[float, int, int, int]]()
        while latest and latest[0][0] + PATIENCE_S <= self.now and len(found) < MOST_LATE:
            entry = heapq.heappop(latest)
            if entry[1] in self.waiting:
                found.append(entry)
        for entry in found:
            heapq.heappush(latest, entry)
        entitled = self.board.usage.may_stop_others
        return sorted(
            (late_of(task, _RESOURCES[shape], tenant, entitled=entitled(tenant)) for _, task, tenant, shape in found),
            key=lambda one: not one.entitled,
        )

    def _stop_others(self, late: Late) -> None:
        choice = self.loans.choose(late, self.board.rooms, self.now)
        if choice is None:
            return
        frozen = []
        for victim, mode in choice.victims.items():
            run = self.runs[victim]
            self.outcome.stopped += 1
            if mode is Mode.FREEZE:
                run.frozen, run.stopped_at, run.times = True, self.now, run.times + 1
                frozen.append(run)
            else:
                self._leave(run)
                self._wait(victim, run.one, run.times + 1)
        self._lend(late.id, choice.node, frozen)

    def _lend(self, task: int, node: int, owners: Sequence[Run]) -> None:
        """The room of those who stopped goes to this task."""
        one, _ = self.waiting[task]
        group = (one.tenant, one.shape)
        self.board.heads[group].keys.remove(_key(one.start_by, task))
        self.board.touched(group)
        self.board.hold(node, group, 1)
        self._begin(task, node, group).owes = owners

    def _give_back(self) -> None:
        """Who is out of the way for nobody goes on, or serves another late task first."""
        over, self.loans.over = self.loans.over, []
        for since, owners in over:
            late = next((one for one in self._late() if self.loans.may_pass_on(owners, one, self.board.rooms, self.now)), None)
            if late is not None:
                self._lend(late.id, owners[0].node, owners)
            elif self.now - since < BREATH_S:
                self.loans.over.append((since, owners))
            else:
                for run in owners:
                    self._resume(run)

    def _gate(self, shape: int, tight: bool) -> Gate:
        peak, keep = tight or self.pressure.peak, tight and self.pressure.keep
        found = self._gates.get((shape, peak, keep, tight))
        if found is None:
            rules = _RULES[shape]
            found = judge(rules, Queue(rules.queue), peak=peak, keep=keep, now=_EPOCH).gate
            self._gates[(shape, peak, keep, tight)] = found
        return found

    def _slacks(self) -> list[tuple[float, float]]:
        return [(cast(float, key[0]) - self.now, count) for key, count in census.waiting(self.board.lanes)]

    def _parts(self) -> dict[int, float]:
        return {shape: self.parts[shape] for shape in self.board.lanes}

    # What is measured

    def _sample(self) -> None:
        self._sampled = self.now
        board, outcome = self.board, self.outcome
        outcome.utilisation.append((self.now, board.rooms.utilisation()))
        outcome.waiting.append((self.now, len(self.waiting)))
        if self.ours and self.pressure.peak:
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
            self.evenness.sample(self._holding(), self._competing())

    def _holding(self) -> dict[int, float]:
        """What each tenant holds now."""
        found: dict[int, float] = {}
        for run in self.runs.values():
            one = run.one
            found[one.tenant] = found.get(one.tenant, 0.0) + self.parts[one.shape]
        return found

    def _competing(self) -> dict[int, float]:
        """What each tenant asks for now: what waits, without what is put off until it is due."""
        found: dict[int, float] = {}
        if not self.ours:
            for one, _ in self.waiting.values():
                found[one.tenant] = found.get(one.tenant, 0.0) + self.parts[one.shape]
            return found
        for shape, lane in self.board.lanes.items():
            put_off = self.pressure.due_first and self._gate(shape, True) is not Gate.OPEN
            for tenant, head in lane.tenants.items():
                count = len(head)
                if put_off:
                    count = lane.due(head)
                if count:
                    found[tenant] = found.get(tenant, 0.0) + count * self.parts[shape]
        return found


def _key(order: float, task: int) -> Key:
    return cast(Key, (order, _CAP_MS, task))
