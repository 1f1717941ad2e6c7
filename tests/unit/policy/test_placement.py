"""No plan exceeds a node, the order is kept, scarce nodes are kept for those who need them (E1 G2)."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy.order import Head, Key
from headway.policy.placement import Board, NodeRoom, Placed, Round, need_of, refuse

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def key(start: float, task: int, cap: int = 1000) -> Key:
    return (BASE + datetime.timedelta(seconds=start), cap, task)


def head(keys: list[Key]) -> Head:
    made = Head()
    made.refill(sorted(keys), asked=10**9)
    return made


def node(number: int, cpus: int, memory: int = 100, **fields) -> NodeRoom:
    labels = fields.pop("labels", {})
    return NodeRoom(number, f"n{number}", Capacity(cpus, memory, 100, labels=labels), **fields)


def board(heads, nodes, shapes, **fields) -> Board:
    made = Board(shapes, **fields)
    for one in nodes:
        made.add_node(one)
    made.resize()
    for group, one in heads.items():
        made.heads[group] = one
        made.touched(group)
    return made


def place(heads, nodes, shapes, *, most: int, horizon: float = -1) -> list[Placed]:
    return board(heads, nodes, shapes).place(Round(most, BASE + datetime.timedelta(seconds=horizon)))


shapes_of = st.dictionaries(
    st.integers(1, 4),
    st.builds(Resources, cpus_milli=st.integers(0, 8), memory=st.integers(0, 40), disk=st.integers(0, 40)),
    min_size=1,
)


@given(
    st.data(), shapes_of, st.lists(st.tuples(st.integers(0, 16), st.integers(0, 100)), min_size=1, max_size=5), st.integers(1, 60)
)
def test_no_plan_exceeds_a_node_and_every_task_is_placed_at_most_once(data, shapes, sizes, most):
    task_ids = iter(range(1, 10_000))
    heads = {
        (tenant, shape): head([key(data.draw(st.integers(0, 50)), next(task_ids)) for _ in range(data.draw(st.integers(0, 12)))])
        for tenant in (1, 2, 3)
        for shape in shapes
    }
    before = {group: list(h.keys) for group, h in heads.items()}
    nodes = [node(i + 1, cpus, memory) for i, (cpus, memory) in enumerate(sizes)]
    plan = place(heads, nodes, shapes, most=most)
    placed = [k for p in plan for k in p.keys]
    assert len(placed) == len(set(placed)) <= most
    for n in nodes:
        assert min(n.free) >= 0
        assert n.held == sum(len(p.keys) for p in plan if p.node == n.id)
    for group, keys in before.items():
        taken = [k for p in plan if p.group == group for k in p.keys]
        assert taken == keys[: len(taken)], "a group is served from its front, in order"
    left_over = {g: h for g, h in heads.items() if len(h)}
    if len(placed) < most:  # work-conserving: whatever is left fits nowhere
        for (_, shape), _h in left_over.items():
            assert all(refuse(shapes[shape], n) is not None for n in nodes)


@given(st.lists(st.lists(st.integers(0, 100), max_size=20), min_size=1, max_size=6))
def test_the_tasks_of_one_tenant_leave_in_the_common_order(starts):
    task_ids = iter(range(1, 10_000))
    heads = {(1, n): head([key(start, next(task_ids)) for start in group]) for n, group in enumerate(starts)}
    shapes = {n: Resources(cpus_milli=1 + n) for n in range(len(starts))}
    everything = sorted(k for h in heads.values() for k in h.keys)
    plan = place(heads, [node(1, 100_000)], shapes, most=10_000)
    placed = [k for p in plan for k in p.keys]
    assert [k[:2] for k in placed] == [k[:2] for k in everything]
    assert sorted(placed) == everything


def test_the_shorter_cap_wins_a_tie():
    heads = {(1, 1): head([key(0, 1, cap=900)]), (2, 1): head([key(0, 2, cap=100)])}
    plan = place(heads, [node(1, 1)], {1: Resources(cpus_milli=1)}, most=10)
    assert [p.keys[0][2] for p in plan] == [2]


def test_a_large_task_that_does_not_fit_does_not_stop_a_small_one():
    shapes = {1: Resources(cpus_milli=8), 2: Resources(cpus_milli=1)}
    heads = {(1, 1): head([key(0, 1)]), (1, 2): head([key(5, 2)])}
    plan = place(heads, [node(1, 4)], shapes, most=10)
    assert [p.group for p in plan] == [(1, 2)]


def test_tasks_are_packed_onto_the_fullest_node_that_has_room():
    nodes = [node(1, 10), node(2, 10)]
    nodes[1].allocate(need_of(Resources(cpus_milli=6)), 1)
    plan = place({(1, 1): head([key(0, 1)])}, nodes, {1: Resources(cpus_milli=2)}, most=1)
    assert plan[0].node == 2


def test_a_node_with_special_labels_is_kept_for_those_who_ask_for_them():
    nodes = [node(1, 10, labels={"gpu": "a100"}), node(2, 10)]
    plan = place({(1, 1): head([key(0, 1)])}, nodes, {1: Resources(cpus_milli=2)}, most=1)
    assert plan[0].node == 2
    plan = place({(1, 1): head([key(0, 1)])}, nodes, {1: Resources(cpus_milli=2, labels=(("gpu", "a100"),))}, most=1)
    assert plan[0].node == 1


def test_a_node_may_hold_what_it_is_expected_to_finish_soon():
    n = node(1, 2, ahead=50)
    plan = place({(1, 1): head([key(0, i) for i in range(1, 200)])}, [n], {1: Resources(cpus_milli=1)}, most=1000)
    assert sum(len(p.keys) for p in plan) == 50


def test_a_draining_node_takes_nothing_and_says_so():
    n = node(1, 10, closed="is draining")
    assert place({(1, 1): head([key(0, 1)])}, [n], {1: Resources(cpus_milli=1)}, most=10) == []
    refusal = refuse(Resources(cpus_milli=1), n)
    assert refusal is not None
    assert (refusal.reason, refusal.ever) == ("takes no new tasks: it is draining", False)


def test_a_refusal_says_what_is_missing():
    refusal = refuse(Resources(cpus_milli=99), node(1, 10))
    assert refusal is not None
    assert refusal.ever
    assert "cpus" in refusal.reason
