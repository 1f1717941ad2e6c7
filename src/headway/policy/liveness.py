"""When a silent node counts as lost (I1).

The reaper counts only time it has itself watched: after any gap in its own committed ticks (it was stopped, the database was away,
another server led) it starts over, so that its own absence never kills a healthy node.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Watch:
    """Silence of each node as one reaper has watched it."""

    lost_s: float
    longest_tick_s: float
    silent: dict[int, tuple[datetime.datetime, float]] = field(default_factory=dict)  # node -> (seen_at, silent for)
    last_tick: float | None = None

    def tick(self, seen: Mapping[int, datetime.datetime], now: float) -> list[int]:
        """One look at all nodes' last heartbeats; returns those silent for too long. `now` is a monotonic clock."""
        passed = now - self.last_tick if self.last_tick is not None else 0.0
        self.last_tick = now
        if passed > self.longest_tick_s:
            self.silent.clear()
            passed = 0.0
        silent: dict[int, tuple[datetime.datetime, float]] = {}
        for node, seen_at in seen.items():
            before = self.silent.get(node)
            quiet = before[1] + passed if before is not None and before[0] == seen_at else 0.0
            silent[node] = (seen_at, quiet)
        self.silent = silent
        return [node for node, (_, quiet) in silent.items() if quiet >= self.lost_s]

    def held(self, node: int) -> None:
        """It was told to hold on, in place of a heartbeat: its silence begins anew."""
        if node in self.silent:
            self.silent[node] = (self.silent[node][0], 0.0)

    def rest(self, longest: float) -> float:
        """How long until the next look: not beyond the moment in which a node that stays silent is lost."""
        quietest = max((quiet for _, quiet in self.silent.values()), default=0.0)
        left = self.lost_s - quietest
        return min(longest, left) if left > 0 else longest
