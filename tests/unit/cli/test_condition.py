"""What doctor says of a server's nodes, queues, schedules, webhooks and dead letters."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from headway.cli import condition
from headway.control.leader import DUTIES
from headway.wire.views.events import WebhookView
from headway.wire.views.fleet import NodeView, QueueView
from headway.wire.views.schedules import ScheduleView
from headway.wire.views.tasks import DeadGroup, ResourcesView

NOW = datetime.datetime(2026, 11, 16, 3, 0, tzinfo=datetime.UTC)
NOTHING = ResourcesView(cpus=0.0, memory=0, disk=0)


def node(state: str, trouble: str = "") -> NodeView:
    return NodeView(1, "n1", state, 2.0, 2**30, 2**30, {}, 0, NOTHING, NOW, "0.1.0", trouble=trouble)


def schedule(name: str = "often", **fields: Any) -> ScheduleView:
    common: dict[str, Any] = {"state": "active", "next": [], "last_at": NOW, "created_at": NOW, "changed_at": NOW, **fields}
    fixed: dict[str, Any] = {"start": None, "end": None, "jitter": 0.0, "overlap": "skip", "misfire": "one", "tasks": 1}
    return ScheduleView(name, "default", schedule=60.0, timezone="UTC", **fixed, **common)


@pytest.mark.parametrize(
    ("state", "trouble", "found", "todo"),
    [
        ("lost", "", "lost", "headway node rm n1"),
        ("draining", "", "is drained", "headway node undrain n1"),
        ("draining", "is ending", "takes no new tasks: it is ending", "when that is over"),
        ("quarantined", "has 5.0MiB free", "takes no new tasks: it has 5.0MiB free", "when that is over"),
    ],
)
def test_a_node_that_takes_nothing_is_named_with_what_to_do(state: str, trouble: str, found: str, todo: str) -> None:
    [check] = condition.nodes([node(state, trouble)])
    assert (check.name, check.state) == ("node n1", "warn")
    assert found in check.found
    assert todo in check.todo


@pytest.mark.parametrize(
    ("ahead_s", "found"), [(3600.0, "its clock is 1h ahead of the database's"), (-90.0, "its clock is 1m30s behind the database's")]
)
def test_a_clock_that_is_wrong_is_told(ahead_s: float, found: str) -> None:
    wrong = node("up")
    wrong.clock_s = ahead_s
    [check] = condition.nodes([wrong])
    assert check.found == found
    wrong.clock_s = 1.0
    assert list(condition.nodes([wrong])) == []


def test_a_node_that_went_in_order_is_no_trouble() -> None:
    assert list(condition.nodes([node("gone", "is ending"), node("up")])) == []


def test_a_paused_queue_is_told_when_tasks_wait_in_it() -> None:
    paused = QueueView("nights", 3, 0, 0, 0, 5.0, state="paused")
    [check] = condition.queues(
        [paused, QueueView("empty", 0, 0, 0, 0, None, state="paused"), QueueView("urgent", 9, 0, 0, 0, 5.0, due=9)]
    )
    assert (check.found, check.todo) == ("is paused, with 3 tasks waiting in it", "headway queue resume nights")


def test_tasks_that_are_due_and_wait_long_are_told() -> None:
    [check] = condition.queues([QueueView("urgent", 9, 0, 0, 0, 300.0, due=1)])
    assert check.found == "1 task due and waiting, for up to 5m"


def test_schedules_that_do_not_run_are_told_and_more_than_five_are_counted() -> None:
    fine = [schedule(last_state="started"), schedule(), schedule(last_state="waiting")]
    assert list(condition.schedules(fine)) == []
    skipped = schedule(last_state="skipped", last_note="an earlier run is still going")
    [check] = condition.schedules([skipped])
    assert check.found == "active; last firing skipped: an earlier run is still going"
    [check] = condition.schedules([schedule(state="paused")])
    assert check.todo == "headway schedule resume often"
    *_, last = condition.schedules([schedule(state="paused")] * 7)
    assert (last.name, last.found) == ("schedules", "and 2 more")


def test_webhooks_that_fail_say_why() -> None:
    hook = WebhookView("ops", "https://example.com", [], True, None, NOW, 3, 1)
    [check] = condition.webhooks([(hook, "ConnectionRefusedError: refused")])
    assert check.found == "3 messages wait, 1 were given up: ConnectionRefusedError: refused"


def test_dead_letters_of_the_last_hour_are_news() -> None:
    def group(minutes: int) -> DeadGroup:
        return DeadGroup("f", "pay", "ValueError", "no such customer", 4, NOW, NOW - datetime.timedelta(minutes=minutes), "1")

    assert list(condition.dead_letters([group(90)], NOW)) == []
    [check] = condition.dead_letters([group(90), group(5)], NOW)
    assert "(4): pay: no such customer" in check.found


def test_a_duty_that_nobody_does_is_a_failure() -> None:
    [check] = condition.duties(dict.fromkeys(DUTIES[1:], "a"))
    assert (check.name, check.state) == (DUTIES[0], "fail")
