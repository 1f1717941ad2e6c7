"""A tree's tasks as runs of neighbouring ids on one level (C2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.tree import runs

ids = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), unique_by=lambda task: task[0]).map(sorted)


@given(ids)
def test_runs_hold_each_task_once_on_its_level_and_nothing_else(tasks):
    found = [(task, level) for level, first, last in zip(*runs(tasks), strict=True) for task in range(first, last + 1)]
    assert found == tasks


@given(ids)
def test_no_run_could_be_part_of_the_one_before_it(tasks):
    levels, firsts, lasts = runs(tasks)
    assert all(
        firsts[n] > lasts[n - 1] + 1 or levels[n] != levels[n - 1] for n in range(1, len(levels))
    )
