"""The index of nodes finds what a look at every node would find, after any sequence of changes (G2)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy.room import NodeRoom, Rooms, fit_of, looseness, need_of, refuse

SHAPES = {
    1: Resources(cpus_milli=2),
    2: Resources(cpus_milli=1, memory=4),
    3: Resources(cpus_milli=1, labels=(("gpu", "a100"),)),
}
LABELS = [{}, {"gpu": "a100"}, {"gpu": "h100", "zone": "a"}]
steps = st.lists(
    st.tuples(st.sampled_from(["take", "free", "ahead", "drain", "gone", "come"]), st.integers(1, 6), st.integers(1, 3), st.integers(0, 3)),
    max_size=60,
)


def room(number: int, size: int) -> NodeRoom:
    return NodeRoom(number, f"n{number}", Capacity(4 + size, 8 + size, 100, labels=LABELS[number % 3]))


@settings(max_examples=200)
@given(steps)
def test_a_node_is_found_exactly_when_some_node_does_not_refuse(script):
    rooms = Rooms(SHAPES)
    for number in range(1, 4):
        rooms[number] = room(number, number)
        rooms.changed(number)
    for step, number, shape, count in script:
        node = rooms.get(number)
        if step == "come" and node is None:
            rooms[number] = room(number, count)
            rooms.changed(number)
        elif node is None:
            continue
        elif step == "take":
            rooms.allocate(node, need_of(SHAPES[shape]), count)
        elif step == "free" and count:
            rooms.allocate(node, need_of(SHAPES[shape]), -count)
        elif step == "ahead":
            node.ahead = count * 2
            rooms.gained(number)
        elif step == "drain":
            node.closed = "" if count == 0 else "is draining"
            rooms.changed(number)
        elif step == "gone":
            del rooms[number]
            rooms.changed(number)
        for asked in SHAPES:
            willing = [one for one in rooms.values() if refuse(SHAPES[asked], one) is None]
            found = rooms.best(asked)
            assert (found is not None) == bool(willing)
            if found is not None:
                assert found in willing
                at_once = [one for one in willing if one.fits(need_of(SHAPES[asked]))]
                assert not at_once or found in at_once, "a node where it fits at once goes before one where it would wait"


def test_the_fullest_node_is_best_and_nodes_with_spare_labels_are_kept():
    plain, full, special = room(3, 0), room(6, 0), room(1, 0)
    full.allocate(need_of(Resources(cpus_milli=1)), 1)
    fits = {one.id: fit_of(SHAPES[1], one) for one in (plain, full, special)}
    ranks = sorted((plain, full, special), key=lambda one: looseness(fits[one.id], one))
    assert [one.id for one in ranks] == [6, 3, 1]


def test_utilisation_is_that_of_the_scarcest_resource():
    rooms = Rooms(SHAPES)
    rooms[1] = NodeRoom(1, "n", Capacity(10, 10, 10))
    rooms.changed(1)
    rooms.allocate(rooms[1], ((0, 2), (1, 9)), 1)
    assert rooms.utilisation() == 0.9
    rooms[1].closed = "is draining"
    rooms.changed(1)
    assert rooms.utilisation() == 0.0, "a draining node is no part of the fleet"
