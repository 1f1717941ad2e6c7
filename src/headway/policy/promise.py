"""The promise at admission (E7): when a task will probably start, and whether that is in time.

Deliberately simple, since it is asked for every submission: what waits in front of it, over how fast its tenant is being served.
`headway explain` estimates one task with more care, and with an interval.
"""

from __future__ import annotations

import msgspec

FULL = 0.95  # of the fleet: below it there is room, and what is ready goes out in the next round
ROUNDS = 2  # what a few rounds of the planner hand out does not count as waiting


class Load(msgspec.Struct, frozen=True):
    """What one tenant's next task meets."""

    nodes: int
    utilisation: float
    ahead: int  # ready tasks of the same tenant
    per_s: float  # how many of them start in a second while others wait; 0 = not known
    round: int  # tasks the planner hands out at once
    ends: tuple[float, ...] = ()  # when what runs will probably have ended, in order, if the fleet is full and that is known
    rivals: int = 1  # tenants that take turns


def predicted_wait(load: Load, more: int = 0) -> float | None:
    """Seconds until the last of `more` + 1 tasks submitted now starts; None when nothing is known to predict it from."""
    if not load.nodes:
        return None
    ahead = max(0, load.ahead + more)
    if load.utilisation < FULL and ahead <= ROUNDS * max(load.round, 1):
        return 0.0
    if load.ends:
        return _after_ends(load, (ahead + 1) * load.rivals)
    return (ahead + 1) / load.per_s if load.per_s > 0 else None


def _after_ends(load: Load, turn: int) -> float:
    """When the `turn`-th place becomes free: what runs ends, then what took its place, and so on."""
    turnovers, last = divmod(turn - 1, len(load.ends))
    return turnovers * 2 * sum(load.ends) / len(load.ends) + load.ends[last]  # half of a run is left, on average
