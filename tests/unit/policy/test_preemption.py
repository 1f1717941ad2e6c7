"""Who makes room for whom (E9)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy.preemption import MOST_VICTIMS, REST_S, STAYING, Candidate, Late, Mode, Space, choose, may_stop

CAPACITY = Capacity(4000, 8000, 1000, 0, 0, 0)


def late(cpus: int = 1000, memory: int = 0, *, urgent: bool = True, cap_s: float = 60.0) -> Late:
    return Late(1, Resources(cpus_milli=cpus, memory=memory), urgent, cap_s)


def candidate(task: int, *, node: int = 1, cpus: int = 1000, memory: int = 1000, **fields: float) -> Candidate:
    return Candidate(task, node, (cpus, memory, 0, 0, 0, 0), **{"cap_s": 3600.0, "ran_s": 100.0, "unsaved_s": 100.0, **fields})


def space(node: int = 1, cpus: int = 0, memory: int = 1000) -> Space:
    return Space(node, (cpus, memory, 0, 0, 0, 0), CAPACITY)


def test_a_task_is_frozen_when_there_is_memory_beside_it_and_loses_nothing() -> None:
    choice = choose(late(memory=500), [space()], [candidate(7)])
    assert choice is not None
    assert (choice.victims, choice.lost_s) == ({7: Mode.FREEZE}, 0.0)


def test_without_memory_beside_it_the_one_with_the_freshest_checkpoint_is_queued_again() -> None:
    there = [candidate(7), candidate(8, unsaved_s=3.0), candidate(9, unsaved_s=50.0)]
    choice = choose(late(memory=1500), [space(memory=600)], there)
    assert choice is not None
    assert (choice.victims, choice.lost_s) == ({8: Mode.REQUEUE}, 3.0)


def test_where_there_is_room_nobody_is_stopped() -> None:
    assert choose(late(), [space(1), space(2, cpus=1000)], [candidate(7)]) is None


def test_a_task_that_is_merely_late_stops_only_a_much_longer_one() -> None:
    assert choose(late(urgent=False, cap_s=60), [space()], [candidate(7, cap_s=300)]) is None
    assert choose(late(urgent=False, cap_s=2), [space()], [candidate(7, cap_s=300)]) is not None


def test_a_tenant_above_its_part_stops_only_its_own_tasks() -> None:
    above = Late(1, Resources(cpus_milli=1000), urgent=True, cap_s=60.0, tenant=3, entitled=False)
    assert choose(above, [space()], [candidate(7, tenant=4)]) is None
    choice = choose(above, [space()], [candidate(7, tenant=4, ran_s=1.0), candidate(8, tenant=3)])
    assert choice is not None
    assert set(choice.victims) == {8}


def test_what_ends_soon_is_left_alone() -> None:
    assert choose(late(), [space()], [candidate(7, cap_s=100.0, ran_s=99.0)]) is None


def test_the_same_task_is_not_stopped_twice_in_a_row() -> None:
    again = candidate(7, times=1, away_s=100.0, back_s=50.0)
    assert choose(late(), [space()], [again]) is None
    assert choose(late(), [space()], [candidate(7, times=1, away_s=1.0, back_s=REST_S - 1)]) is None
    rested = candidate(7, times=1, away_s=100.0, back_s=101.0)
    choice = choose(late(), [space()], [rested, candidate(8, ran_s=3000.0)])
    assert choice is not None
    assert set(choice.victims) == {8}


candidates_of = st.lists(
    st.builds(
        Candidate,
        id=st.integers(10, 10_000),
        node=st.integers(1, 3),
        need=st.tuples(st.integers(0, 3000), st.integers(0, 4000), st.integers(0, 100), st.just(0), st.just(0), st.integers(0, 2)),
        cap_s=st.floats(1, 90_000),
        ran_s=st.floats(0, 90_000),
        unsaved_s=st.floats(0, 90_000),
        times=st.integers(0, 3),
        away_s=st.floats(0, 500),
        back_s=st.floats(0, 500),
    ),
    max_size=12,
    unique_by=lambda c: c.id,
)
spaces_of = st.lists(
    st.builds(
        Space,
        node=st.integers(1, 3),
        free=st.tuples(st.integers(-500, 4000), st.integers(0, 8000), st.integers(0, 100), st.just(0), st.just(0), st.integers(0, 4)),
        capacity=st.just(Capacity(4000, 8000, 100, 0, 0, 10)),
        accepting=st.booleans(),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda s: s.node,
)
lates = st.builds(
    Late,
    id=st.just(1),
    asked=st.builds(Resources, cpus_milli=st.integers(1, 4000), memory=st.integers(0, 8000), ports=st.integers(0, 3)),
    urgent=st.booleans(),
    cap_s=st.floats(0.1, 1000),
)


@given(lates, spaces_of, candidates_of)
def test_a_choice_makes_room_needs_everyone_and_stops_nobody_wrongly(
    wanted: Late, spaces: list[Space], there: list[Candidate]
) -> None:
    choice = choose(wanted, spaces, there)
    if choice is None:
        return
    by_id = {c.id: c for c in there}
    [where] = [s for s in spaces if s.node == choice.node]
    assert where.accepting
    assert 0 < len(choice.victims) <= MOST_VICTIMS
    need = wanted.asked.amounts()

    def enough(victims: set[int]) -> bool:
        free = list(where.free)
        for victim in victims:
            for i, amount in enumerate(by_id[victim].need):
                if i not in STAYING or choice.victims[victim] is Mode.REQUEUE:
                    free[i] += amount
        return all(asked <= there for asked, there in zip(need, free, strict=True))

    assert enough(set(choice.victims))
    for victim in choice.victims:
        assert by_id[victim].node == choice.node
        assert may_stop(wanted, by_id[victim])
        assert not enough(set(choice.victims) - {victim}), "one of them was not needed"


@given(lates, spaces_of, candidates_of)
def test_the_order_in_which_things_are_given_does_not_matter(wanted: Late, spaces: list[Space], there: list[Candidate]) -> None:
    assert choose(wanted, spaces, there) == choose(wanted, spaces[::-1], there[::-1])


@given(lates, candidates_of)
def test_one_task_alone_in_the_way_is_enough_if_it_may_be_stopped(wanted: Late, there: list[Candidate]) -> None:
    """Nobody waits two days behind a long task with two seconds of work."""
    full = Space(1, (0, 8000, 100, 0, 0, 10), Capacity(4000, 8000, 100, 0, 0, 10))
    big = Candidate(5, 1, (4000, 0, 0, 0, 0, 0), cap_s=172_800.0, ran_s=10.0, unsaved_s=10.0)
    choice = choose(wanted, [full], [big, *(c for c in there if c.node == 1)])
    if wanted.urgent or wanted.cap_s <= 2.0:
        assert choice is not None
        assert choice.lost_s == 0.0 or 5 not in choice.victims
