"""When schedules fire, against answers found by hand: from calendars and from the published dates of clock changes (D1)."""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.firings import delayed, latest, mean_gap, shortest_gap, upcoming
from headway.domain.schedule import ScheduleSpec, describe, timing
from headway.errors import InvalidInput

UTC = datetime.UTC

# In 2026 clocks change in Berlin on 29 March and 25 October at 01:00 UTC, in New York on 8 March at 07:00 and 1 November at 06:00 UTC,
# on Lord Howe Island on 3 October at 15:30 UTC by half an hour. Sao Paulo left out midnight of 4 November 2018, Samoa all of
# 30 December 2011. 1 January 2026 is a Thursday.
KNOWN: list[tuple[str, Any, dict[str, Any], str, list[str]]] = [
    ("seconds", 90, {"start": "2026-01-01T00:00:00Z"}, "2026-01-01 00:01:00", ["2026-01-01 00:01:30", "2026-01-01 00:03:00"]),
    ("seconds before the start", 60, {"start": "2026-01-01T12:00:00Z"}, "2026-01-01 00:00", ["2026-01-01 12:00", "2026-01-01 12:01"]),
    ("once", 0, {"start": "2026-01-01T12:00:00Z"}, "2026-01-01 00:00", ["2026-01-01 12:00"]),
    ("once is over", 0, {"start": "2026-01-01T12:00:00Z"}, "2026-01-01 12:00", []),
    ("daily", "daily", {}, "2026-12-30 10:00", ["2026-12-31 00:00", "2027-01-01 00:00"]),
    ("a nickname", "@daily", {}, "2026-12-30 10:00", ["2026-12-31 00:00", "2027-01-01 00:00"]),
    ("hourly", "hourly", {}, "2026-12-31 23:30", ["2027-01-01 00:00", "2027-01-01 01:00"]),
    ("weekly is Sunday", "weekly", {}, "2026-11-15 00:00", ["2026-11-22 00:00", "2026-11-29 00:00"]),
    ("weekly from a Wednesday", "weekly", {"start": "2026-01-07T08:30:00Z"}, "2026-02-01 00:00",
     ["2026-02-04 08:30", "2026-02-11 08:30"]),
    ("monthly", "monthly", {}, "2026-01-15 00:00", ["2026-02-01 00:00", "2026-03-01 00:00"]),
    ("month ends", "monthly", {"start": "2026-01-31T09:00:00Z"}, "2026-01-31 09:00",
     ["2026-02-28 09:00", "2026-03-31 09:00", "2026-04-30 09:00", "2026-05-31 09:00"]),
    ("month end in a leap year", "monthly", {"start": "2026-01-31T09:00:00Z"}, "2028-01-31 09:00",
     ["2028-02-29 09:00", "2028-03-31 09:00"]),
    ("monthly on the 30th", "monthly", {"start": "2026-01-30T00:00:00Z"}, "2026-02-01 00:00", ["2026-02-28 00:00", "2026-03-30 00:00"]),
    ("annually", "annually", {}, "2026-06-01 00:00", ["2027-01-01 00:00", "2028-01-01 00:00"]),
    ("yearly is annually", "@yearly", {}, "2026-06-01 00:00", ["2027-01-01 00:00"]),
    ("leap day", "annually", {"start": "2024-02-29T06:00:00Z"}, "2024-03-01 00:00",
     ["2025-02-28 06:00", "2026-02-28 06:00", "2027-02-28 06:00", "2028-02-29 06:00"]),
    ("an end", "daily", {"end": "2026-01-03T00:00:00Z"}, "2026-01-01 12:00", ["2026-01-02 00:00", "2026-01-03 00:00"]),
    ("a zone without whole hours", "0 6 * * *", {"timezone": "Asia/Kathmandu"}, "2026-01-01 00:00",
     ["2026-01-01 00:15", "2026-01-02 00:15"]),
    # cron
    ("weekdays by name", "0 9 * * MON-FRI", {}, "2026-11-13 09:00", ["2026-11-16 09:00", "2026-11-17 09:00"]),
    ("months by name", "0 0 1 JAN,JUL *", {}, "2026-02-01 00:00", ["2026-07-01 00:00", "2027-01-01 00:00"]),
    ("the 31st only where there is one", "0 12 31 * *", {}, "2026-01-31 12:00",
     ["2026-03-31 12:00", "2026-05-31 12:00", "2026-07-31 12:00"]),
    ("the last day", "0 12 L * *", {}, "2026-01-30 00:00", ["2026-01-31 12:00", "2026-02-28 12:00", "2026-03-31 12:00"]),
    ("29 February", "0 0 29 2 *", {}, "2024-03-01 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
    ("the second Monday", "30 9 * * MON#2", {}, "2026-11-01 00:00", ["2026-11-09 09:30", "2026-12-14 09:30"]),
    ("the last Friday", "0 18 * * 5L", {}, "2026-11-01 00:00", ["2026-11-27 18:00", "2026-12-25 18:00"]),
    ("the 13th or a Friday", "0 0 13 * 5", {}, "2026-11-13 00:00",
     ["2026-11-20 00:00", "2026-11-27 00:00", "2026-12-04 00:00", "2026-12-11 00:00", "2026-12-13 00:00"]),
    ("seconds in front", "*/20 * * * * *", {}, "2026-01-01 00:00:05",
     ["2026-01-01 00:00:20", "2026-01-01 00:00:40", "2026-01-01 00:01:00"]),
    # the night in spring: an hour is missing
    ("Berlin, 02:30 does not exist", "30 2 * * *", {"timezone": "Europe/Berlin"}, "2026-03-28 00:00",
     ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),
    ("Berlin, daily at 02:30", "daily", {"timezone": "Europe/Berlin", "start": "2026-01-01T02:30"}, "2026-03-28 00:00",
     ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),
    ("Berlin, seconds too", "15 30 2 * * *", {"timezone": "Europe/Berlin"}, "2026-03-28 12:00",
     ["2026-03-29 01:00", "2026-03-30 00:30:15"]),
    ("Berlin, 02:00 and 03:00 are one", "0 1-4 * * *", {"timezone": "Europe/Berlin"}, "2026-03-28 23:30",
     ["2026-03-29 00:00", "2026-03-29 01:00", "2026-03-29 02:00", "2026-03-29 23:00"]),
    ("Berlin, every hour goes on", "0 * * * *", {"timezone": "Europe/Berlin"}, "2026-03-28 23:30",
     ["2026-03-29 00:00", "2026-03-29 01:00", "2026-03-29 02:00"]),
    ("Berlin, noon moves in UTC", "daily", {"timezone": "Europe/Berlin", "start": "2026-03-28T12:00"}, "2026-03-28 00:00",
     ["2026-03-28 11:00", "2026-03-29 10:00", "2026-03-30 10:00"]),
    ("Berlin, a day of seconds does not", 86400, {"timezone": "Europe/Berlin", "start": "2026-03-28T12:00"}, "2026-03-28 00:00",
     ["2026-03-28 11:00", "2026-03-29 11:00", "2026-03-30 11:00"]),
    ("New York, 02:30 does not exist", "30 2 * * *", {"timezone": "America/New_York"}, "2026-03-07 00:00",
     ["2026-03-07 07:30", "2026-03-08 07:00", "2026-03-09 06:30"]),
    ("Lord Howe, half an hour is missing", "15 2 * * *", {"timezone": "Australia/Lord_Howe"}, "2026-10-02 00:00",
     ["2026-10-02 15:45", "2026-10-03 15:30", "2026-10-04 15:15"]),
    ("Sao Paulo, midnight is missing", "daily", {"timezone": "America/Sao_Paulo"}, "2018-11-02 12:00",
     ["2018-11-03 03:00", "2018-11-04 03:00", "2018-11-05 02:00"]),
    ("Samoa, a day is missing", "daily", {"timezone": "Pacific/Apia"}, "2011-12-29 00:00",
     ["2011-12-29 10:00", "2011-12-30 10:00", "2011-12-31 10:00"]),
    # the night in autumn: an hour happens twice
    ("Berlin, 02:30 happens twice", "30 2 * * *", {"timezone": "Europe/Berlin"}, "2026-10-24 00:00",
     ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),
    ("Berlin, between the two 02:30", "30 2 * * *", {"timezone": "Europe/Berlin"}, "2026-10-25 01:10", ["2026-10-26 01:30"]),
    ("Berlin, daily at 02:30 in autumn", "daily", {"timezone": "Europe/Berlin", "start": "2026-01-01T02:30"}, "2026-10-24 00:00",
     ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),
    ("Berlin, every half hour of that hour", "*/30 2 * * *", {"timezone": "Europe/Berlin"}, "2026-10-24 12:00",
     ["2026-10-25 00:00", "2026-10-25 00:30", "2026-10-25 01:00", "2026-10-25 01:30", "2026-10-26 01:00"]),
    ("New York, 01:30 happens twice", "30 1 * * *", {"timezone": "America/New_York"}, "2026-10-31 12:00",
     ["2026-11-01 05:30", "2026-11-02 06:30"]),
    ("New York, every 15 minutes goes on", "*/15 * * * *", {"timezone": "America/New_York"}, "2026-11-01 05:40",
     ["2026-11-01 05:45", "2026-11-01 06:00", "2026-11-01 06:15"]),
]  # fmt: skip


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(("schedule", "fields", "after", "expected"), [row[1:] for row in KNOWN], ids=[row[0] for row in KNOWN])
def test_it_fires_at_the_moments_found_by_hand(schedule, fields, after, expected):
    found = upcoming(timing(ScheduleSpec(schedule, **fields)), moment(after), moment(after), max(len(expected), 1))
    assert found == [moment(text) for text in expected]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"schedule": "dayly"}, "schedule", "did you mean 'daily'"),
        ({"schedule": "61 * * * *"}, "schedule", "Bad minute"),
        ({"schedule": "0 0 31 2 *"}, "schedule", "Bad day"),
        ({"schedule": "* * * * 5L/2"}, "schedule", "not a cron"),
        ({"schedule": "1 2 3 4 5 6 7"}, "schedule", "more than six"),
        ({"schedule": "H(50-70) * * * *"}, "schedule", "out of range"),
        ({"schedule": "* * * * " + "1," * 200 + "1"}, "schedule", "too long"),
        ({"schedule": 0.5}, "schedule", "out of range"),
        ({"schedule": -1}, "schedule", "out of range"),
        ({"schedule": float("nan")}, "schedule", "not a duration"),
        ({"schedule": "daily", "timezone": "Europe/Berlinn"}, "timezone", "did you mean 'Europe/Berlin'"),
        ({"schedule": "daily", "timezone": "../../etc/passwd"}, "timezone", "no time zone"),
        ({"schedule": "daily", "timezone": "Europe"}, "timezone", "no time zone"),
        ({"schedule": "daily", "start": "tomorrow"}, "start", "not a moment"),
        ({"schedule": "daily", "start": "2026-01-02", "end": "2026-01-01"}, "end", "before the start"),
        ({"schedule": "daily", "overlap": "skipp"}, "overlap", "did you mean 'skip'"),
        ({"schedule": "daily", "misfire": "none"}, "misfire", "skip, one, all"),
        ({"schedule": "daily", "jitter": "3d"}, "jitter", "at most a day"),
    ],
)
def test_what_is_wrong_is_named(fields, field, words):
    with pytest.raises(InvalidInput) as caught:
        timing(ScheduleSpec(**fields))
    assert caught.value.field == field
    assert words in str(caught.value)


