"""Which moments of a schedule to fire now, which were missed, and what to do with a firing while a run is going (D2)."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

from headway.domain.firings import delayed, firings, latest
from headway.domain.schedule import Misfire, Overlap, Timing

GRACE_S = 60.0  # later than this a firing counts as missed; a change of leaders takes less
MOST = 1_000  # firings of one schedule in one round, and as far as missed ones are counted
MOST_WAITING = 10_000  # firings of one schedule that may wait for their turn
_US = datetime.timedelta(microseconds=1)


class Kind(IntEnum):
    """Who wanted a firing."""

    CALENDAR = 0
    TRIGGER = 1
    BACKFILL = 2


class Fate(IntEnum):
    """What became of a firing."""

    WAITING = 0  # for its turn
    STARTED = 1
    SKIPPED = 2  # a run was still going
    MISSED = 3  # nobody was there to fire it
    REPLACED = 4  # a later one took its place
    IMPOSSIBLE = 5  # its run would take longer than its interval: failed


@dataclass
class Due:
    """What is due of one schedule."""

    fire: list[tuple[datetime.datetime, int]] = field(default_factory=list)  # each with how many missed ones it stands for
    missed: tuple[datetime.datetime, int] | None = None  # the last one that does not run, and how many there were
    next_at: datetime.datetime | None = None
    due_at: datetime.datetime | None = None  # next_at with its jitter


def due(timing: Timing, *, name: str, next_at: datetime.datetime, anchor: datetime.datetime, now: datetime.datetime) -> Due:
    """What to fire at `now`, when the first moment not yet dealt with is `next_at`."""
    found = Due()
    late = now - datetime.timedelta(seconds=GRACE_S + min(timing.jitter_s, 3600.0))
    newest, count = None, 0
    if timing.misfire is not Misfire.ALL and next_at <= late:
        newest = latest(timing, late, next_at - _US, anchor)
        count = _count(timing, next_at, newest, anchor)
    for at, due_at in moments(timing, name=name, after=newest or next_at - _US, anchor=anchor):
        if due_at > now or len(found.fire) == MOST:
            found.next_at, found.due_at = at, due_at
            break
        found.fire.append((at, 0))
    if newest is not None:
        if timing.misfire is Misfire.SKIP:
            found.missed = (newest, count)
        elif found.fire:
            found.fire[0] = (found.fire[0][0], count)
        else:
            found.fire = [(newest, count - 1)]
    return found


def moments(
    timing: Timing, *, name: str, after: datetime.datetime, anchor: datetime.datetime
) -> Iterator[tuple[datetime.datetime, datetime.datetime]]:
    """Firings after a moment, each with the time at which its jitter lets it happen."""
    last = None
    for at, following in pairwise(firings(timing, after, anchor)):
        yield at, delayed(timing, at, following, name)
        last = following
    if last is None:
        last = next(firings(timing, after, anchor), None)
    if last is not None:
        yield last, delayed(timing, last, None, name)


def fate(overlap: Overlap, *, going: bool, waiting: int) -> Fate:
    """What becomes of a firing whose moment has come."""
    if overlap is Overlap.ALLOW or not (going or waiting):
        return Fate.STARTED
    if overlap is Overlap.SKIP or waiting >= MOST_WAITING:
        return Fate.SKIPPED
    return Fate.WAITING


def _count(timing: Timing, first: datetime.datetime, last: datetime.datetime | None, anchor: datetime.datetime) -> int:
    """How many moments lie in [first, last], as far as MOST."""
    count = 0
    for at in firings(timing, first - _US, anchor):
        if last is None or at > last or count == MOST:
            break
        count += 1
    return count
