"""A node that gives back what it was given is left in peace, longer each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.policy.rest import LONGEST_S, SHORTEST_S, SOON_S, Rest


def test_a_node_that_gives_back_at_once_rests_twice_as_long_each_time() -> None:
    rest, now, rests = Rest(), 100.0, []
    for _ in range(10):
        rests.append(rest.returned(now))
        now += rests[-1] + 0.004  # the way to the node and back
    assert rests[:3] == [SHORTEST_S, 2 * SHORTEST_S, 4 * SHORTEST_S]
    assert rests[-1] == LONGEST_S


def test_a_node_that_held_its_orders_for_a_while_rests_shortly() -> None:
    rest, now = Rest(), 100.0
    for _ in range(10):
        assert rest.returned(now) == SHORTEST_S
        now += SHORTEST_S + SOON_S + 0.5


def test_orders_given_back_one_after_another_are_one_return() -> None:
    rest = Rest()
    assert rest.returned(100.0) == SHORTEST_S
    assert rest.returned(100.0 + SHORTEST_S / 2) == 0.0


@given(st.lists(st.floats(0, 3), min_size=1, max_size=200))
def test_it_never_gives_back_more_than_once_a_rest_and_never_rests_for_long(gaps: list[float]) -> None:
    rest, now, free = Rest(), 0.0, 0.0
    for gap in gaps:
        now += gap
        seconds = rest.returned(now)
        assert (seconds == 0.0) == (now < free)
        assert seconds <= LONGEST_S
        free = max(free, now + seconds)
