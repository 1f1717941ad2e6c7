"""Failures of the task, of its resources and of its node are counted apart (F3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.lifecycle import BLAME, Blame, Outcome
from headway.domain.task import Retry
from headway.policy.retry import REQUEUE_LIMIT, Counts, Step, backoff, decide

charged = st.sampled_from(sorted(BLAME))
POLICY = Retry()
FRESH = Counts()


def judge(outcome, counts=FRESH, *, attempts=3, retry=POLICY, cancelling=False, luck=0.5):
    return decide(outcome, counts, attempts=attempts, retry=retry, cancelling=cancelling, luck=luck)


@given(st.lists(charged, max_size=60), st.integers(1, 10), st.integers(0, 5))
def test_every_task_ends_after_a_bounded_number_of_runs(outcomes, attempts, losses):
    counts = Counts()
    retry = Retry(node_losses=losses)
    for outcome in outcomes:
        verdict = judge(outcome, counts, attempts=attempts, retry=retry)
        counts = verdict.counts
        if verdict.step is Step.GIVE_UP:
            used = counts.failures + counts.resource_failures
            assert used == attempts or counts.node_losses == losses + 1 or counts.requeues > REQUEUE_LIMIT
            return
        assert counts.failures + counts.resource_failures < attempts
        assert counts.node_losses <= losses


@pytest.mark.parametrize("outcome", sorted(o for o, b in BLAME.items() if b in (Blame.NODE, Blame.NOBODY)))
def test_a_loss_or_a_requeue_uses_no_attempt(outcome):
    verdict = judge(outcome, attempts=1)
    assert verdict.step is Step.AGAIN
    assert verdict.counts.failures == verdict.counts.resource_failures == 0


def test_with_no_losses_allowed_a_lost_run_is_never_repeated():
    assert judge(Outcome.NODE_LOST, retry=Retry(node_losses=0)).step is Step.GIVE_UP


def test_a_cancelled_task_is_not_tried_again_however_its_attempt_ended():
    for outcome in BLAME:
        assert judge(outcome, cancelling=True).step is Step.CANCEL
    assert judge(Outcome.CANCELLED).step is Step.CANCEL


@given(st.integers(1, 200), st.floats(0, 0.999), st.floats(1, 10), st.floats(0, 1))
def test_the_delay_grows_but_stays_within_the_bound_and_the_jitter(failures, luck, factor, jitter):
    retry = Retry(interval_ms=1000, backoff=factor, max_ms=60_000, jitter=jitter)
    assert 0 <= backoff(failures, retry, luck) <= 60 * (1 + jitter)


def test_the_delay_doubles_with_each_failure():
    retry = Retry(interval_ms=1000, backoff=2, max_ms=300_000, jitter=0)
    assert [backoff(n, retry, 0.3) for n in (1, 2, 3, 4)] == [1, 2, 4, 8]
