"""When it is peak, what may run then, when a queue is open, and when a task is promoted (E2 E3 E4 F5)."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.queues import OffPeak, Queue, Rules, Runs, hours_of, hours_text, is_open, opens_at
from headway.errors import InvalidInput
from headway.policy.peak import is_peak, judge
from headway.policy.placement import Gate
from headway.policy.promotion import LONGEST_S, SHORTEST_S, lead, top_k

NOW = datetime.datetime(2026, 11, 16, 12, 0, tzinfo=datetime.UTC)  # a Monday
moments = st.datetimes(datetime.datetime(2026, 1, 1), datetime.datetime(2027, 1, 1), timezones=st.just(datetime.UTC))


@given(st.lists(st.floats(0, 1.2), max_size=50))
def test_peak_begins_at_80_and_ends_below_70_percent(utilisations):
    peak = False
    for utilisation in utilisations:
        before, peak = peak, is_peak(peak, utilisation)
        if utilisation >= 0.8:
            assert peak
        elif utilisation < 0.7:
            assert not peak
        else:
            assert peak == before, "between the two it stays as it was"


@given(st.sampled_from(OffPeak), st.booleans(), st.sampled_from(Runs), st.booleans(), st.booleans(), st.booleans())
def test_what_may_go_follows_from_the_rules(off_peak, urgent, runs, paused, peak, keep):
    verdict = judge(Rules(off_peak=off_peak, urgent=urgent), Queue("q", runs, paused=paused), peak=peak, keep=keep, now=NOW)
    if paused:
        assert verdict.gate is Gate.CLOSED
    elif runs is Runs.PEAK:
        assert (verdict.gate is Gate.CLOSED) == (not peak or off_peak is OffPeak.ONLY)
    elif not peak:
        assert verdict.gate is Gate.OPEN
    if verdict.gate is not Gate.OPEN:
        assert verdict.reason
    if peak and not keep and not paused and runs is Runs.ALWAYS and off_peak is not OffPeak.ONLY:
        assert verdict.gate is Gate.OPEN, "nothing urgent comes: nothing to wait for"


@pytest.mark.parametrize("text", ["mon-fri 22:00-06:00", "sat,sun 0:00-24:00", "1:30-4:00", "fri-mon 9:00-17:30"])
def test_hours_are_written_as_they_are_read(text):
    assert hours_of(hours_text(hours_of(text))) == hours_of(text)


@pytest.mark.parametrize("text", ["", "22-6", "mon 25:00-26:00", "someday 1:00-2:00", "24:00-1:00", "mon-fri"])
def test_hours_that_mean_nothing_are_refused(text):
    with pytest.raises(InvalidInput) as caught:
        hours_of(text)
    assert caught.value.field == "hours"


def test_a_night_belongs_to_the_day_it_began():
    queue = Queue("nights", hours=(hours_of("fri 22:00-6:00"),))
    friday = datetime.datetime(2026, 11, 20, 23, 0, tzinfo=datetime.UTC)
    assert is_open(queue, friday)
    assert is_open(queue, friday + datetime.timedelta(hours=6))
    assert not is_open(queue, friday + datetime.timedelta(hours=8))
    assert not is_open(queue, friday + datetime.timedelta(days=1))


@given(moments, st.sampled_from(["mon-fri 22:00-06:00", "1:30-4:00", "sun 2:00-3:00"]), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_a_closed_queue_opens_at_the_first_open_minute(now, hours, zone):
    queue = Queue("q", hours=(hours_of(hours),), timezone=zone)
    opens = opens_at(queue, now)
    assert opens is not None
    assert opens >= now
    assert is_open(queue, opens)
    if opens > now:
        minute = now.replace(second=0, microsecond=0) + datetime.timedelta(minutes=1)
        for step in range(0, int((opens - minute).total_seconds() // 60), 7):
            assert not is_open(queue, minute + datetime.timedelta(minutes=step))


def test_hours_are_of_the_queues_time_zone():
    queue = Queue("q", hours=(hours_of("9:00-10:00"),), timezone="Asia/Tokyo")
    tokyo = datetime.datetime(2026, 11, 16, 9, 30, tzinfo=zoneinfo.ZoneInfo("Asia/Tokyo"))
    assert is_open(queue, tokyo.astimezone(datetime.UTC))
    assert not is_open(queue, tokyo.replace(tzinfo=datetime.UTC))


waiting_tasks = st.lists(st.tuples(st.floats(-100, 10_000), st.floats(1, 100)), max_size=20)


@given(waiting_tasks, st.floats(0.01, 1e4), st.floats(0, 10), st.booleans())
def test_the_lead_is_bounded_and_grows_with_what_waits(waiting, drain, start_up, full):
    now = lead(waiting, drain_per_s=drain, start_up_s=start_up, full=full)
    assert SHORTEST_S <= now <= LONGEST_S
    assert lead([*waiting, (0.0, 10.0)], drain_per_s=drain, start_up_s=start_up, full=full) >= now
    assert lead(waiting, drain_per_s=drain, start_up_s=start_up, full=False) <= now


@given(waiting_tasks, st.floats(0.01, 100))
def test_whoever_could_not_be_begun_in_time_behind_the_others_is_promoted(waiting, drain):
    early = lead(waiting, drain_per_s=drain, start_up_s=0.0, full=True)
    before = 0.0
    for slack, count in sorted(waiting):
        before += count
        if slack > early:
            assert before / drain <= slack, "it may wait: all before it and itself begin in time"


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 5000))
def test_top_k_follows_room_and_drain_within_its_bounds(free, drain, most):
    k = top_k(free=free, ahead=drain * 0.25, most=most)
    assert 1 <= k <= most
    assert k == most or k >= free
