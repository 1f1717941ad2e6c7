"""Orders that wait for what they need: held, without resources, and never lost (H5)."""

from __future__ import annotations

import pytest

from headway.agent.machine import Machine
from headway.agent.signals import (
    DrainAsked,
    Fenced,
    Instruction,
    OrdersArrived,
    Prepare,
    Prepared,
    RunnerEnded,
    Spawn,
    StartRunner,
    TellFinished,
    TellNotices,
    TellReturned,
)
from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from headway.domain.task import Definition
from headway.wire.exchange import Cancel, Control, Order

ROOM = (2000, 1000, 0, 0, 0, 0)
NEED = Resources(cpus_milli=2000, memory=100)
NEEDY = Definition(name="needy", command=("x",), resources=NEED, content=Content(prepare=("make",)))
PLAIN = Definition(name="plain", command=("x",), resources=NEED)
FOREIGN = Definition(name="foreign", function="/a.mjs:f", resources=NEED)
DEFINITIONS = {1: NEEDY, 2: PLAIN, 3: FOREIGN}


def machine() -> Machine:
    return Machine(ROOM, wall_ms=lambda: 1_000_000)


def order(task: int, definition: int = 1, attempt: int = 1) -> Order:
    return Order(task, attempt, definition, b"")


def arrived(*orders: Order, cancels: list[Cancel] | None = None) -> OrdersArrived:
    return OrdersArrived(list(orders), DEFINITIONS, cancels or [], 0.0)


def of(kind: type[Instruction], out: list[Instruction]) -> list[Instruction]:
    return [instruction for instruction in out if isinstance(instruction, kind)]


def outcomes(out: list[Instruction]) -> list[tuple[int, Outcome]]:
    return [(i.finished.id, Outcome(i.finished.outcome)) for i in out if isinstance(i, TellFinished)]


def test_an_order_that_needs_preparation_is_held_and_takes_no_room() -> None:
    brain = machine()
    out = brain.handle(arrived(order(1), order(2)))
    assert [(i.number, i.definition) for i in out if isinstance(i, Prepare)] == [(1, NEEDY)]
    assert of(Spawn, out) == []
    assert brain.held() == [(1, 1), (2, 1)]
    assert brain.free == ROOM
    assert of(Spawn, brain.handle(arrived(order(3, definition=2))))  # the whole node is there for another


def test_prepared_orders_start_like_any_other() -> None:
    brain = machine()
    brain.handle(arrived(order(1), order(2)))
    out = brain.handle(Prepared(1, 1.0))
    assert [i.order.id for i in out if isinstance(i, Spawn)] == [1]  # the second waits for room
    assert sorted(brain.held()) == [(1, 1), (2, 1)]


def test_what_cannot_be_prepared_is_told_with_the_log() -> None:
    brain = machine()
    brain.handle(arrived(order(1), order(2)))
    out = brain.handle(Prepared(1, 1.0, "pip could not install x", "the log"))
    assert outcomes(out) == [(1, Outcome.NOT_STARTABLE), (2, Outcome.NOT_STARTABLE)]
    assert all("the log" in (i.finished.error or "") for i in out if isinstance(i, TellFinished))
    assert brain.held() == []


def test_what_the_disk_has_no_room_for_is_tried_again_later() -> None:
    brain = machine()
    brain.handle(arrived(order(1)))
    assert outcomes(brain.handle(Prepared(1, 1.0, "the upload could not be fetched", no_room=True))) == [(1, Outcome.TRY_LATER)]


def test_cancelling_draining_and_fencing_reach_orders_in_preparation() -> None:
    brain = machine()
    brain.handle(arrived(order(1), order(2), order(3)))
    assert outcomes(brain.handle(arrived(cancels=[Cancel(2, 1, 0.0)]))) == [(2, Outcome.CANCELLED)]
    (returned,) = of(TellReturned, brain.handle(DrainAsked(True, 1.0)))
    assert isinstance(returned, TellReturned)
    assert sorted(returned.refs) == [(1, 1), (3, 1)]
    assert brain.held() == []
    assert of(Spawn, brain.handle(Prepared(1, 2.0))) == []
    brain.handle(DrainAsked(False, 3.0))
    brain.handle(arrived(order(5)))
    brain.handle(Fenced())
    assert brain.held() == []


@pytest.mark.parametrize("word", ["pause", "yield"])
def test_an_order_in_preparation_that_is_paused_or_makes_room_goes_back(word: str) -> None:
    brain = machine()
    brain.handle(arrived(order(1), order(2)))
    out = brain.handle(OrdersArrived([], {}, [], 0.0, [Control(1, 1, 1, word)]))
    assert of(TellReturned, out) == [TellReturned([(1, 1)])]
    assert [notice.kind for i in out if isinstance(i, TellNotices) for notice in i.notices] == ["returned"]
    assert brain.held() == [(2, 1)]


def test_a_higher_attempt_replaces_one_that_is_being_prepared() -> None:
    brain = machine()
    brain.handle(arrived(order(1)))
    brain.handle(arrived(order(1, attempt=2)))
    assert brain.held() == [(1, 2)]
    out = brain.handle(Prepared(1, 1.0))
    assert [(i.order.id, i.order.attempt) for i in out if isinstance(i, Spawn)] == [(1, 2)]


def test_runners_that_die_before_they_are_ready_are_not_tried_for_ever() -> None:
    """One alone may have been killed, by somebody or for want of memory."""
    brain = machine()
    (start,) = of(StartRunner, brain.handle(arrived(order(1, definition=3), order(2, definition=3))))
    assert isinstance(start, StartRunner)
    assert (start.kind, start.definition) == ("node", 3)
    out = brain.handle(RunnerEnded(start.runner, 0, 0, "it was killed", 1.0))
    assert outcomes(out) == []
    (again,) = of(StartRunner, out)
    assert isinstance(again, StartRunner)
    out = brain.handle(RunnerEnded(again.runner, 0, 0, "it is broken", 1.0))
    assert outcomes(out) == [(1, Outcome.NOT_STARTABLE), (2, Outcome.NOT_STARTABLE)]
    assert of(StartRunner, out) == []
