"""The functions that the runners execute under load."""

from __future__ import annotations

import time

STEP_S = 0.05


def noop(text: str) -> str:
    """Nothing, but an answer that shows which input it belongs to."""
    return text[:8]


def pause(seconds: float) -> None:
    """Hold a place for so long, and little else."""
    time.sleep(seconds)


def work(seconds: float) -> None:
    """Hold a place for so long without the time it was frozen, as work on a cpu does: a sleep runs on in a frozen process."""
    while seconds > 0:
        began = time.monotonic()
        time.sleep(min(seconds, STEP_S))
        seconds -= min(time.monotonic() - began, 2 * STEP_S)


def now(text: str) -> int:
    """When this task began, as its runner saw it (Unix ns)."""
    return time.time_ns()
