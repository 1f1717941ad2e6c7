"""A batch that could not be sent to its runner leaves no trace: the next one says all that is new to it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headway.agent.local_queue import Estimate, Recipe
from headway.agent.runners import Runners
from headway.agent.signals import BatchNotGiven
from headway.domain.task import Definition
from headway.wire.exchange import Order


class Wire:
    clear = True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.breaks: Iterator[bool] = iter((True,))

    def send(self, message: Any) -> None:
        if next(self.breaks, False):
            raise ValueError("it cannot be written")
        self.sent.append(message)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    monkeypatch.setattr(Runners, "_limit", lambda *_: None)
    return Runners.__new__(Runners)


def test_a_definition_is_said_again_when_the_batch_that_said_it_was_not_sent(runners: Runners) -> None:
    told: list[Any] = []
    wire = Wire()
    runner = SimpleNamespace(defined=set(), logged={}, secrets=set(), channel=wire, writing=False)
    runners._by_number, runners._handle = {1: runner}, told.append  # type: ignore[dict-item]
    recipes = {5: Recipe(Definition(name="f", function="a:b"), (), 1.0, "python", Estimate())}
    order = Order(7, 1, 5, b"null")
    for _ in range(3):
        runners.give(1, [order], recipes)
    assert [type(one) for one in told] == [BatchNotGiven]
    assert [sorted(definitions) for _, definitions, _ in wire.sent] == [[5], []]
