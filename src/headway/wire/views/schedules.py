"""Schedules and their firings."""

from __future__ import annotations

import datetime

import msgspec


class FiringView(msgspec.Struct):
    """One moment of a schedule, and what became of it."""

    at: datetime.datetime
    fired_at: datetime.datetime
    kind: str  # calendar | trigger | backfill
    state: str  # waiting | started | skipped | missed | replaced | impossible
    run: str | None = None  # the id of its task, or of its tree
    run_state: str | None = None
    missed: int = 0  # further firings that it stands for
    note: str | None = None


class ScheduleView(msgspec.Struct):
    """A schedule. `past` and `work` only when one is asked for."""

    name: str
    tenant: str
    state: str  # active | paused | finished
    schedule: float | str
    timezone: str
    start: float | str | None
    end: float | str | None
    jitter: float | str
    overlap: str
    misfire: str
    tasks: int  # tasks of one run
    next: list[datetime.datetime]
    last_at: datetime.datetime | None
    created_at: datetime.datetime
    changed_at: datetime.datetime
    problem: str | None = None
    last_state: str | None = None  # of its last firing, as in FiringView
    last_note: str | None = None
    past: list[FiringView] = []
    work: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class SchedulePage(msgspec.Struct):
    schedules: list[ScheduleView]
    next: str | None = None


class AppliedView(msgspec.Struct):
    """What applying a schedule did."""

    name: str
    change: str  # created | changed | unchanged
    next_at: datetime.datetime | None


class Backfilled(msgspec.Struct):
    """The moments that are now made up for."""

    count: int
    firings: list[datetime.datetime]
