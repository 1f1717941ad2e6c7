"""A silent node is lost in time; a reaper's own absence kills nobody (I1)."""

from __future__ import annotations

import datetime
import math

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity
from headway.policy.liveness import Watch
from headway.policy.pace import FIRST_HORIZON_S, LONGEST_HORIZON_S, STALE_S, Pace
from headway.policy.room import NodeRoom

AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def seen(seconds: float) -> datetime.datetime:
    return AT + datetime.timedelta(seconds=seconds)


def test_a_node_silent_for_the_limit_is_lost():
    watch = Watch(lost_s=5, longest_tick_s=1.5)
    lost = [watch.tick({1: seen(0)}, now=t * 0.5) for t in range(12)]
    assert lost[:10] == [[]] * 10
    assert lost[10] == [1]


def test_a_heartbeat_starts_the_count_over():
    watch = Watch(lost_s=2, longest_tick_s=1.5)
    for t in range(100):
        assert watch.tick({1: seen(t // 3)}, now=t * 0.5) == []


def test_a_node_that_was_told_to_hold_on_is_silent_from_then_on():
    watch = Watch(lost_s=5, longest_tick_s=1.5)
    for t in range(10):
        assert watch.tick({1: seen(0), 2: seen(0)}, now=t * 0.5) == []
    watch.held(1)
    watch.held(3)  # one that the reaper has not seen
    lost = [watch.tick({1: seen(0), 2: seen(0)}, now=5 + t * 0.5) for t in range(10)]
    assert lost == [[2]] * 9 + [[1, 2]]


def test_a_reaper_that_was_away_forgets_what_it_had_counted():
    watch = Watch(lost_s=5, longest_tick_s=1.5)
    for t in range(10):
        assert watch.tick({1: seen(0)}, now=t * 0.5) == []
    lost = [watch.tick({1: seen(0)}, now=20 + t * 0.5) for t in range(11)]
    assert lost == [[]] * 10 + [[1]]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=50))
def test_only_time_the_reaper_watched_counts(gaps):
    watch = Watch(lost_s=5, longest_tick_s=1.5)
    now, watched = 0.0, 0.0
    watch.tick({1: seen(0)}, now)
    for gap in gaps:
        now += gap
        watched = watched + gap if gap <= 1.5 else 0.0
        if watch.tick({1: seen(0)}, now):
            assert watched >= 5 - 1e-6
            return


@given(st.floats(0, 1), st.floats(0, 10), st.floats(0.2, 2.0))
def test_a_silent_node_is_found_within_one_look_of_its_time(phase, last_heartbeat, longest):
    watch = Watch(lost_s=5, longest_tick_s=2.5)
    now, looks = phase, 0
    while not watch.tick({1: seen(min(now // 1, last_heartbeat))}, now):
        rest = watch.rest(longest)
        assert 0 < rest <= longest
        now += rest + 1e-9
        looks += 1
    assert now <= max(math.ceil(last_heartbeat), phase) + longest + 5 + 1e-6
    assert looks <= 2 + now / longest


def test_a_node_that_runs_dry_is_supplied_further_ahead_within_the_bound():
    pace = Pace()
    for i in range(100):
        pace.finished(100, i * 0.02, held=0, at_once=0)
    assert pace.horizon_s == LONGEST_HORIZON_S
    assert 0 < pace.ahead(99 * 0.02) <= pace.rate * LONGEST_HORIZON_S


def test_what_runs_does_not_count_as_waiting():
    """Twenty that run and nothing behind them: the node has nothing to start when they end."""
    pace = Pace()
    pace.finished(20, 0.0, held=25, at_once=20)
    assert pace.horizon_s > FIRST_HORIZON_S


def test_a_node_with_enough_behind_what_runs_keeps_its_horizon_and_with_plenty_it_shrinks():
    pace = Pace()
    pace.finished(20, 0.0, held=20 + 30, at_once=20)
    assert pace.horizon_s == FIRST_HORIZON_S
    pace.finished(20, 0.1, held=20 + 41, at_once=20)
    assert pace.horizon_s < FIRST_HORIZON_S


def test_functions_that_all_fit_but_run_one_after_another_are_not_supplied_without_end():
    pace = Pace()
    for i in range(50):
        pace.finished(100, i * 0.02, held=350, at_once=350)
    assert pace.horizon_s < FIRST_HORIZON_S


@given(st.integers(1, 8000), st.integers(0, 500))
def test_a_node_knows_about_how_many_of_what_it_holds_fit_at_once(cpus, held):
    room = NodeRoom(1, "a", Capacity(cpus_milli=8000, memory=2**30, disk=2**30))
    room.allocate(((0, cpus),), held)
    assert room.at_once == held if held * cpus <= 8000 else abs(room.at_once - 8000 // cpus) <= 1


def test_slow_tasks_are_not_supplied_ahead():
    pace = Pace()
    for i in range(50):
        pace.finished(1, i * 1.0, held=0, at_once=0)
    assert pace.ahead(49.0) == 0


def test_a_stall_is_noticed():
    pace = Pace()
    for i in range(50):
        pace.finished(400, i * 0.01, held=500, at_once=10)
    busy = pace.ahead(0.49)
    pace.finished(1, 3.0, held=500, at_once=10)
    assert pace.ahead(3.0) < busy / 10


def test_a_rate_is_believed_only_while_finishes_come():
    pace = Pace()
    for i in range(50):
        pace.finished(400, i * 0.01, held=500, at_once=10)
    assert pace.ahead(0.49 + STALE_S) > 0
    assert pace.ahead(0.5 + STALE_S) == 0


@given(
    st.integers(1, 8),
    st.floats(0.3, 5.0),
    st.lists(st.tuples(st.floats(0, 0.003), st.floats(0, 0.3)), min_size=1, max_size=60),
)
def test_long_tasks_that_end_together_bring_no_queue_of_orders(places, seconds, noise):
    """What waits at a node stands before every other tenant's task. `noise`: how late an end is, and how late it is told."""
    pace = Pace()
    running, queued = [seconds] * places, 0
    for late, told in noise:
        at = min(running) + late
        running.remove(min(running))
        pace.finished(1, at + told * 0.001, held=len(running) + queued, at_once=len(running))
        queued += max(0, max(places, pace.ahead(at + told * 0.001)) - len(running) - queued)
        while queued and len(running) < places:
            running.append(at + told + seconds)
            queued -= 1
        assert queued <= places * LONGEST_HORIZON_S / (seconds - LONGEST_HORIZON_S) + 1
