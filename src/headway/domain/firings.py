"""When a schedule fires: a function of what it says and of the moment after which to look.

Rules, and why (docs/schedules.md tells them to users, a table of known answers tests them):

- An interval is elapsed time: clock changes do not touch it.
- Everything that names a time of day is wall-clock time in the schedule's zone. A time that the clock skips happens at the first
  moment after the gap; a time that happens twice counts the first time. So a daily run happens once on both nights.
- A cron expression with * in its minute or hour follows elapsed time instead, as cron does: every 15 minutes stays every 15 minutes.
- The 31st of a month that has none is its last day for `monthly` (a run a month was asked for), and does not happen for cron (the
  31st was asked for; L is the last day). 29 February is the 28th in other years for `annually`.
"""

from __future__ import annotations

import calendar
import datetime
import zoneinfo
from collections.abc import Iterator
from itertools import islice, pairwise

from cronsim import CronSim

from headway.domain.schedule import Timing, Unit, stable

UTC = datetime.UTC
_US = datetime.timedelta(microseconds=1)
_MIDNIGHTS = {  # where the calendar's steps are counted from when there is no start: as cron's nicknames have it
    Unit.HOURLY: datetime.datetime(2000, 1, 1),
    Unit.DAILY: datetime.datetime(2000, 1, 1),
    Unit.WEEKLY: datetime.datetime(2000, 1, 2),  # a Sunday
    Unit.MONTHLY: datetime.datetime(2000, 1, 1),
    Unit.ANNUALLY: datetime.datetime(2000, 1, 1),
}
_LOOK_BACK = [datetime.timedelta(seconds=s) for s in (60, 3600, 86_400, 40 * 86_400, 400 * 86_400, 4_000 * 86_400)]


def firings(timing: Timing, after: datetime.datetime, anchor: datetime.datetime) -> Iterator[datetime.datetime]:
    """The moments, in UTC, after `after`. `anchor` is where counting begins when the schedule says no start."""
    if timing.start is not None:
        anchor = timing.start
        after = max(after, timing.start - _US)
    for at in _every(timing, after, anchor):
        if timing.end is not None and at > timing.end:
            return
        yield at


def upcoming(timing: Timing, after: datetime.datetime, anchor: datetime.datetime, count: int) -> list[datetime.datetime]:
    return list(islice(firings(timing, after, anchor), count))


def latest(
    timing: Timing, until: datetime.datetime, after: datetime.datetime, anchor: datetime.datetime
) -> datetime.datetime | None:
    """The last firing in (after, until], without walking through all of them: a second's schedule may have slept for a month."""
    for back in _LOOK_BACK:
        found = None
        for at in firings(timing, max(after, until - back), anchor):
            if at > until:
                break
            found = at
        if found is not None or until - back <= after:
            return found
    return None


def delayed(timing: Timing, at: datetime.datetime, following: datetime.datetime | None, name: str) -> datetime.datetime:
    """The moment with its jitter: the same whoever computes it, and never beyond the next firing."""
    room = timing.jitter_s
    if following is not None:
        room = min(room, (following - at).total_seconds())
    if room <= 0:
        return at
    return at + stable(f"{name}/{at.isoformat()}", round(room * 1_000_000)) * _US


def shortest_gap(timing: Timing, after: datetime.datetime, count: int = 50) -> float | None:
    """The least number of seconds between two of the next firings; None when there are not two."""
    return min(_gaps(timing, after, count), default=None)


def mean_gap(timing: Timing, after: datetime.datetime, count: int = 50) -> float | None:
    """How often it fires: seconds from one to the next on average."""
    gaps = _gaps(timing, after, count)
    return sum(gaps) / len(gaps) if gaps else None


def _gaps(timing: Timing, after: datetime.datetime, count: int) -> list[float]:
    if timing.interval_us:
        return [timing.interval_us / 1_000_000]
    return [(b - a).total_seconds() for a, b in pairwise(upcoming(timing, after, after, count + 1))]


def _every(timing: Timing, after: datetime.datetime, anchor: datetime.datetime) -> Iterator[datetime.datetime]:
    if timing.interval_us:
        yield from _elapsed(timing.interval_us * _US, after, anchor)
    elif timing.unit is Unit.HOURLY:
        first = anchor if timing.start else datetime.datetime(2000, 1, 1, tzinfo=timing.zone).astimezone(UTC)
        yield from _elapsed(datetime.timedelta(hours=1), after, first)
    elif timing.unit is not None:
        yield from _calendar(timing, timing.unit, after, anchor)
    elif timing.cron:
        yield from _cron(timing, after)
    elif anchor > after:
        yield anchor


def _elapsed(step: datetime.timedelta, after: datetime.datetime, anchor: datetime.datetime) -> Iterator[datetime.datetime]:
    number = 0 if anchor > after else (after - anchor) // step + 1
    while True:
        yield anchor + number * step
        number += 1


def _calendar(timing: Timing, unit: Unit, after: datetime.datetime, anchor: datetime.datetime) -> Iterator[datetime.datetime]:
    base = anchor.astimezone(timing.zone).replace(tzinfo=None) if timing.start else _MIDNIGHTS[unit]
    number = max(0, _steps(unit, base, after.astimezone(timing.zone).replace(tzinfo=None)) - 2)
    previous = after
    while True:
        local = _stepped(unit, base, number)
        if local.year > 2200:
            return
        at = instant(local, timing.zone)
        if at > previous:  # a day that the zone left out falls on the next one: once
            yield at
            previous = at
        number += 1


def _steps(unit: Unit, base: datetime.datetime, until: datetime.datetime) -> int:
    """About how many steps lie between."""
    if unit is Unit.MONTHLY:
        return (until.year - base.year) * 12 + until.month - base.month
    if unit is Unit.ANNUALLY:
        return until.year - base.year
    return (until - base).days // (7 if unit is Unit.WEEKLY else 1)


def _stepped(unit: Unit, base: datetime.datetime, number: int) -> datetime.datetime:
    if unit in (Unit.MONTHLY, Unit.ANNUALLY):
        months = base.month - 1 + number * (12 if unit is Unit.ANNUALLY else 1)
        year, month = base.year + months // 12, months % 12 + 1
        return base.replace(year=year, month=month, day=min(base.day, calendar.monthrange(year, month)[1]))
    return base + datetime.timedelta(days=number * (7 if unit is Unit.WEEKLY else 1))


def _cron(timing: Timing, after: datetime.datetime) -> Iterator[datetime.datetime]:
    minute, hour = timing.cron.split()[-5:-3]
    local = after.astimezone(timing.zone)
    fixed = not minute.startswith("*") and not hour.startswith("*")
    previous = after
    for found in CronSim(timing.cron, local.replace(tzinfo=None, fold=0) if fixed else local):
        at = instant(found, timing.zone) if fixed else found.astimezone(UTC)
        if at > previous:
            yield at
            previous = at


def instant(local: datetime.datetime, zone: zoneinfo.ZoneInfo) -> datetime.datetime:
    """When the clock on the wall shows this: the first time if it does twice, the first moment after the gap if never."""
    at = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) == local:
        return at
    # Inside a gap `fold` chooses the offset before it (0) or after it (1): the change lies between the two readings.
    low = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    high, before = at, low.astimezone(zone).utcoffset()
    while high - low > _US:
        middle = low + (high - low) // 2
        if middle.astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high
