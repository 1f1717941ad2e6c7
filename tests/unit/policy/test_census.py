"""What waits is counted right, however it is spread over tenants and shapes (E2 E3)."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy import census
from headway.policy.order import Head
from headway.policy.placement import Board, NodeRoom, Round

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SHAPES = {1: Resources(cpus_milli=1), 2: Resources(cpus_milli=4), 3: Resources(memory=10)}
groups = st.dictionaries(
    st.tuples(st.integers(1, 5), st.sampled_from(sorted(SHAPES))), st.lists(st.integers(-50, 50), min_size=1, max_size=40), max_size=8
)


def later(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)


def board_of(waiting: dict[tuple[int, int], list[int]], *, cpus: int = 100, horizon: float = -100) -> Board:
    """Tasks of each group by start_by, on one node; lanes are made by a round that may hand out nothing."""
    board = Board(SHAPES)
    board.add_node(NodeRoom(1, "n1", Capacity(cpus, 1000, 1000)))
    board.resize()
    for group, starts in waiting.items():
        head = board.heads[group] = Head(more=False)
        head.keys.extend(sorted((BASE + later(at), 1, n) for n, at in enumerate(starts, 1)))
        board.touched(group)
    board.place(Round(0, BASE + later(horizon)))
    return board


@given(groups)
def test_the_sample_stands_for_no_task_twice_and_for_at_least_half_of_them(waiting):
    found = census.waiting(board_of(waiting).lanes)
    total = sum(map(len, waiting.values()))
    assert total / 2 <= sum(count for _, count in found) <= total
    assert all(count > 0 for _, count in found)
    assert len(found) <= len(waiting) * (2 + math.log2(40))


@given(groups)
def test_no_task_of_the_sample_stands_for_one_that_must_start_after_it(waiting):
    """A lead that is too short makes tasks late, one that is too long only puts others off."""
    board = board_of(waiting)
    starts = sorted(at for group in waiting.values() for at in group)
    for moment in (-50, -10, 0, 10, 50):
        sampled = sum(count for key, count in census.waiting(board.lanes) if key[0] <= BASE + later(moment))
        assert sampled <= sum(1 for at in starts if at <= moment)


@given(groups, st.integers(-60, 60))
def test_what_is_known_and_due_is_counted_by_tenant_and_shape(waiting, horizon):
    board = board_of(waiting, horizon=horizon)
    known, asked = census.counted(board.lanes), census.asked(board.lanes)
    for tenant in {tenant for tenant, _ in waiting}:
        own = {shape: starts for (owner, shape), starts in waiting.items() if owner == tenant}
        due = sum(1 for starts in own.values() for at in starts if at <= horizon)
        assert known[tenant] == (sum(map(len, own.values())), due)
        assert asked[tenant] == {shape: len(starts) for shape, starts in own.items()}
    assert set(known) == set(asked) == {tenant for tenant, _ in waiting}


@given(groups, st.integers(-60, 60))
def test_what_is_due_is_counted_in_parts_of_the_fleet(waiting, horizon):
    board = board_of(waiting, horizon=horizon)
    parts = census.parts(board.lanes, board.rooms)
    assert parts == {shape: board.rooms.part(shape) for _, shape in waiting}
    found = census.due(board.lanes, board.rooms)
    for tenant in {tenant for tenant, _ in waiting}:
        due = sum(parts[shape] for (owner, shape), starts in waiting.items() if owner == tenant for at in starts if at <= horizon)
        assert found.get(tenant, 0.0) == pytest.approx(due)


@given(groups, st.integers(1, 200))
def test_about_as_many_tasks_find_room_as_are_said_to(waiting, cpus):
    board = board_of(waiting, cpus=cpus)
    said = census.free_tasks(board.lanes, board.rooms)
    assert (said == 0.0) == (not waiting)
    shapes = {shape for _, shape in waiting}
    if len(shapes) == 1 and (amount := SHAPES[min(shapes)].cpus_milli):
        assert said == pytest.approx(cpus / amount)
