"""The promise at admission as a decision (E7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.policy.promise import Load, predicted_wait


def test_without_nodes_or_rates_nothing_is_promised():
    assert predicted_wait(Load(0, 0.0, 0, 10.0, 16)) is None
    assert predicted_wait(Load(2, 1.0, 5, 0.0, 16)) is None


def test_with_room_it_starts_at_once():
    assert predicted_wait(Load(2, 0.5, 3, 0.0, 16)) == 0.0


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0.01, 1e5))
def test_more_in_front_is_never_sooner(ahead, more, per_s):
    load = Load(1, 1.0, ahead, per_s, 16)
    first, last = predicted_wait(load), predicted_wait(load, more)
    assert first is not None
    assert last is not None
    assert first <= last
