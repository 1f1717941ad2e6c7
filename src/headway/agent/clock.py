"""The agent's two clocks.

The lease and every limit run on CLOCK_BOOTTIME, which goes on while the machine sleeps: a laptop that wakes up
knows that its lease is over. People and servers are told Unix milliseconds.
"""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has none; there a sleep stops the clock


def boottime() -> float:
    return time.clock_gettime(_BOOTTIME)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
