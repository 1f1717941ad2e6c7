"""What a late timekeeper fires, and what becomes of a firing while a run is going (D2)."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.schedule import Overlap, ScheduleSpec, timing
from headway.policy.firing import MOST, MOST_WAITING, Fate, due, fate

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
MINUTE, HOUR = datetime.timedelta(minutes=1), datetime.timedelta(hours=1)


def what(schedule: float | str, late: datetime.timedelta, **fields: str):
    return due(timing(ScheduleSpec(schedule, **fields), "s"), name="s", next_at=NOON, anchor=NOON, now=NOON + late)


def test_a_firing_on_time_is_not_missed():
    found = what(3600, 30 * MINUTE / 60)
    assert found.fire == [(NOON, 0)]
    assert found.next_at == NOON + HOUR


def test_nothing_is_due_before_its_time():
    found = what(3600, -MINUTE)
    assert found.fire == []
    assert found.next_at == NOON


def test_skip_leaves_out_what_was_missed_and_fires_what_is_on_time():
    found = what(3600, 3 * HOUR + MINUTE / 2, misfire="skip")
    assert found.fire == [(NOON + 3 * HOUR, 0)]
    assert found.missed == (NOON + 2 * HOUR, 3)


def test_one_run_stands_for_all_that_were_missed():
    found = what(3600, 3 * HOUR + 5 * MINUTE, misfire="one")
    assert found.fire == [(NOON + 3 * HOUR, 3)]
    on_time = what(3600, 3 * HOUR, misfire="one")
    assert on_time.fire == [(NOON + 3 * HOUR, 3)]


def test_all_runs_each_in_rounds_that_end():
    found = what(1, 2 * HOUR, misfire="all")
    assert len(found.fire) == MOST
    assert found.next_at == NOON + datetime.timedelta(seconds=MOST)


@pytest.mark.parametrize("misfire", ["skip", "one"])
def test_a_second_s_schedule_that_slept_for_a_year_is_dealt_with_at_once(misfire):
    late = datetime.timedelta(days=365)
    found = what(1, late, misfire=misfire)
    assert found.next_at is not None
    assert found.next_at > NOON + late
    assert len(found.fire) <= 61


def test_once_has_nothing_after_it():
    found = what(0, MINUTE / 2)
    assert found.fire == [(NOON, 0)]
    assert (found.next_at, found.due_at) == (None, None)


def test_the_end_is_the_end():
    found = what(3600, 10 * HOUR, misfire="all", end=(NOON + 2 * HOUR).isoformat())
    assert [at for at, _ in found.fire] == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert found.next_at is None


@pytest.mark.parametrize(
    ("overlap", "going", "waiting", "expected"),
    [
        (Overlap.SKIP, False, 0, Fate.STARTED),
        (Overlap.SKIP, True, 0, Fate.SKIPPED),
        (Overlap.QUEUE, False, 0, Fate.STARTED),
        (Overlap.QUEUE, True, 0, Fate.WAITING),
        (Overlap.QUEUE, False, 1, Fate.WAITING),
        (Overlap.QUEUE, True, MOST_WAITING, Fate.SKIPPED),
        (Overlap.REPLACE, True, 0, Fate.WAITING),
        (Overlap.ALLOW, True, 5, Fate.STARTED),
    ],
)
def test_what_becomes_of_a_firing(overlap, going, waiting, expected):
    assert fate(overlap, going=going, waiting=waiting) is expected


@given(
    st.sampled_from(["skip", "one", "all"]),
    st.integers(30, 7_200),
    st.integers(0, 600),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=6),
)
def test_every_moment_is_dealt_with_once_however_late_the_looks_come(misfire, interval, jitter, looks):
    """Fired, stood for by one that fires, or missed: no moment twice, none left out."""
    timing_ = timing(ScheduleSpec(interval, misfire=misfire, jitter=jitter), "s")
    at, now, dealt, next_at = NOON, NOON, 0, NOON
    for look in looks:
        now += datetime.timedelta(seconds=look)
        found = due(timing_, name="s", next_at=next_at, anchor=NOON, now=now)
        assert found.next_at is not None
        assert found.due_at is not None
        assert found.next_at <= found.due_at
        assert [moment for moment, _ in found.fire] == sorted({moment for moment, _ in found.fire})
        assert all(at <= moment <= now for moment, _ in found.fire)
        dealt += sum(1 + others for _, others in found.fire) + (found.missed[1] if found.missed else 0)
        next_at = found.next_at
    assert dealt == (next_at - NOON) / datetime.timedelta(seconds=interval)


@given(st.sampled_from(Overlap), st.booleans(), st.integers(0, 2 * MOST_WAITING))
def test_two_runs_are_never_started_beside_each_other_unless_that_is_allowed(overlap, going, waiting):
    if (going or waiting) and overlap is not Overlap.ALLOW:
        assert fate(overlap, going=going, waiting=waiting) is not Fate.STARTED
    else:
        assert fate(overlap, going=going, waiting=waiting) is Fate.STARTED
