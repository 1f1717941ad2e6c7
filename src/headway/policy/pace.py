"""How fast a node finishes, and how far ahead of that it should be supplied.

The rate is seen over a turnover: as many finishes as the node held. Tasks that began together end together, and two ends a moment apart say
nothing about speed; the last of a turnover was ordered after the first of it had ended, so it took as long as a task takes. (Before, two
sleeps of a second that ended within 2 ms were 500 tasks/s: a hundred orders of one tenant stood before the single task of another.) The
rate rises at once, and falls also when a turnover does not come. The horizon is how much work, in
seconds, a node may hold beyond what runs at once. It must cover the way from a finish to the next order: when less waits at a node than it
told of at once it is about to run dry, and the horizon is lengthened; when more than twice that waits it shrinks again, so it follows the
round trip without being told. (With a fixed 20 ms a round trip of 20 ms held throughput at 900 tasks/s: rate = held / round trip and
held = rate × horizon agree at any rate. Without the part in between, and with what runs counted as waiting, it was always at the edge: a
node of twenty short programs had nothing to start for a third of the time.)

A rate is believed only while finishes come. A node that is supplied beyond what runs at once turns over within the longest horizon; when it
finished nothing for twice that, what runs now is longer than what gave the rate. (Before, an urgent task was handed to a full node because
short ones had ended there a minute ago, stood there for a second, and was given back before anybody stopped for it.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST_S = 0.002  # a turnover in less than this says nothing about speed
DECAY_S = 0.25
FIRST_HORIZON_S = 0.02
SHORTEST_HORIZON_S = 0.01
LONGEST_HORIZON_S = 0.25
STALE_S = 2 * LONGEST_HORIZON_S


@dataclass
class Pace:
    rate: float = 0.0
    horizon_s: float = FIRST_HORIZON_S
    since: float | None = None
    count: int = 0  # finishes since then
    turnover: int = 0  # the most it held since then
    last: float = -math.inf  # when something last finished

    def finished(self, count: int, now: float, *, held: int, at_once: int) -> None:
        """`count` tasks finished at `now`, `held` are left with the node, which has room to run `at_once` of them."""
        self.last = now
        waiting = held - min(at_once, count)  # functions that fit all run one after another: not more than what was done
        if waiting <= count:
            self.horizon_s = min(self.horizon_s * 1.5, LONGEST_HORIZON_S)
        elif waiting > 2 * count:
            self.horizon_s = max(self.horizon_s * 0.98, SHORTEST_HORIZON_S)
        self.turnover = max(self.turnover, held + count)
        if self.since is None:
            self.since = now
            return
        self.count += count
        passed = now - self.since
        if passed < SHORTEST_S:
            return
        seen = self.count / passed
        if self.count >= self.turnover and seen > self.rate:
            self.rate = seen
        elif self.count >= self.turnover or (passed >= DECAY_S and seen < self.rate):
            self.rate = seen + (self.rate - seen) * math.exp(-passed / DECAY_S)
        else:
            return
        self.since, self.count, self.turnover = now, 0, held

    def stalled(self) -> None:
        """It gave back what it had not begun: nothing ahead until it finishes something again."""
        self.rate, self.horizon_s, self.since, self.count, self.turnover = 0.0, FIRST_HORIZON_S, None, 0, 0

    def ahead(self, now: float) -> int:
        """How many tasks the node should hold in all, running or not."""
        return int(self.rate * self.horizon_s) if now - self.last <= STALE_S else 0
