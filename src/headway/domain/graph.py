"""Dependencies among tasks of one request: order, cycles, levels."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from headway.errors import CyclicGraph

Key = TypeVar("Key", bound=Hashable)


def check_acyclic(after: Mapping[Key, Sequence[Key]], named: Callable[[Key], str] = str) -> list[Key]:
    """The tasks in an order in which each comes after what it waits for; a cycle is an error that prints it."""
    try:
        return list(graphlib.TopologicalSorter(after).static_order())
    except graphlib.CycleError as error:
        cycle = [named(key) for key in error.args[1]]
        raise CyclicGraph(f"cycle: {' → '.join(cycle)}", field="after", hint="remove one of these edges", cycle=cycle) from None


def levels(after: Mapping[Key, Sequence[Key]]) -> dict[Key, int]:
    """Each task's level (C2): height minus depth, where depth is the longest path to a sink; the last to run is the highest."""
    order = check_acyclic(after)
    depth: dict[Key, int] = dict.fromkeys(order, 0)
    for key in reversed(order):
        for upstream in after.get(key, ()):
            depth[upstream] = max(depth[upstream], depth[key] + 1)
    height = max(depth.values(), default=0)
    return {key: height - d for key, d in depth.items()}


def levels_in_order(after: Sequence[Sequence[int]]) -> list[int]:
    """The levels of tasks by position, when each stands behind all it waits for (so there is no cycle): four times as quick."""
    depth = [0] * len(after)
    for position in range(len(after) - 1, -1, -1):
        beyond = depth[position] + 1
        for upstream in after[position]:
            if depth[upstream] < beyond:
                depth[upstream] = beyond
    height = max(depth, default=0)
    return [height - at for at in depth]


def longest_path(after: Mapping[Key, Sequence[Key]], weight: Mapping[Key, float]) -> list[Key]:
    """The critical path: the chain with the greatest total weight, first task first."""
    best: dict[Key, tuple[float, Key | None]] = {}
    for key in check_acyclic(after):
        before = max(((best[u][0], u) for u in after.get(key, ())), key=lambda pair: pair[0], default=None)
        best[key] = (weight.get(key, 1.0) + (before[0] if before else 0.0), before[1] if before else None)
    if not best:
        return []
    at: Key | None = max(best, key=lambda key: best[key][0])
    path: list[Key] = []
    while at is not None:
        path.append(at)
        at = best[at][1]
    return path[::-1]
