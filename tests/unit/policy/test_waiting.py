"""Bounded waiting as a decision (E7): what is warned of, what ends, what is looked at again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.lifecycle import HELD, State
from headway.policy.waiting import Step, Waiter, judge


def waiter(state=State.READY, *, eligible=0.0, since=0.0, requeues=0, limit=100.0, keep=False, warned=False):
    return Waiter(state, eligible, since, requeues, limit, keep, warned)


@pytest.mark.parametrize(
    ("case", "now", "step", "next_at"),
    [
        (waiter(), 10.0, Step.LOOK_AGAIN, 80.0),
        (waiter(), 80.0, Step.WARN, 100.0),
        (waiter(warned=True), 85.0, Step.LOOK_AGAIN, 100.0),
        (waiter(warned=True), 100.0, Step.EXPIRE, 100.0),
        (waiter(keep=True), 100.0, Step.WARN, 100.0),
        (waiter(keep=True, warned=True), 100.0, Step.FORGET, 100.0),
        (waiter(State.BLOCKED, since=None), 500.0, Step.LOOK_AGAIN, 580.0),
        (waiter(State.RUNNING), 500.0, Step.LOOK_AGAIN, 510.0),
        (waiter(State.SCHEDULED, eligible=600.0), 500.0, Step.LOOK_AGAIN, 680.0),
        (waiter(None), 1.0, Step.FORGET, 0.0),
    ],
)
def test_what_to_do(case, now, step, next_at):
    verdict = judge(case, now)
    assert (verdict.step, verdict.next_at) == (step, next_at)


def test_a_retry_after_a_failure_waits_anew_but_being_put_back_does_not():
    assert judge(waiter(eligible=90.0), 120.0).step is Step.LOOK_AGAIN
    assert judge(waiter(eligible=90.0, requeues=1), 120.0).step is Step.EXPIRE


@given(st.builds(waiter, st.sampled_from([State.BLOCKED, *HELD]), requeues=st.integers(0, 3), keep=st.booleans()), st.floats(0, 1e6))
def test_what_is_blocked_or_on_a_node_never_expires(case, now):
    verdict = judge(case, now)
    assert verdict.step is Step.LOOK_AGAIN
    assert verdict.next_at > now


@given(st.floats(0, 1e6), st.floats(0.01, 1e5), st.booleans(), st.booleans(), st.floats(0, 2e6))
def test_nothing_expires_before_its_limit_and_every_look_leads_on(eligible, limit, keep, warned, now):
    case = waiter(eligible=eligible, since=eligible, limit=limit, keep=keep, warned=warned)
    verdict = judge(case, now)
    if verdict.step is Step.EXPIRE:
        assert now >= eligible + limit
        assert not keep
    if verdict.step is Step.LOOK_AGAIN:
        assert verdict.next_at > now
