"""How fast a node finishes, and how far ahead of that it should be supplied.

The rate is quick to rise and slow to fall, so that a burst is served at once and a stall is noticed. The horizon is how much work, in
seconds, a node may hold beyond what runs at once. It must cover the way from a finish to the next order: when a node runs dry it is
lengthened, else it shrinks again, so it follows the round trip without being told. (With a fixed 20 ms a round trip of 20 ms held
throughput at 900 tasks/s: rate = held / round trip and held = rate × horizon agree at any rate.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST_S = 0.002  # reports closer together than this say nothing about speed
DECAY_S = 0.25
FIRST_HORIZON_S = 0.02
SHORTEST_HORIZON_S = 0.01
LONGEST_HORIZON_S = 0.25


@dataclass
class Pace:
    rate: float = 0.0
    horizon_s: float = FIRST_HORIZON_S
    since: float | None = None
    count: int = 0

    def finished(self, count: int, now: float, *, held: int) -> None:
        """`count` tasks finished at `now`, `held` are left with the node."""
        if held <= count:
            self.horizon_s = min(self.horizon_s * 1.5, LONGEST_HORIZON_S)
        else:
            self.horizon_s = max(self.horizon_s * 0.98, SHORTEST_HORIZON_S)
        if self.since is None:
            self.since = now
            return
        self.count += count
        passed = now - self.since
        if passed >= SHORTEST_S:
            seen = self.count / passed
            keep = math.exp(-passed / DECAY_S)
            self.rate = seen if seen > self.rate else seen + (self.rate - seen) * keep
            self.since, self.count = now, 0

    def stalled(self) -> None:
        """It gave back what it had not begun: nothing ahead until it finishes something again."""
        self.rate, self.horizon_s, self.since, self.count = 0.0, FIRST_HORIZON_S, None, 0

    def ahead(self) -> int:
        """How many tasks the node should hold in all, running or not."""
        return int(self.rate * self.horizon_s)
