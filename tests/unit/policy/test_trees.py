"""A tree's state and the expected ends of its levels follow from counters alone."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policy.trees import Level, Sums, expected_ends, state

NOW = datetime.datetime(2026, 11, 15, 12, 0, tzinfo=datetime.UTC)


def at(seconds: float) -> datetime.datetime:
    return NOW + datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("sums", "begun", "expected"),
    [
        (Sums(3), False, "ready"),
        (Sums(3), True, "running"),
        (Sums(3, succeeded=1), False, "running"),
        (Sums(3, succeeded=2, failed=1), False, "failed"),
        (Sums(3, failed=1, succeeded=1), True, "running"),
        (Sums(3, succeeded=2, expired=1), False, "failed"),
        (Sums(3, succeeded=2, skipped=1), False, "failed"),
        (Sums(3, succeeded=2, spared=1), False, "succeeded"),
        (Sums(3, cancelled=2, skipped=1), False, "cancelled"),
        (Sums(3, cancelled=1, failed=1, skipped=1), False, "failed"),
        (Sums(3, succeeded=3), False, "succeeded"),
    ],
)
def test_the_state_of_a_tree_is_derived_from_how_its_tasks_ended(sums, begun, expected):
    assert state(sums, begun=begun) == expected


def test_a_level_under_way_goes_on_at_its_own_pace():
    level = Level(left=6, succeeded=4, busy_s=40.0, first_at=at(-20), last_at=at(0))  # two at a time, ten seconds each
    assert expected_ends([level], [None], NOW) == [at(30)]


def test_a_level_that_has_not_begun_takes_the_pace_of_the_run_before_and_waits_for_the_one_below():
    below = Level(left=1, succeeded=1, busy_s=10.0, first_at=at(-10), last_at=at(0))
    before = Level(left=0, succeeded=4, busy_s=20.0, first_at=at(-110), last_at=at(-100))
    assert expected_ends([below, Level(left=4)], [None, before], NOW) == [at(10), at(15)]


def test_nothing_is_claimed_where_nothing_is_known():
    assert expected_ends([Level(left=2), Level(left=1)], [None, None], NOW) == [None, None]


def test_a_level_that_is_over_ended_when_its_last_task_did():
    done = Level(left=0, succeeded=1, busy_s=1.0, first_at=at(-5), last_at=at(-4))
    assert expected_ends([done, Level(left=1)], [None, None], NOW) == [at(-4), None]


counts = st.integers(0, 5)


@given(counts, st.lists(counts, min_size=6, max_size=6), st.booleans())
def test_a_tree_has_ended_when_all_its_tasks_have_and_well_when_nothing_went_wrong(left, ends, begun):
    sums = Sums(left + sum(ends), *ends)
    found = state(sums, begun=begun)
    assert (found in ("ready", "running")) == (left > 0)
    if not left:
        assert (found == "succeeded") == (sums.succeeded + sums.spared == sums.total)


levels = st.builds(
    lambda left, done, each, span: Level(left, done, done * each, at(-span) if done else None, at(0) if done else None),
    st.integers(0, 50), st.integers(0, 50), st.floats(0.001, 1000), st.floats(0, 1000),
)  # fmt: skip


@given(st.lists(st.tuples(levels, st.none() | levels), min_size=1, max_size=5))
def test_no_level_ends_in_the_past_or_before_the_one_below(both):
    now = at(0)
    ends = expected_ends([level for level, _ in both], [before for _, before in both], now)
    below = now
    for (level, _), end in zip(both, ends, strict=True):
        if level.left and end is not None:
            assert end >= below
            below = end
        assert level.width is None or level.width >= 1.0
