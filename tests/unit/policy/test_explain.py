"""Every waiting task has a reason or starts at once; the estimate's interval is calibrated (E8)."""

from __future__ import annotations

import datetime
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.lifecycle import Outcome, State
from headway.domain.resources import Resources
from headway.policy.explain import SPREAD, Ended, Facts, Listed, earlier, explain, gamma, spent, stood_still
from headway.policy.peak import Verdict
from headway.policy.placement import Gate
from headway.policy.room import Refusal

NOW = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)
ASKED = Resources(cpus_milli=500)
FULL = Refusal("n1", "is full: cpus", ever=False)
DRAINING = Refusal("n3", "takes no new tasks: it is draining", ever=False, closed=True)
LOST = Refusal("n4", "takes no new tasks: it is lost", ever=False, closed=True)
NEVER = Refusal("n2", "has no label gpu=a100", ever=True)


def facts(**fields) -> Facts:
    return Facts(**{"state": State.READY, "now": NOW, "eligible_at": NOW, "start_by": NOW, "asked": ASKED, "nodes": 1, **fields})


def test_a_rate_that_has_died_away_foretells_nothing():
    for rate in (1e-300, 1e-12, 1e-8):
        assert explain(facts(refusals=[FULL], nodes=1, ahead=5, rate_per_s=rate)).start is None
    assert explain(facts(refusals=[FULL], nodes=1, ahead=5, rate_per_s=1e-4)).start is not None


@given(
    st.sampled_from([State.BLOCKED, State.SCHEDULED, State.READY, State.PAUSED]),
    st.sampled_from(Gate),
    st.lists(st.sampled_from([FULL, NEVER]), max_size=3),
    st.integers(0, 5),
    st.floats(0, 100) | st.floats(0, 1e-300),
    st.booleans(),
)
def test_whatever_is_the_matter_there_is_a_summary_and_an_ordered_interval(state, gate, refusals, ahead, rate, due):
    answer = explain(
        facts(state=state, verdict=Verdict(gate, "because"), refusals=refusals, nodes=max(len(refusals), 1), ahead=ahead, rate_per_s=rate,
              due=due)
    )  # fmt: skip
    assert answer.summary
    if answer.start is not None:
        assert 0 <= answer.start.low <= answer.start.middle <= answer.start.high


ends = st.builds(Ended, st.integers(1, 9), st.sampled_from(Outcome), st.text(max_size=9), st.text(max_size=9))


@given(ends, st.integers(0, 5), st.floats(0, 1e5))
def test_a_retry_says_how_the_attempt_ended_and_starts_no_sooner_than_its_time(last, ahead, until):
    at = NOW + datetime.timedelta(seconds=until)
    answer = explain(facts(state=State.SCHEDULED, eligible_at=at, last=last, ahead=ahead, rate_per_s=1.0, used=1, attempts=3))
    assert answer.causes[0].code == "retry"
    assert answer.summary.startswith(earlier(last))
    assert answer.start is not None
    assert answer.start.low >= (at - NOW).total_seconds()


def test_nothing_in_the_way_means_at_once():
    answer = explain(facts())
    assert answer.causes == []
    assert answer.start is not None
    assert answer.start.high <= 1.0


def test_a_task_no_node_could_ever_run_says_so_and_has_no_estimate():
    answer = explain(facts(refusals=[NEVER]))
    assert answer.causes[0].code == "impossible"
    assert "node n2 has no label gpu=a100" in answer.summary
    assert answer.start is None


def test_nodes_that_could_never_take_it_are_not_named_when_others_are_merely_full():
    answer = explain(facts(refusals=[FULL, NEVER], nodes=2, rate_per_s=1.0))
    assert answer.causes[0].code == "room"
    assert "gpu" not in answer.summary


@pytest.mark.parametrize(("refusal", "remedy"), [(DRAINING, "headway node undrain n3"), (LOST, "it takes tasks again, or another node")])
def test_where_every_node_is_closed_room_does_not_help_and_nothing_is_foretold(refusal, remedy):
    answer = explain(facts(refusals=[refusal, NEVER], nodes=2, rate_per_s=1.0, ahead=3))
    assert answer.causes[0].code == "closed"
    assert answer.summary == f"no node takes it: node {refusal.node} {refusal.reason}"
    assert answer.causes[0].remedy.startswith(remedy)
    assert answer.start is None


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (FULL, "no node has room: 2 nodes (m1, n1) are full: cpus"),
        (DRAINING, "no node takes it: 2 nodes (m1, n3) take no new tasks: each is draining"),
        (NEVER, "no node could ever run it: 2 nodes (m1, n2) have no label gpu=a100"),
    ],
)
def test_several_nodes_refuse_in_the_plural(refusal, says):
    assert explain(facts(refusals=[refusal, replace(refusal, node="m1")], nodes=2)).summary == says


def test_a_closed_node_is_none_of_those_where_room_would_help():
    answer = explain(facts(refusals=[FULL, DRAINING], nodes=2, rate_per_s=1.0))
    assert answer.causes[0].code == "room"
    assert answer.causes[0].remedy.endswith("on one of 1 nodes")
    assert answer.start is not None


