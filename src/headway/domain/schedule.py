"""A schedule as a user writes it (ScheduleSpec), and what it means (Timing). When it fires is in domain/firings.py.

schedule: 0                     once, at `start` or now
schedule: 300 | "10m"           every so often, counted from `start` or from when it was registered
schedule: daily                 or hourly, weekly, monthly, annually, with or without @ in front
schedule: "0 3 * * MON-FRI"     cron, 5 fields or 6 (seconds first), with names, L, # and H
"""

from __future__ import annotations

import datetime
import difflib
import hashlib
import re
import zoneinfo
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

import msgspec
from cronsim import CronSim, CronSimError

from headway.domain import units
from headway.domain.spec import TaskSpec
from headway.domain.units import at_seconds
from headway.errors import InvalidInput

HINT = '0 for once, seconds, "10m", daily, weekly, monthly, annually, or a cron expression such as "0 3 * * *"'
SHORTEST_S = 1.0
_CRON_LIMIT = 200
_ALIASES = {"yearly": "annually", "midnight": "daily"}
_HASHED = re.compile(r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,2}))?")
# What H stands for in each field: no 29th to 31st, so that it happens in every month.
_H_RANGES = ((0, 59), (0, 59), (0, 23), (1, 28), (1, 12), (0, 6))


class Unit(Enum):
    """Steps of the calendar."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    ANNUALLY = "annually"


class Overlap(IntEnum):
    """What happens to a firing while an earlier run is still going."""

    SKIP = 0  # it does not run
    QUEUE = 1  # it waits for its turn
    REPLACE = 2  # the earlier run is cancelled, then it runs
    ALLOW = 3  # both run


class Misfire(IntEnum):
    """What happens to firings that were missed."""

    SKIP = 0  # nothing
    ONE = 1  # one run stands for all of them
    ALL = 2  # each runs


_OVERLAPS = {choice.name.lower(): choice for choice in Overlap}
_MISFIRES = {choice.name.lower(): choice for choice in Misfire}


class ScheduleSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """When something runs, as a user writes it."""

    schedule: float | str
    timezone: str = "UTC"
    start: str | float | None = None
    end: str | float | None = None
    jitter: float | str = 0
    overlap: str = "skip"
    misfire: str = "one"


class Work(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a schedule runs: one task, or the tasks of a tree."""

    task: TaskSpec | None = None
    tasks: list[TaskSpec] | None = None
    levels: str = "eager"

    @property
    def specs(self) -> list[TaskSpec]:
        return [self.task] if self.task is not None else self.tasks or []


class Scheduled(ScheduleSpec):
    """A schedule with its name and what it runs: what `apply` sends."""

    name: str | None = None
    task: TaskSpec | None = None
    tasks: list[TaskSpec] | None = None
    levels: str = "eager"

    def timing_part(self) -> ScheduleSpec:
        return ScheduleSpec(**{field: getattr(self, field) for field in ScheduleSpec.__struct_fields__})


@dataclass(frozen=True)
class Timing:
    """When it fires. Exactly one of interval_us, unit and cron is set, or none: once."""

    zone: zoneinfo.ZoneInfo
    interval_us: int = 0
    unit: Unit | None = None
    cron: str = ""
    start: datetime.datetime | None = None
    end: datetime.datetime | None = None
    jitter_s: float = 0.0
    overlap: Overlap = Overlap.SKIP
    misfire: Misfire = Misfire.ONE

    @property
    def once(self) -> bool:
        return not (self.interval_us or self.unit or self.cron)


def timing(spec: ScheduleSpec, name: str = "") -> Timing:
    """What a spec means, or an error that says which field is wrong. `name` decides what H stands for."""
    zone = _zone(spec.timezone)
    interval_us, unit, cron = _every(spec.schedule, name)
    start = None if spec.start is None else moment(spec.start, zone, "start")
    end = None if spec.end is None else moment(spec.end, zone, "end")
    if start is not None and end is not None and end <= start:
        raise InvalidInput("end: it lies before the start", field="end", hint="it would never run")
    jitter = units.seconds(spec.jitter, "jitter")
    if jitter > 86_400:
        raise InvalidInput(f"jitter: {spec.jitter!r} is out of range", field="jitter", hint="at most a day")
    overlap = _OVERLAPS.get(spec.overlap)
    misfire = _MISFIRES.get(spec.misfire)
    if overlap is None:
        raise _no_choice(spec.overlap, "overlap", _OVERLAPS)
    if misfire is None:
        raise _no_choice(spec.misfire, "misfire", _MISFIRES)
    return Timing(zone, interval_us, unit, cron, start, end, jitter, overlap, misfire)


