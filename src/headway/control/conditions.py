"""What the planner knows beside the order itself: how busy the fleet is, whether it is peak, what the queues allow, how fast it drains.

The decisions are policy.pressure and policy.peak; this gives them their inputs.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway import telemetry
from headway.control.definitions import Definitions
from headway.domain.queues import Rules
from headway.policy import census
from headway.policy.order import BEGINNING, Group
from headway.policy.peak import Verdict, judge
from headway.policy.placement import Board, Gate, Placed
from headway.policy.pressure import Pressure

MISSED_BY = datetime.timedelta(seconds=1)  # an urgent task's start_by is the moment it came: that it is past says nothing


@dataclass
class Conditions:
    board: Board
    definitions: Definitions
    pressure: Pressure = field(default_factory=Pressure)
    top_k: int = 0
    handed: Counter[int] = field(default_factory=Counter)  # by tenant: tasks handed out since somebody last looked
    missed: Counter[str] = field(default_factory=Counter)  # by queue: handed out after start_by
    now: datetime.datetime = BEGINNING[0]
    _came: Counter[Group] = field(default_factory=Counter)  # tasks that groups were told of and that are not weighed yet
    _verdicts: dict[tuple[int, bool], Verdict] = field(default_factory=dict)

    def came(self, group: Group, count: int = 1) -> None:
        """Tasks of this group have become ready."""
        self._came[group] += count

    def arrivals(self) -> Counter[Group]:
        """The groups that came since this was last asked. They are to be weighed when every head of now has been read: a tenant
        whose head is not looks as if it did not wait, and another as if it had nobody to share with."""
        came, self._came = self._came, Counter()
        return came

    def weigh(self, came: Mapping[Group, int]) -> None:
        """Keep room when urgent tasks came, but not for a tenant that has more than its part already."""
        rules, usage = self.definitions.rules, self.board.usage
        for (tenant, shape), count in came.items():
            if rules.get(shape, _DEFAULT).urgent:
                part = self.board.rooms.part(shape)
                self.pressure.came(count, part, time.monotonic(), under_part=usage.is_under_part(tenant))

    def look(self, now: datetime.datetime) -> None:
        """Before every round."""
        self.now = now
        self._verdicts.clear()
        board = self.board
        slacks = lambda: [((key[0] - now).total_seconds(), count) for key, count in census.waiting(board.going)]  # noqa: E731
        parts = lambda: census.parts(board.going, board.rooms)  # noqa: E731
        if self.pressure.look(time.monotonic(), board.rooms.utilisation(), slacks, parts):
            if self.pressure.due_first:
                board.divide(due_first=True)
            else:
                board.divide_evenly()

    def divide(self) -> None:
        """Count what each tenant asks for: somebody is late, and it is to be known who may stop others."""
        self.board.divide(due_first=self.pressure.due_first)

    @property
    def tight(self) -> bool:
        """Whether only the room that is kept for urgent tasks is left."""
        fill = self.pressure.fill
        return fill is not None and self.board.rooms.utilisation() >= fill

    def verdict(self, shape: int, tight: bool) -> Verdict:
        """What the rules of a shape say now, while there is room beside what is kept, or beyond that."""
        found = self._verdicts.get((shape, tight))
        if found is None:
            rules = self.definitions.rules.get(shape, _DEFAULT)
            queue = self.definitions.queues.get(rules.queue)
            peak, keep = tight or self.pressure.peak, tight and self.pressure.keep
            found = self._verdicts[(shape, tight)] = judge(rules, queue, peak=peak, keep=keep, now=self.now)
        return found

    def gate(self, shape: int, tight: bool) -> Gate:
        return self.verdict(shape, tight).gate

    def put_off(self, shape: int) -> Gate:
        """How tasks of this shape wait at peak and only then: until it ends, until they are due, or not at all (open)."""
        rules = self.definitions.rules.get(shape, _DEFAULT)
        queue = self.definitions.queues.get(rules.queue)
        off, at = (judge(rules, queue, peak=peak, keep=self.pressure.keep, now=self.now).gate for peak in (False, True))
        return at if off is not Gate.CLOSED else Gate.OPEN

    def placed(self, tight: bool, plan: list[Placed]) -> None:
        """After every round."""
        self.pressure.peak = self.pressure.peak or tight
        late = self.now - MISSED_BY
        for placed in plan:
            self.handed[placed.group[0]] += len(placed.keys)
            if placed.keys[0][0] < late:
                count = sum(1 for key in placed.keys if key[0] < late)
                queue = self.definitions.rules.get(placed.group[1], _DEFAULT).queue
                self.missed[queue] += count
                telemetry.missed(queue, count)


_DEFAULT = Rules()
