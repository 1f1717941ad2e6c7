"""Tasks whose rooms are rare stand as much earlier in the order, and nobody is forgotten while they move (E1 E2)."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy.order import Head
from headway.policy.placement import Board, Gate, NodeRoom, Round
from headway.policy.short_way import fit

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SMALL, LARGE = 1, 2
SHAPES = {SMALL: Resources(cpus_milli=1), LARGE: Resources(cpus_milli=4)}
seconds = st.integers(-50, 50)


def later(by: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=by)


def board_of(tasks: list[tuple[int, int, float]], places: int) -> Board:
    """Tasks as (tenant, shape, start_by), numbered from 1, on one node."""
    board = Board(SHAPES)
    board.add_node(NodeRoom(1, "n1", Capacity(places, 1000, 1000)))
    board.resize()
    for group in {(tenant, shape) for tenant, shape, _ in tasks}:
        head = board.heads[group] = Head(more=False)
        head.keys.extend(sorted((BASE + later(at), 1, n) for n, (*of, at) in enumerate(tasks, 1) if tuple(of) == group))
        board.touched(group)
    return board


def first_of(board: Board, horizon: float, early: float) -> int:
    return board.place(Round(1, BASE + later(horizon), early={LARGE: later(early)}))[0].keys[0][2]


def test_a_large_task_goes_before_small_ones_that_are_due_up_to_its_lead_earlier():
    tasks = [(1, SMALL, 10.0), (2, LARGE, 60.0)]
    assert first_of(board_of(tasks, 4), 60, early=0) == 1
    assert first_of(board_of(tasks, 4), 60, early=49) == 1
    assert first_of(board_of(tasks, 4), 60, early=51) == 2


def test_a_large_task_is_due_as_much_earlier_and_passes_the_door_then():
    for early, gone in ((29, 0), (30, 1)):
        board = board_of([(1, LARGE, 30.0)], 4)
        asked = Round(10, BASE, lambda _shape, _tight: Gate.DUE, early={LARGE: later(early)})
        assert len(board.place(asked)) == gone
    group = {(1, LARGE): [(BASE + later(30), 1, 1)]}
    assert fit(board_of([], 4), group, Round(1, BASE, lambda _shape, _tight: Gate.DUE)) is None
    assert fit(board_of([], 4), group, Round(1, BASE, lambda _shape, _tight: Gate.DUE, early={LARGE: later(30)})) is not None


@given(st.lists(st.tuples(st.sampled_from([SMALL, LARGE]), seconds), min_size=1, max_size=30), st.integers(0, 100), seconds)
def test_the_tasks_of_one_tenant_leave_in_the_order_in_which_they_stand(tasks, early, horizon):
    board = board_of([(1, shape, at) for shape, at in tasks], 10_000)
    plan = board.place(Round(1000, BASE + later(horizon), early={LARGE: later(early)}))
    stands = [key[0] - (later(early) if placed.group[1] == LARGE else later(0)) for placed in plan for key in placed.keys]
    assert len(stands) == len(tasks)
    assert stands == sorted(stands)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([SMALL, LARGE]), seconds), min_size=1, max_size=40),
    st.integers(4, 8),
    st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=12),
)
def test_nothing_that_is_due_is_forgotten_while_leads_grow_and_shrink(tasks, places, rounds):
    """Only what is due may go; whoever is handed out ends before the next round. In the end nothing due is left."""
    board = board_of(tasks, places)
    gone = 0
    for early, peak, door in [*rounds, *[(0, True, True)] * (2 * len(tasks) + 1)]:
        gate = Gate.DUE if door else Gate.CLOSED
        asked = Round(1000, BASE, lambda _shape, _tight, gate=gate: gate, due_first=peak, early={LARGE: later(early)})
        for placed in board.place(asked):
            stood = [key[0] - later(early if placed.group[1] == LARGE else 0) for key in placed.keys]
            assert all(at <= BASE for at in stood), "only what is due goes"
            gone += len(placed.keys)
            board.hold(1, placed.group, -len(placed.keys))
    left = [key[0] for head in board.heads.values() for key in head.waiting()]
    assert all(at > BASE for at in left)
    assert gone + len(left) == len(tasks)


def test_who_is_no_longer_due_when_leads_shrink_becomes_due_again():
    board = board_of([(1, LARGE, 30.0), (2, SMALL, 100.0), (3, LARGE, 1000.0)], 8)
    board.hold(1, (9, SMALL), 7)
    board.hold(1, (1, SMALL), 1)
    for early in (30, 0):
        assert board.place(Round(10, BASE, early={LARGE: later(early)})) == [], "the node is full"
    board.hold(1, (9, SMALL), -4)
    assert first_of(board, 0, early=30) == 1, "it holds more than the others, but it is due"
