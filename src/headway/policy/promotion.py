"""When a task that could wait counts as urgent (E2): early enough to be started in time, not at the deadline."""

from __future__ import annotations

SHORTEST_S = 2.0  # a round of planning, a statement, the way to the agent
LONGEST_S = 300.0


def lead(*, due: int, drain_per_s: float, start_up_s: float, full: bool) -> float:
    """How long before its `start_by` a task is promoted.

    `due` tasks are due already and go first; the fleet ends `drain_per_s` tasks a second and each end makes room for one. On a fleet with
    free room only the start-up counts.
    """
    queueing = (due + 1) / drain_per_s if full and drain_per_s > 0 else LONGEST_S if full else 0.0
    return min(max(start_up_s + queueing, SHORTEST_S), LONGEST_S)


def top_k(*, free: float, drain_per_s: float, horizon_s: float, most: int) -> int:
    """How many tasks are handed out in one round (E3): what has room now, and what will have room before the next order can arrive.

    Which ones these are follows from subscription and priority: see policy.placement. `free` is counted in tasks.
    """
    return max(min(int(free + drain_per_s * horizon_s) + 1, most), 1)
