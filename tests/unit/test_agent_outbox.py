"""What the supervisor keeps of its news: until they are answered, and how attempts ended a while longer."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.agent.link import Report
from headway.agent.reports import REMEMBERED, Outbox, compose
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import Exchange, Finished, decode_exchange


def ended(task: int, result: bytes = b"1") -> Finished:
    return Finished(task, 1, Outcome.SUCCEEDED, 10, 20, result)


def said(report: Report | None) -> Exchange:
    assert report is not None
    return decode_exchange(compose(Exchange("boot", 1), report.parts))


def answered(outbox: Outbox) -> None:
    report = outbox.take()
    assert report is not None
    outbox.answered(report.number)


def test_an_end_that_was_answered_is_told_again_as_it_was() -> None:
    outbox = Outbox()
    outbox.add("finished", [ended(1, b'"\xc3\xa4"'), ended(2)])
    outbox.add("returned", [(3, 1)])
    answered(outbox)
    assert outbox.clear
    outbox.tell_again([(1, 1), (3, 1)], 99)
    again = said(outbox.take())
    assert again.finished == [ended(1, b'"\xc3\xa4"')]
    assert [tuple(ref) for ref in again.returned] == [(3, 1)]


def test_an_end_that_is_on_its_way_is_not_told_twice() -> None:
    outbox = Outbox()
    outbox.add("finished", [ended(1)])
    outbox.take()
    outbox.add("finished", [ended(2)])
    outbox.tell_again([(1, 1), (2, 1)], 99)
    assert [finished.id for finished in said(outbox.take()).finished] == [2]


def test_an_end_that_nobody_remembers_is_told_as_one_that_runs_again() -> None:
    outbox = Outbox()
    outbox.tell_again([(7, 3)], 99)
    (finished,) = said(outbox.take()).finished
    assert (finished.id, finished.attempt, finished.outcome) == (7, 3, Outcome.PRE_EMPTED)
    error: dict[str, Any] = msgspec.json.decode(finished.error or "")
    assert error["type"] == "ReportLost"


def test_what_is_remembered_is_bounded_in_number_and_in_size() -> None:
    outbox = Outbox()
    for first in range(0, 3 * REMEMBERED, 1000):
        outbox.add("finished", [ended(first + n) for n in range(1000)])
        answered(outbox)
    assert sum(part.count for part in outbox._answered) <= REMEMBERED
    for task in range(20):
        outbox.add("finished", [ended(task, bytes(2**20))])
        answered(outbox)
    assert sum(len(part.items) for part in outbox._answered) <= 2**21
    outbox.tell_again([(19, 1)], 99)
    assert said(outbox.take()).finished == [ended(19, bytes(2**20))]
