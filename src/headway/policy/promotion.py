"""When a task that could wait counts as urgent (E2): early enough to be started in time, not at the deadline."""

from __future__ import annotations

from collections.abc import Iterable

SHORTEST_S = 2.0  # a round of planning, a statement, the way to the agent
LONGEST_S = 6 * 3600.0
SAFETY = 1.25  # drain is a guess
SURE = 7.0  # of things that come at random, the next one takes longer than so many times the mean once in a thousand times
LONGEST_ROOM_S = 120.0
ALL = 20  # rooms of a size, after which chance is evened out
EARLIEST_S = 600.0  # a task for which room of its size comes less often than that gets a node kept (policy.reservation)


def room_in(drain_per_s: float, leaves: float) -> float:
    """How long a task may have to wait on a full fleet until a room of its size comes, when the part `leaves` of the ends leaves one: rooms
    that are smaller go to others."""
    rate = drain_per_s * leaves
    return min(SURE / rate, LONGEST_ROOM_S) if rate > 0 else LONGEST_ROOM_S


def early(drain_per_s: float, leaves: float) -> float:
    """How much earlier than others a task is due on a full fleet, when only the part `leaves` of the ends leaves a room of its size.

    By as much longer as it takes until `ALL` such rooms have come than until as many tasks of any size have ended. Rooms come in bursts
    and gaps, and those who need them too: whoever takes each one that comes over so long a time meets the mean of both. Nobody else
    may break such a room up meanwhile, so it also stands there in the order.
    """
    rate = drain_per_s * leaves
    return min(ALL / rate - ALL / drain_per_s, EARLIEST_S) if rate > 0 else EARLIEST_S


def lead(
    waiting: Iterable[tuple[float, float]], *, drain_per_s: float, start_up_s: float, full: bool, room_s: float = 0.0
) -> float:
    """How long before its `start_by` a task is promoted, so that it and everything that goes before it begins in time.

    `waiting` says how many tasks have how much slack left, as (seconds, tasks). The fleet ends `drain_per_s` tasks a second and each end
    makes room for one: a task with n before it needs n / drain of its slack. The task that has least to spare decides; the largest one
    needs `room_s` until there is a room of its size. On a fleet with free room only the start-up counts.
    """
    base = max(start_up_s, SHORTEST_S)
    if not full or drain_per_s <= 0:
        return base
    before, needed = 0.0, max(base, room_s + start_up_s)
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
