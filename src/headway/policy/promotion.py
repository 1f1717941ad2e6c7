"""When a task that could wait counts as urgent (E2): early enough to be started in time, not at the deadline."""

from __future__ import annotations

from collections.abc import Iterable

SHORTEST_S = 2.0  # a round of planning, a statement, the way to the agent
LONGEST_S = 6 * 3600.0
SAFETY = 1.25  # drain is a guess


def lead(waiting: Iterable[tuple[float, float]], *, drain_per_s: float, start_up_s: float, full: bool) -> float:
    """How long before its `start_by` a task is promoted, so that it and everything that goes before it begins in time.

    `waiting` says how many tasks have how much slack left, as (seconds, tasks). The fleet ends `drain_per_s` tasks a second and each end
    makes room for one: a task with n before it needs n / drain of its slack. The task that has least to spare decides. On a fleet with
    free room only the start-up counts.
    """
    base = max(start_up_s, SHORTEST_S)
    if not full or drain_per_s <= 0:
        return base
    before, needed = 0.0, base
    for slack, count in sorted(waiting):
        before += count
        if before / drain_per_s * SAFETY + start_up_s >= slack:
            needed = max(needed, slack)
    return min(needed, LONGEST_S)


def top_k(*, free: float, ahead: float, most: int) -> int:
    """How many tasks are handed out in one round (E3): what has room now, and what will have room before the next order can arrive.

    Which ones these are follows from subscription and priority: see policy.placement. `free` is counted in tasks, and below zero when
    nodes hold more than runs at once; `ahead` is what nodes lack of what their drain rates ask for (policy.pace).
    """
    return max(min(int(max(free, 0.0) + ahead) + 1, most), 1)
