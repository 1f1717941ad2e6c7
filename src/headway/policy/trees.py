"""What the counters of a tree's levels mean: its state, and when each level is expected to end (C2, SPEC: States)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sums:
    """Tasks of a tree by how they ended; `spared` were skipped as their edges wished."""

    total: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    spared: int = 0
    expired: int = 0

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled + self.skipped + self.spared + self.expired


@dataclass(frozen=True)
class Level:
    """One level: what is left, and what is known from the tasks that ended."""

    left: int
    succeeded: int = 0
    busy_s: float = 0.0  # run time of those that succeeded, together
    first_at: datetime.datetime | None = None
    last_at: datetime.datetime | None = None

    @property
    def mean_s(self) -> float | None:
        return self.busy_s / self.succeeded if self.succeeded else None

    @property
    def width(self) -> float | None:
        """How many tasks ran at the same time, on the average."""
        if not self.succeeded or self.first_at is None or self.last_at is None:
            return None
        span = (self.last_at - self.first_at).total_seconds()
        return max(self.busy_s / span, 1.0) if span > 0 else float(self.succeeded)


def state(sums: Sums, *, begun: bool) -> str:
    """A tree's state is derived from its tasks. `begun`: a node answers for one of them now.

    What was skipped behind a cancelled task belongs to the cancelling; what was skipped for another reason is a failure, be it
    of a task outside the tree.
    """
    if sums.ended < sums.total:
        return "running" if begun or sums.ended else "ready"
    if sums.failed or sums.expired:
        return "failed"
    if sums.cancelled:
        return "cancelled"
    return "failed" if sums.skipped else "succeeded"


def expected_ends(
    levels: Sequence[Level], earlier: Sequence[Level | None], now: datetime.datetime
) -> list[datetime.datetime | None]:
    """When each level, lowest first, will have nothing left; None where nothing is known. `earlier`: the levels of the run before."""
    found: list[datetime.datetime | None] = []
    below: datetime.datetime | None = now
    for level, before in zip(levels, earlier, strict=True):
        if not level.left:
            found.append(level.last_at)
            continue
        mean = level.mean_s if level.mean_s is not None else before.mean_s if before else None
        if mean is None or below is None:
            below = None
            found.append(None)
            continue
        width = level.width or (before.width if before else None) or 1.0
        remaining = datetime.timedelta(seconds=max(mean, level.left * mean / min(width, level.left)))
        below = max(now + remaining, below + datetime.timedelta(seconds=mean))
        found.append(below)
    return found
