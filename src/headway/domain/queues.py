"""Queues: where and when a kind of task may run (F5 E4).

Every task is in one queue: the one it names, or else that of its category. What decides where and when a task may run is the same for
all tasks of a shape, so it is interned with the shape (`Rules`), and the planner's groups stay (tenant, shape).
"""

from __future__ import annotations

import datetime
import difflib
import re
import zoneinfo
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from headway.errors import InvalidInput

PREDEFINED = ("urgent", "delayable", "periodic", "off-peak")
NAME_LIMIT = 63
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)")


class OffPeak(StrEnum):
    """What a task says about the peak."""

    ALLOWED = "allowed"  # at peak it waits while it has slack
    ONLY = "only"  # never at peak, however late it gets
    NEVER = "never"  # it does not wait for the peak to end


class Runs(StrEnum):
    """What an operator says about a queue."""

    ALWAYS = "always"
    OFF_PEAK = "off-peak"
    PEAK = "peak"


class Rules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where and when tasks of a shape may run, beside their resources."""

    queue: str = "delayable"
    off_peak: OffPeak = OffPeak.ALLOWED
    preemptible: bool = True
    urgent: bool = False  # of the category urgent: room may be kept for it


class Hours(msgspec.Struct, frozen=True, omit_defaults=True):
    """A window of the week, in minutes of the day; `until` not after `since` means until that time of the next day."""

    since: int
    until: int
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue as the operator set it."""

    name: str
    runs: Runs = Runs.ALWAYS
    hours: tuple[Hours, ...] = ()
    timezone: str = "UTC"
    paused: bool = False


def rules(category: str, queue: str, off_peak: OffPeak, preemptible: bool | None) -> Rules:
    """The rules of a task: its queue is the one it names, else off-peak if it runs only then, else its category's."""
    named = queue or ("off-peak" if off_peak is OffPeak.ONLY else category)
    urgent = category == "urgent"
    return Rules(named, off_peak, not urgent if preemptible is None else preemptible, urgent)


def check_queue(name: str | None) -> str:
    if name is None:
        return ""
    if not _NAME.fullmatch(name) or len(name) > NAME_LIMIT:
        raise InvalidInput(
            f"queue: {name[:40]!r} is not a name of a queue",
            field="queue",
            hint=f"1 to {NAME_LIMIT} lower-case letters, digits, dots, dashes",
        )
    return name


def off_peak_of(word: str) -> OffPeak:
    try:
        return OffPeak(word)
    except ValueError:
        near = difflib.get_close_matches(word, [one.value for one in OffPeak], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "allowed, only or never"
        raise InvalidInput(f"off_peak: {word[:40]!r} is unknown", field="off_peak", hint=hint) from None


def unknown_queue(name: str, there: Iterable[str]) -> InvalidInput:
    names = sorted(there)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"queues: {', '.join(names[:20])}; an operator adds one: headway queue create"
    return InvalidInput(f"queue: there is no queue {name[:40]!r}", field="queue", hint=hint)


def runs_of(word: str) -> Runs:
    try:
        return Runs(word)
    except ValueError:
        raise InvalidInput(f"runs: {word[:40]!r} is unknown", field="runs", hint="always, off-peak or peak") from None


def hours_of(text: str) -> Hours:
    """ "mon-fri 22:00-06:00", "sat,sun 0:00-24:00", "1:30-4:00": days, then a span of the day."""
    days, _, span = text.strip().lower().rpartition(" ")
    since, dash, until = span.partition("-")
    begin, end = _minutes(since), _minutes(until)
    if not dash or begin is None or end is None or begin == 24 * 60:
        raise InvalidInput(f"hours: {text[:60]!r} is not a span", field="hours", hint='write "mon-fri 22:00-06:00" or "1:30-4:00"')
    return Hours(begin, end, _days(days, text) if days else tuple(range(7)))


def hours_text(hours: Hours) -> str:
    span = f"{hours.since // 60:02}:{hours.since % 60:02}-{hours.until // 60:02}:{hours.until % 60:02}"
    return span if len(hours.days) == 7 else f"{','.join(_DAYS[day] for day in hours.days)} {span}"


def check_timezone(name: str) -> str:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(f"timezone: there is no {name[:60]!r}", field="timezone", hint='for example "Europe/Berlin"') from None
    return name


def is_open(queue: Queue, now: datetime.datetime) -> bool:
    """Whether `now` lies in the queue's hours; a queue without hours is open all day."""
    if not queue.hours:
        return True
    local = now.astimezone(zoneinfo.ZoneInfo(queue.timezone))
    minute = local.hour * 60 + local.minute
    return any(_covers(hours, local.weekday(), minute) for hours in queue.hours)


def opens_at(queue: Queue, now: datetime.datetime) -> datetime.datetime | None:
    """When a closed queue opens next: the first open minute within two weeks, or None when there is none."""
    if is_open(queue, now):
        return now
    zone = zoneinfo.ZoneInfo(queue.timezone)
    today = now.astimezone(zone).replace(second=0, microsecond=0)
    for ahead in range(16):  # an hour that clocks skip may be missing in one week
        day = today + datetime.timedelta(days=ahead)
        for since in sorted(hours.since for hours in queue.hours if day.weekday() in hours.days):
            moment = day.replace(hour=since // 60, minute=since % 60).astimezone(datetime.UTC)
            if moment > now and is_open(queue, moment):
                return moment
    return None


def _covers(hours: Hours, weekday: int, minute: int) -> bool:
    if hours.since < hours.until:
        return weekday in hours.days and hours.since <= minute < hours.until
    return (weekday in hours.days and minute >= hours.since) or ((weekday - 1) % 7 in hours.days and minute < hours.until)


def _minutes(text: str) -> int | None:
    found = _CLOCK.fullmatch(text.strip())
    if not found:
        return None
    minutes = int(found[1]) * 60 + int(found[2])
    return minutes if minutes <= 24 * 60 else None


def _days(text: str, whole: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if first[:3] not in _DAYS or (dash and last[:3] not in _DAYS):
            raise InvalidInput(f"hours: {whole[:60]!r} names no day {part[:20]!r}", field="hours", hint=f"days: {', '.join(_DAYS)}")
        begin = _DAYS.index(first[:3])
        length = (_DAYS.index(last[:3]) - begin) % 7 if dash else 0
        found.update((begin + n) % 7 for n in range(length + 1))
    return tuple(sorted(found))
