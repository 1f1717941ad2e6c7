"""How fast a node finishes: quick to rise, slow to fall, so that a burst is served at once and a stall is noticed."""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST_S = 0.002  # reports closer together than this say nothing about speed
DECAY_S = 0.25


@dataclass
class Pace:
    rate: float = 0.0
    since: float | None = None
    count: int = 0

    def finished(self, count: int, now: float) -> float:
        """`count` tasks finished at `now`; returns the new rate."""
        if self.since is None:
            self.since = now
            return self.rate
        self.count += count
        passed = now - self.since
        if passed >= SHORTEST_S:
            seen = self.count / passed
            keep = math.exp(-passed / DECAY_S)
            self.rate = seen if seen > self.rate else seen + (self.rate - seen) * keep
            self.since, self.count = now, 0
        return self.rate
