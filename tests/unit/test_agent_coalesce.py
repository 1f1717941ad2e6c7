"""When the supervisor's news go up (agent.coalesce)."""

from __future__ import annotations

from headway.agent.coalesce import FEW, LONG_S, MANY, SHORT_S, Coalesce


def test_where_nothing_waits_news_go_at_once():
    coalesce = Coalesce()
    coalesce.sent(MANY, 5.0)
    assert coalesce.due(1, 5.001, waiting=0) == 5.001


def test_single_news_of_a_busy_node_wait_a_short_while():
    coalesce = Coalesce()
    coalesce.sent(FEW - 1, 5.0)
    assert coalesce.due(1, 5.001, waiting=1000) == 5.0 + SHORT_S


def test_where_ends_come_quickly_they_wait_for_company():
    coalesce = Coalesce()
    coalesce.sent(FEW, 5.0)
    assert coalesce.due(MANY - 1, 5.03, waiting=1000) == 5.0 + LONG_S


def test_enough_of_them_wait_no_longer():
    coalesce = Coalesce()
    coalesce.sent(MANY, 5.0)
    assert coalesce.due(MANY, 5.03, waiting=1000) <= 5.03
    assert coalesce.due(MANY, 5.01, waiting=1000) == 5.0 + SHORT_S


def test_a_node_that_may_run_dry_tells_sooner():
    coalesce = Coalesce()
    coalesce.sent(FEW, 5.0)
    assert coalesce.due(30, 5.03, waiting=30) == 5.0 + SHORT_S
    assert coalesce.due(30, 5.03, waiting=31) == 5.0 + LONG_S
