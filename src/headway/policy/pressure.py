"""How pressed the fleet is: peak or not, how much room is kept for urgent tasks, how early what can wait must go (E2 E4).

A state and the steps that change it; the time is given to it. The planner and the simulator keep one each.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headway.policy.peak import KEEP_S, is_peak, kept
from headway.policy.promotion import early, lead, room_in

AVERAGE_S = 10.0  # how long a finish counts towards the rate
LOOK_S = 0.5  # rates over shorter times say nothing
SIZES_S = 300.0  # how long the size of what ended is remembered
STEPS = 64  # sizes within one in so many are the same: there may be as many as there are tasks


@dataclass
class Pressure:
    start_up_s: float = 0.5  # from a lease to the first instruction of a task, when nothing has to be prepared
    look_s: float = LOOK_S
    peak: bool = False
    lead_s: float = 2.0
    early: Mapping[int, float] = field(default_factory=dict)  # shapes that are due so many seconds before others
    drain_per_s: float = 0.0
    urgent_per_s: float = 0.0
    _now: float = 0.0
    _looked: float = -math.inf
    _urgent_at: float = -math.inf
    _came_at: float = -math.inf
    _part: float = 0.0  # of the fleet, that a large urgent task takes
    _urgent: int = 0  # since it was looked at
    _ended: int = 0
    _sizes: dict[int, float] = field(default_factory=dict)  # parts of the fleet that ends gave back, as steps -> how many, faded

    def came(self, count: int, part: float, now: float, *, under_part: bool) -> None:
        """Urgent tasks have come, each of which takes `part` of the fleet.

        Room is kept when their tenant has less than an equal part: one that holds more cannot make others wait.
        """
        faded = self._part * math.exp((self._came_at - now) / KEEP_S) if self._part else 0.0
        self._part, self._came_at = max(part, faded), now
        self._urgent += count
        if under_part:
            self._urgent_at = now

    def ended(self, count: int) -> None:
        """Tasks have left their nodes."""
        self._ended += count

    def freed(self, count: int, part: float) -> None:
        """Each of these ends gave back `part` of the fleet."""
        step = _step(part)
        self._sizes[step] = self._sizes.get(step, 0.0) + count

    def look(
        self,
        now: float,
        utilisation: float,
        waiting: Callable[[], Iterable[tuple[float, float]]],
        parts: Callable[[], Mapping[int, float]],
    ) -> bool:
        """Before every round. `waiting` says how many tasks have how much slack left, as (seconds, tasks); `parts`, which part of the
        fleet a task of each shape that waits asks for.

        Whether rates were counted anew.
        """
        self._now = now
        self.peak = is_peak(self.peak, utilisation)
        if self._looked == -math.inf:
            self._looked = now
        passed = now - self._looked
        if passed < self.look_s:
            return False
        self.drain_per_s = _averaged(self.drain_per_s, self._ended / passed, passed, AVERAGE_S)
        self.urgent_per_s = _averaged(self.urgent_per_s, self._urgent / passed, passed, KEEP_S)
        self._ended = self._urgent = 0
        self._looked = now
        self._fade(math.exp(-passed / SIZES_S))
        left_per_s = self.drain_per_s - self.urgent_per_s
        leaves = self._leaves(parts()) if self.peak else {}
        self.lead_s = lead(
            waiting() if self.peak else (),
            drain_per_s=left_per_s,
            start_up_s=self.start_up_s,
            full=self.peak,
            room_s=room_in(left_per_s, min(leaves.values(), default=1.0)) if self.peak else 0.0,
        )
        self.early = {shape: early(left_per_s, part) for shape, part in leaves.items() if part < 1.0} if left_per_s > 0 else {}
        return True

    def _leaves(self, parts: Mapping[int, float]) -> dict[int, float]:
        """By shape, the part of the ends that left room for it; all, when nothing is known."""
        steps = sorted(self._sizes)
        above = [0.0, *itertools.accumulate(self._sizes[step] for step in reversed(steps))]  # of none, of the largest, of two sizes ...
        return {shape: above[len(steps) - bisect_left(steps, _step(part))] / above[-1] if steps else 1.0 for shape, part in parts.items()}

    def _fade(self, keep: float) -> None:
        self._sizes = {step: left for step, count in self._sizes.items() if (left := count * keep) > 0.01}

    @property
    def keep(self) -> bool:
        """Whether room is kept for urgent tasks: some came lately."""
        return self._now - self._urgent_at < KEEP_S

    @property
    def due_first(self) -> bool:
        """Whether what is due goes before what can wait, whoever holds more: at peak, while urgent tasks come."""
        return self.peak and self.keep

    @property
    def fill(self) -> float | None:
        """How far what can wait may fill the fleet; None: as far as it goes."""
        return 1.0 - kept(self.urgent_per_s, self.drain_per_s, self._part) if self.keep else None


def _averaged(before: float, seen: float, passed: float, over: float) -> float:
    keep = math.exp(-passed / over)
    return keep * before + (1 - keep) * seen


def _step(part: float) -> int:
    """Sizes in order, by steps; those below a billionth of the fleet are one."""
    return round(math.log(max(part, 1e-9)) * STEPS)
