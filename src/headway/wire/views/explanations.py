"""Why a task is where it is."""

from __future__ import annotations

import datetime

import msgspec


class Reason(msgspec.Struct):
    """One reason why a task does not run, and what would remove it."""

    code: str
    text: str
    remedy: str = ""
    until: datetime.datetime | None = None


class Estimate(msgspec.Struct):
    """When it will probably start; nine times in ten between `low` and `high`."""

    at: datetime.datetime
    low: datetime.datetime
    high: datetime.datetime


class OrderView(msgspec.Struct):
    """A ready task's place and what decides it, in the order in which it counts."""

    ahead: int  # of its tenant's own tasks; at most 10,000 are counted
    due: bool  # its start_by is near or past
    entitled: bool  # its tenant holds less than its part of the fleet
    share: float
    level: float  # the share everyone who waits could have
    tenants_before: int  # tenants that wait and hold less
    start_by: datetime.datetime
    execution_cap_s: float


class LimitedWait(msgspec.Struct):
    """When its `max_wait` is over, and what happens then: `expire`, or `keep` (waits on)."""

    at: datetime.datetime
    then: str
    warned: bool  # whether its client was told that it comes near


class Explanation(msgspec.Struct):
    """Why a task is where it is (E8)."""

    id: str
    state: str
    summary: str
    reasons: list[Reason] = []
    order: OrderView | None = None
    estimate: Estimate | None = None
    spent: dict[str, float] = {}  # seconds, by what it did
    earlier: str = ""  # how its last attempt ended, of one that waits to run again
    checkpoint_at: datetime.datetime | None = None  # it goes on from there
    limit: LimitedWait | None = None  # of one that waits and has a `max_wait`