def test_at_peak_the_time_of_promotion_is_given():
    later = NOW + datetime.timedelta(hours=1)
    answer = explain(facts(verdict=Verdict(Gate.DUE, "it is peak"), start_by=later, lead_s=10))
    assert answer.causes[0].until == later - datetime.timedelta(seconds=10)
    assert explain(facts(verdict=Verdict(Gate.DUE, "it is peak"), due=True)).causes == []


def test_at_peak_a_task_may_start_at_any_moment_until_its_promotion():
    later = NOW + datetime.timedelta(hours=1)
    for rate in (0.0, 2.0):
        answer = explain(facts(verdict=Verdict(Gate.DUE, "it is peak"), start_by=later, lead_s=10, rate_per_s=rate))
        assert answer.start is not None
        assert answer.start.low < 60
        assert answer.start.low <= answer.start.middle <= answer.start.high
        assert 3590 <= answer.start.high <= 3600


def test_nine_of_ten_starts_lie_in_the_interval():
    """Ends of tasks come in clumps of one to three; the interval is made for that."""
    luck = random.Random(7)
    inside = total = 0
    for _ in range(4000):
        ahead = luck.choice((0, 1, 3, 10, 40, 150))
        left, at = ahead + 1, 0.0
        while left > 0:
            clump = luck.choice((1, 1, 2, 3))
            at += luck.expovariate(1.0) * 1.75  # 1.75 is the mean clump: one task a second
            left -= clump
        low, high = gamma(ahead + 1, -1.645, SPREAD), gamma(ahead + 1, 1.645, SPREAD)
        inside += low <= at <= high + 1.0
        total += 1
    assert 0.85 <= inside / total <= 0.96


def test_where_the_time_went_adds_up():
    second = datetime.timedelta(seconds=1)
    times = spent(NOW, NOW + second, NOW + 3 * second, NOW + 4 * second, NOW + 10 * second, NOW + 20 * second)
    assert times == {"before it could run": 1.0, "waiting for room": 2.0, "starting": 1.0, "running": 6.0}
    paused = spent(NOW, NOW, NOW, NOW, NOW + 10 * second, NOW + 20 * second, paused_s=4.0)
    assert (paused["running"], paused["paused"]) == (6.0, 4.0)
    again = spent(NOW, NOW + 9 * second, NOW + 9 * second, NOW + 9 * second, NOW + 10 * second, NOW + 20 * second, earlier_s=7.0)
    assert (again["before it could run"], again["in earlier attempts"], sum(again.values())) == (2.0, 7.0, 10.0)
    assert spent(NOW, NOW, None, None, None, NOW + second) == {"before it could run": 0.0, "waiting for room": 1.0}
    assert spent(NOW, NOW + 60 * second, None, None, None, NOW + second) == {"before it could run": 1.0}, "not what is to come"
    assert spent(NOW, None, None, None, None, NOW + second) == {"before it could run": 1.0}, "it waits for others, not for room"
    assert spent(NOW, NOW, None, None, NOW + second, NOW + 9 * second) == {"before it could run": 0.0}, "it never began"


def test_a_paused_task_says_who_stopped_it():
    by_somebody = explain(facts(state=State.PAUSED, held=True, beneficiary=7, task=5))
    assert (by_somebody.summary, by_somebody.causes[0].remedy) == ("somebody paused it", "headway resume 5")
    for_another = explain(facts(state=State.PAUSED, beneficiary=7))
    assert (for_another.summary, for_another.causes[0].remedy) == ("it was stopped to make room for task 7", "task 7 ends")


def test_a_list_that_waits_for_the_subscription_says_so_and_has_no_estimate():
    answer = explain(facts(state=State.BLOCKED, listed=Listed("5 tasks are more than your subscription allows now", NOW)))
    assert (answer.causes[0].code, answer.causes[0].until, answer.start) == ("limit", NOW, None)
    assert "5 tasks are more than your subscription allows now" in answer.summary
    soon = explain(facts(state=State.BLOCKED, listed=Listed()))
    assert (soon.causes[0].code, soon.start) == ("list", None)


def test_outside_its_hours_a_queue_says_when_it_opens_and_what_else_helps():
    verdict = Verdict(Gate.CLOSED, "queue nights is outside its hours", NOW + datetime.timedelta(hours=3))
    [cause] = explain(facts(verdict=verdict)).causes
    assert cause.until == verdict.until
    assert "--set queue=QUEUE" in cause.remedy


def test_pauses_are_told_apart_from_running() -> None:
    second = datetime.timedelta(seconds=1)
    turns = [(True, NOW), (True, NOW + second), (False, NOW + 3 * second), (False, NOW + 4 * second), (True, NOW + 6 * second)]
    assert stood_still(turns[:4], NOW + 10 * second) == 3.0
    assert stood_still(turns, NOW + 10 * second) == 7.0, "it was ended while it stood still"
    assert stood_still([], NOW) == 0.0
