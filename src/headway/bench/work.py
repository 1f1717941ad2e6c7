"""The functions that the runners execute under load."""

from __future__ import annotations

import time


def noop(text: str) -> str:
    """Nothing, but an answer that shows which input it belongs to."""
    return text[:8]


def pause(seconds: float) -> None:
    """Hold a place for so long, and little else."""
    time.sleep(seconds)


def now(text: str) -> int:
    """When this task began, as its runner saw it (Unix ns)."""
    return time.time_ns()
