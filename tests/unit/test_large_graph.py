"""A large graph in arrays says the same as the plain one, in any order of its tasks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.graph import levels
from headway.domain.large_graph import LargeGraph
from headway.errors import CyclicGraph, InvalidInput


def made(after: dict[int, list[int]]) -> LargeGraph:
    """A graph whose names are the numbers themselves."""
    found = LargeGraph()
    for task, upstream in after.items():
        found.add(task + 1, [(one + 1, 0) for one in upstream])
    return found


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, list[int]]:
    """Tasks that wait for some of those before them, in any order of writing."""
    count = draw(st.integers(1, 25))
    after = {n: sorted(draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else [] for n in range(count)}
    order = draw(st.permutations(range(count))) if draw(st.booleans()) else range(count)
    return {n: after[n] for n in order}


@given(graphs())
def test_levels_and_counters_are_those_of_the_plain_graph(after):
    graph = made(after)
    counts = graph.join(str)
    expected = levels(after)
    positions = list(after)
    assert [graph.level[at] for at in range(len(after))] == [expected[n] for n in positions]
    assert counts == [list(expected.values()).count(level) for level in range(max(expected.values()) + 1)]
    assert [graph.blocked_on[at] for at in range(len(after))] == [len(after[n]) for n in positions]
    waited = {upstream for ups in after.values() for upstream in ups}
    assert [bool(graph.waited_for[at]) for at in range(len(after))] == [n in waited for n in positions]


@given(graphs(), st.data())
def test_a_cycle_is_found_and_every_step_of_it_is_an_edge(after, data):
    first = data.draw(st.sampled_from(sorted(after)))
    reach, todo = {first}, [first]
    while todo:
        todo += [up for up in after[todo.pop()] if up not in reach and not reach.add(up)]
    last = data.draw(st.sampled_from(sorted(reach)))
    after[last] = [*after[last], first]
    positions = list(after)
    with pytest.raises(CyclicGraph) as caught:
        made(after).join(str)
    cycle = [positions[int(at)] for at in caught.value.extra["cycle"]]
    assert cycle[0] == cycle[-1]
    assert all(below in after[above] for below, above in itertools.pairwise(cycle))


def test_a_name_that_is_missing_or_used_twice_is_an_error_that_says_who_asked():
    with pytest.raises(InvalidInput, match=r"task 1 \(1\): after: it names a task that is not"):
        made({0: [], 1: [7]}).join(str)
    graph = LargeGraph()
    for edges in ([], [], [(5, 0)]):
        graph.add(5, edges)
    with pytest.raises(InvalidInput, match="several tasks are named"):
        graph.join(str)