SOME = [
    ScheduleSpec(7),
    ScheduleSpec("daily", timezone="Europe/Berlin", start="2026-01-01T02:30"),
    ScheduleSpec("monthly", timezone="America/New_York", start="2025-12-31T01:30"),
    ScheduleSpec("30 2 * * *", timezone="Europe/Berlin"),
    ScheduleSpec("*/20 1-3 * * *", timezone="Australia/Lord_Howe"),
    ScheduleSpec("0,30 1,2,3 * * SUN", timezone="America/New_York"),
]


@settings(max_examples=150)
@given(st.sampled_from(SOME), st.integers(0, 2 * 365 * 86400), st.integers(1, 20))
def test_moments_rise_and_do_not_depend_on_where_one_begins_to_look(spec, offset, count):
    when = timing(spec, "x")
    anchor = moment("2026-01-01 00:00")
    after = anchor + datetime.timedelta(seconds=offset)
    found = upcoming(when, after, anchor, count + 3)
    assert all(a < b for a, b in zip([after, *found], found, strict=False))
    assert upcoming(when, found[count - 1], anchor, 3) == found[count:]
    assert latest(when, found[-1], after, anchor) == found[-1]


def test_h_is_spread_over_schedules_and_stays_for_each():
    first = {name: timing(ScheduleSpec("H H * * *"), name).cron for name in map(str, range(200))}
    assert first == {name: timing(ScheduleSpec("H H * * *"), name).cron for name in first}
    assert len(set(first.values())) > 150
    assert all(0 <= int(cron.split()[0]) < 60 and 0 <= int(cron.split()[1]) < 24 for cron in first.values())


