"""Which reports an agent may send while another is being committed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headway.agent.exchange import SHORT, ExchangeSide
from headway.agent.link import Part, Report, Reported


class Said:
    """The link to the supervisor, as far as it is spoken to."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def send(self, message: object) -> None:
        self.messages.append(message)


def told(*parts: Part) -> ExchangeSide:
    """An exchange side that heard one report for each of the parts."""
    side = ExchangeSide(cast(Any, None), cast(Any, Said()), cast(Any, None), log=lambda *_, **__: None, examine=lambda _: "")
    for number, part in enumerate(parts, 1):
        side.hear(Report(number, [part]))
    return side


def ends(count: int) -> Part:
    return Part("finished", count, b"x" * count)


def send(side: ExchangeSide) -> list[Part]:
    news = side._sendable()
    for one in news:
        one.sent = True
    return [one.part for one in news]


def test_many_ends_go_beside_ends_that_are_not_answered_yet() -> None:
    side = told(ends(300))
    assert send(side) == [ends(300)]
    side.hear(Report(2, [ends(SHORT)]))
    assert send(side) == [ends(SHORT)]


def test_a_few_ends_wait_for_the_answer_because_two_small_reports_cost_more_than_one() -> None:
    side = told(ends(300))
    send(side)
    side.hear(Report(2, [ends(SHORT - 1)]))
    assert send(side) == []


@pytest.mark.parametrize("field", ["output", "progress", "started", "returned"])
def test_an_end_never_overtakes_what_its_task_said_before(field: str) -> None:
    side = told(Part(field, 1, b"x"))
    send(side)
    side.hear(Report(2, [ends(SHORT)]))
    assert send(side) == []


def test_what_was_not_answered_is_sent_again() -> None:
    side = told(ends(300))
    for one in side._sendable():
        one.sent = False
    assert send(side) == [ends(300)]


@pytest.mark.parametrize("first", [0, 1])
def test_whichever_answer_comes_first_in_the_end_the_supervisor_keeps_no_report(first: int) -> None:
    """A report that stays unanswered would be held for ever, and an agent that drains would never be done."""
    side = told(ends(300))
    reports = [side._sendable()]
    for one in reports[0]:
        one.sent = True
    side.hear(Report(2, [ends(SHORT)]))
    reports.append(side._sendable())
    side._forget(reports[first])
    side._forget(reports[1 - first])
    acknowledged = [message.number for message in cast(Any, side.link).messages if isinstance(message, Reported)]
    assert acknowledged == [1 - first, 2]
    assert side.clear
