"""The short way is open only while nobody is passed: then a round of planning at the same moment would hand out nothing (L2 E5)."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy.fairness import Claim
from headway.policy.order import Head
from headway.policy.placement import Board, Gate, NodeRoom, Round
from headway.policy.short_way import MOST_LOOKED, nobody_is_passed

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SHAPES = {number: Resources(cpus_milli=number) for number in (1, 2, 3)}


def board_of(waiting: set[tuple[int, int]], limits: dict[int, int], held: dict[int, int]) -> Board:
    """One roomy node. `limits`: the most tasks a tenant may run; `held`: what it runs, of the smallest shape."""
    board = Board(SHAPES, lambda tenant: Claim(max_running=limits.get(tenant)))
    board.add_node(NodeRoom(1, "n1", Capacity(1000, 100, 100)))
    board.resize()
    for tenant, count in held.items():
        board.hold(1, (tenant, 1), count)
    for task, group in enumerate(sorted(waiting), 1):
        board.heads[group] = Head(more=False)
        board.heads[group].keys.append((BASE, 1000, task))
        board.touched(group)
    return board


def gate_of(closed: set[int]):
    return lambda shape, _tight: Gate.CLOSED if shape in closed else Gate.OPEN


tenants = st.integers(1, 5)


@given(
    st.sets(st.tuples(tenants, st.sampled_from(sorted(SHAPES))), max_size=8),
    st.dictionaries(tenants, st.integers(0, 3)),
    st.dictionaries(tenants, st.integers(1, 3)),
    st.sets(st.sampled_from(sorted(SHAPES))),
)
def test_where_nobody_is_passed_a_round_hands_nothing_out_and_where_somebody_is_it_does(waiting, limits, held, closed):
    board = board_of(waiting, limits, held)
    free = nobody_is_passed(board, gate_of(closed), tight=False)
    assert free == (not board.place(Round(100, BASE, gate_of(closed))))


def test_tasks_that_are_not_read_yet_may_be_passed():
    board = board_of(set(), {}, {})
    assert nobody_is_passed(board, gate_of(set()), tight=False)
    board.head((1, 1))
    assert not nobody_is_passed(board, gate_of({1, 2, 3}), tight=False)


def test_the_question_stays_cheap_with_many_tenants_at_their_quotas():
    many = {(tenant, 1) for tenant in range(MOST_LOOKED + 1)}
    assert not nobody_is_passed(board_of(many, dict.fromkeys(range(MOST_LOOKED + 1), 0), {}), gate_of(set()), tight=False)
    assert nobody_is_passed(board_of(many, {}, {}), gate_of({1}), tight=False), "a closed queue costs one look"
