"""`Tree` in Python: names and edges, before anything is sent (C1 C3)."""

from __future__ import annotations

from typing import Any

import pytest

from headway import Tree
from headway.errors import InvalidInput


def job(number: int) -> int:
    return number


class Counting(dict[str, Any]):
    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def test_calls_of_one_function_are_numbered_without_looking_at_all_of_them() -> None:
    tree = Tree("calls")
    tree._nodes = names = Counting()
    assert [tree.add(job, number).name for number in range(3)] == ["job", "job-2", "job-3"]
    tree.add(command=["true"], name="job-4")
    assert tree.add(job, 3).name == "job-5"
    for number in range(1000):
        tree.add(job, number)
    assert len(tree) == 1005
    assert names.asked < 5000


def test_a_task_of_another_tree_is_no_dependency() -> None:
    one, other = Tree("one"), Tree("other")
    first = one.add(command=["true"], name="first")
    other.add(command=["true"], name="first")
    for wrong in ({"after": [first]}, {"for_each": first}):
        with pytest.raises(InvalidInput, match="is not of the tree 'other'"):
            other.add(command=["true"], **wrong)
    assert other.add(command=["true"], after="first").spec["after"] == ["first"]