def moment(value: str | float, zone: zoneinfo.ZoneInfo, field: str) -> datetime.datetime:
    """A moment in UTC; one without a zone of its own is read in the schedule's."""
    if isinstance(value, str):
        try:
            found = datetime.datetime.fromisoformat(value)
        except ValueError:
            found = None
        if found is not None and found.tzinfo is None:
            value = found.replace(tzinfo=zone).isoformat()
    return datetime.datetime.fromtimestamp(at_seconds(value, field), datetime.UTC)


def stable(seed: str, below: int) -> int:
    """A number that only the seed decides: the same on every server, for ever."""
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "big") % below


def describe(spec: ScheduleSpec) -> str:
    """A schedule in one line, for people."""
    every = spec.schedule
    if isinstance(every, str) and not every.replace(".", "", 1).isdigit():
        text = every
    else:
        seconds = float(every)
        often = f"{seconds:g}s" if seconds < 60 else units.duration_text(seconds)
        text = f"every {often}" if seconds else "once"
    return text if spec.timezone == "UTC" else f"{text} ({spec.timezone})"


def _every(value: float | str, name: str) -> tuple[int, Unit | None, str]:
    if isinstance(value, str):
        text = value.strip()
        word = text.lower().removeprefix("@")
        word = _ALIASES.get(word, word)
        if word in Unit._value2member_map_:
            return 0, Unit(word), ""
        if len(text.split()) >= 5:
            return 0, None, _cron(text, name)
    try:
        seconds = units.seconds(value, "schedule")
    except InvalidInput as error:
        if not isinstance(value, str) or "out of range" in error.detail:
            raise
        near = difflib.get_close_matches(value.lower(), [unit.value for unit in Unit], n=1)
        also = f", did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"schedule: {value[:60]!r} is not a schedule{also}", field="schedule", hint=HINT) from None
    if 0 < seconds < SHORTEST_S:
        raise InvalidInput(f"schedule: {value!r} is out of range", field="schedule", hint="0 for once, else at least a second")
    return round(seconds * 1_000_000), None, ""


def _cron(text: str, name: str) -> str:
    """The expression with every H replaced, checked."""
    fields = text.upper().split()
    try:
        if len(text) > _CRON_LIMIT or len(fields) > 6:
            raise CronSimError("too long" if len(text) > _CRON_LIMIT else "more than six fields")
        offset = 6 - len(fields)
        text = " ".join(_unhashed(word, at + offset, name) for at, word in enumerate(fields))
        next(CronSim(text, datetime.datetime(2024, 1, 1)))
    except StopIteration:
        raise InvalidInput(f"schedule: {text!r} never happens", field="schedule") from None
    except (CronSimError, AssertionError, ValueError) as error:
        raise InvalidInput(
            f"schedule: {text[:60]!r} is not a cron expression: {error or 'a step of something that has no steps'}",
            field="schedule",
            hint="minute hour day month weekday, or seconds before them",
        ) from None
    return text


def _unhashed(word: str, field: int, name: str) -> str:
    """H is a value that the schedule's name decides, H/15 every 15 from such a value on, H(0-29) one between these."""
    if not word.startswith("H"):
        return word
    match = _HASHED.fullmatch(word)
    low, high = _H_RANGES[field]
    if match is None:
        raise CronSimError(f"{word!r} is no H, H/15 or H(0-29)")
    if match[1]:
        if not low <= int(match[1]) <= int(match[2]) <= high:
            raise CronSimError(f"{word!r} is out of range")
        low, high = int(match[1]), int(match[2])
    step = int(match[3] or 0)
    if match[3] and not 0 < step <= high - low + 1:
        raise CronSimError(f"{word!r} is out of range")
    first = low + stable(f"{name}/{field}", step or high - low + 1)
    return f"{first}-{high}/{step}" if step and first + step <= high else str(first)


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # a folder of zones is an OSError, ../x a ValueError
        pass
    near = difflib.get_close_matches(name, zoneinfo.available_timezones(), n=1, cutoff=0.7)
    raise InvalidInput(
        f"timezone: there is no time zone {name[:60]!r}" + (f", did you mean {near[0]!r}?" if near else ""),
        field="timezone",
        hint='write one such as "Europe/Berlin"; the server needs the system\'s time zone data (package tzdata)',
    )


def _no_choice(word: str, field: str, choices: Iterable[str]) -> InvalidInput:
    near = difflib.get_close_matches(word, choices, n=1)
    also = f", did you mean {near[0]!r}?" if near else ""
    return InvalidInput(f"{field}: {word[:40]!r} is unknown{also}", field=field, hint=", ".join(choices))
