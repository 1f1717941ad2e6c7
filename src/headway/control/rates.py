"""Tasks a second over the last few seconds, for `top` and `stats`."""

from __future__ import annotations

import time
from collections import deque

from headway import telemetry

WINDOW_S = 10.0


class Rates:
    """Remembers the totals whenever it is asked, and when it last was."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, int]]] = deque([(time.monotonic(), dict(telemetry.totals))])

    def now(self) -> dict[str, float]:
        """Rates since the oldest look that is not older than the window."""
        now, totals = time.monotonic(), dict(telemetry.totals)
        while len(self._seen) > 1 and now - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()
        then, before = self._seen[0]
        self._seen.append((now, totals))
        passed = max(now - then, 0.001)
        return {name: (count - before.get(name, 0)) / passed for name, count in totals.items()}
