"""Orders are told again until they are acknowledged, whatever the sequence (F1)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headway.control.outstanding import Outstanding
from headway.wire.exchange import Order

REPEAT_S = 2.0
TASKS, ATTEMPTS = st.integers(1, 6), st.integers(1, 3)


def order(task: int, attempt: int = 1) -> Order:
    return Order(task, attempt, 1, b"")


def ids(orders: list[Order]) -> list[int]:
    return [each.id for each in orders]


def test_what_was_told_is_told_again_only_when_it_was_not_acknowledged_in_time() -> None:
    orders = Outstanding()
    orders.add(map(order, (1, 2, 3)))
    assert orders.due(0.0 - REPEAT_S)
    assert ids(orders.take(10, 0.0, 0.0 - REPEAT_S)) == [1, 2, 3]
    orders.acknowledge([(2, 1)])
    assert not orders.due(1.9 - REPEAT_S)
    assert orders.due(2.0 - REPEAT_S)
    assert ids(orders.take(10, 2.0, 2.0 - REPEAT_S)) == [1, 3]
    orders.acknowledge([(1, 1), (3, 1)])
    assert not orders
    assert not orders.due(9.0)


def test_a_higher_attempt_takes_the_place_of_a_lower_one() -> None:
    orders = Outstanding()
    orders.add([order(1)])
    orders.take(10, 0.0, -REPEAT_S)
    orders.add([order(1, 2), order(1)])
    assert [each.attempt for each in orders.take(10, 0.1, 0.1 - REPEAT_S)] == [2]
    orders.acknowledge([(1, 1)])
    assert orders, "the lower one does not count any more"
    orders.acknowledge([(1, 2)])
    assert not orders


def test_what_the_node_got_elsewhere_is_not_told_here() -> None:
    orders = Outstanding()
    orders.add([order(1), order(2)])
    orders.acknowledge([(1, 1)])
    assert ids(orders.take(10, 0.0, -REPEAT_S)) == [2]
    orders.add([order(3)])
    orders.acknowledge([(3, 1)])
    assert not orders.due(-REPEAT_S)


class Telling(RuleBasedStateMachine):
    """Beside the plain way: a table of when each was told last."""

    def __init__(self) -> None:
        super().__init__()
        self.orders, self.told, self.now = Outstanding(), dict[int, tuple[int, float]](), 0.0

    @rule(task=TASKS, attempt=ATTEMPTS)
    def add(self, task: int, attempt: int) -> None:
        self.orders.add([order(task, attempt)])
        if attempt > self.told.get(task, (0, 0.0))[0]:
            self.told[task] = attempt, -REPEAT_S

    @rule(task=TASKS, attempt=ATTEMPTS)
    def acknowledge(self, task: int, attempt: int) -> None:
        self.orders.acknowledge([(task, attempt)])
        if self.told.get(task, (0, 0.0))[0] == attempt:
            del self.told[task]

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(most=st.sampled_from([1, 2, 100]))
    def tell(self, most: int) -> None:
        due = self._due()
        taken = {each.id: each.attempt for each in self.orders.take(most, self.now, self.now - REPEAT_S)}
        assert taken.items() <= due.items()
        assert bool(taken) == bool(due)
        self.told |= {task: (attempt, self.now) for task, attempt in taken.items()}

    def _due(self) -> dict[int, int]:
        return {task: attempt for task, (attempt, at) in self.told.items() if at <= self.now - REPEAT_S}

    @invariant()
    def it_says_whether_something_is_due(self) -> None:
        assert self.orders.due(self.now - REPEAT_S) == bool(self._due())
        assert {each.id: each.attempt for each in self.orders} == {task: attempt for task, (attempt, _) in self.told.items()}


TestTelling = Telling.TestCase
