"""What the planner knows beside the order itself: how busy the fleet is, whether it is peak, what the queues allow, how fast it drains.

The decisions are policy.peak and policy.promotion; this keeps their inputs between rounds.
"""

from __future__ import annotations

import datetime
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway import telemetry
from headway.control.definitions import Definitions
from headway.domain.queues import Rules
from headway.policy.order import BEGINNING, Group
from headway.policy.peak import BEGINS, KEEP_S, Verdict, is_peak, judge
from headway.policy.placement import Board, Gate, Placed
from headway.policy.promotion import lead

MISSED_BY = datetime.timedelta(seconds=1)  # an urgent task's start_by is the moment it came: that it is past says nothing
DRAIN_S = 10.0  # how long a finish counts towards the rate
START_UP_S = 0.5  # from a lease to the first instruction of a task, when nothing has to be prepared


@dataclass
class Conditions:
    board: Board
    definitions: Definitions
    peak: bool = False
    lead_s: float = 2.0
    drain_per_s: float = 0.0
    top_k: int = 0
    handed: Counter[int] = field(default_factory=Counter)  # by tenant: tasks handed out since somebody last looked
    missed: Counter[str] = field(default_factory=Counter)  # by queue: handed out after start_by
    now: datetime.datetime = BEGINNING[0]
    _came: set[Group] = field(default_factory=set)  # groups that were told of tasks and not weighed yet
    _urgent: float = -math.inf  # when an urgent task came last
    _drained: int = 0
    _counted: float = field(default_factory=time.monotonic)
    _verdicts: dict[tuple[int, bool], Verdict] = field(default_factory=dict)

    def came(self, group: Group) -> None:
        """Tasks of this group have become ready."""
        self._came.add(group)

    def arrivals(self) -> set[Group]:
        """The groups that came since this was last asked. They are to be weighed when every head of now has been read: a tenant
        whose head is not looks as if it did not wait, and another as if it had nobody to share with."""
        came, self._came = self._came, set()
        return came

    def weigh(self, came: Iterable[Group]) -> None:
        """Keep room when urgent tasks came, but not for a tenant that has more than its part already."""
        rules, usage = self.definitions.rules, self.board.usage
        if any(rules.get(shape, _DEFAULT).urgent and usage.is_entitled(tenant) for tenant, shape in came):
            self._urgent = time.monotonic()

    def drained(self, count: int) -> None:
        self._drained += count

    def look(self, now: datetime.datetime) -> None:
        """Before every round."""
        self.now = now
        self._verdicts.clear()
        self.peak = is_peak(self.peak, self.board.rooms.utilisation())
        passed = time.monotonic() - self._counted
        if passed >= 0.5:
            keep = math.exp(-passed / DRAIN_S)
            self.drain_per_s = keep * self.drain_per_s + (1 - keep) * self._drained / passed
            self._drained, self._counted = 0, time.monotonic()
            waiting = [((key[0] - now).total_seconds(), count) for key, count in self.board.waiting()] if self.peak else []
            self.lead_s = lead(waiting, drain_per_s=self.drain_per_s, start_up_s=START_UP_S, full=self.peak)

    @property
    def keep(self) -> bool:
        """Whether room is kept for urgent tasks: some came lately."""
        return time.monotonic() - self._urgent < KEEP_S

    @property
    def fill(self) -> float | None:
        """How far what can wait may fill the fleet."""
        return BEGINS if self.keep else None

    def verdict(self, shape: int, peak: bool) -> Verdict:
        found = self._verdicts.get((shape, peak))
        if found is None:
            rules = self.definitions.rules.get(shape, _DEFAULT)
            queue = self.definitions.queues.get(rules.queue)
            found = self._verdicts[(shape, peak)] = judge(rules, queue, peak=peak, keep=self.keep, now=self.now)
        return found

    def gate(self, shape: int, peak: bool) -> Gate:
        return self.verdict(shape, peak).gate

    def placed(self, peaked: bool, plan: list[Placed]) -> None:
        """After every round."""
        self.peak = self.peak or peaked
        late = self.now - MISSED_BY
        for placed in plan:
            self.handed[placed.group[0]] += len(placed.keys)
            if placed.keys[0][0] < late:
                count = sum(1 for key in placed.keys if key[0] < late)
                queue = self.definitions.rules.get(placed.group[1], _DEFAULT).queue
                self.missed[queue] += count
                telemetry.missed(queue, count)


_DEFAULT = Rules()