def test_h_with_a_step_or_a_range_stays_inside():
    when = timing(ScheduleSpec("H/15 * * * *"), "x")
    found = upcoming(when, moment("2026-01-01 00:00"), moment("2026-01-01 00:00"), 8)
    assert {(b - a).total_seconds() for a, b in pairwise(found)} == {900.0}
    for name in map(str, range(50)):
        assert 10 <= int(timing(ScheduleSpec("H(10-20) * * * *"), name).cron.split()[0]) <= 20


def test_jitter_is_the_same_for_everybody_and_never_reaches_the_next_firing():
    when = timing(ScheduleSpec("hourly", jitter="6h"), "x")
    moments = upcoming(when, moment("2026-01-01 00:00"), moment("2026-01-01 00:00"), 50)
    late = [delayed(when, at, following, "x") for at, following in pairwise(moments)]
    assert late == [delayed(when, at, following, "x") for at, following in pairwise(moments)]
    assert all(at <= found < following for at, found, following in zip(moments, late, moments[1:], strict=False))
    assert len({found - at for at, found in zip(moments, late, strict=False)}) > 40


def test_how_often_something_fires():
    after = moment("2026-01-01 00:00")
    assert shortest_gap(timing(ScheduleSpec("0 9 * * 1-5")), after) == 86400
    assert 1.3 * 86400 < (mean_gap(timing(ScheduleSpec("0 9 * * 1-5")), after) or 0) < 1.5 * 86400
    assert shortest_gap(timing(ScheduleSpec(0)), after) is None


def test_a_schedule_is_described_in_one_line():
    assert describe(ScheduleSpec(300)) == "every 5m"
    assert describe(ScheduleSpec(0)) == "once"
    assert describe(ScheduleSpec("0 3 * * *", timezone="Europe/Berlin")) == "0 3 * * * (Europe/Berlin)"
