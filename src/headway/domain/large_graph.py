"""Graphs of millions of tasks in a few bytes each: positions, edges and levels as plain arrays (C2 C3).

A dictionary of names takes 200 bytes a task. Here a name is a 64-bit hash (keyed by the caller, so nobody can choose two that
collide), an edge is 13 bytes, and levels are worked out from the last task to the first without a queue when each task stands
behind what it waits for, which is how programs write such graphs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable

from headway.errors import CyclicGraph, InvalidInput

_NO_NAME = 0


class LargeGraph:
    """Tasks by position. First `add` all of them, then `join`."""

    def __init__(self) -> None:
        self.names = array("Q")  # hash of each task's name
        self.above = array("i")  # of each edge: the position of the task that waits
        self.waits_for = array("Q")  # the hash of the name it waits for
        self.kinds = array("b")
        self.below = array("i")  # after `join`: the position it waits for
        self.level = array("i")
        self.blocked_on = array("i")
        self.waited_for = bytearray()

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: int | None, edges: list[tuple[int, int]]) -> None:
        """One more task; edges are (hash of a name, kind)."""
        position = len(self.names)
        self.names.append(name or _NO_NAME)
        for upstream, kind in edges:
            self.above.append(position)
            self.waits_for.append(upstream)
            self.kinds.append(kind)

    def join(self, named: Callable[[int], str]) -> list[int]:
        """Find the tasks that edges name, put everything on its level; returns the number of tasks on each level.

        `named` gives the name of a position, for errors only; of an edge, the place of its task.
        """
        self._resolve(named)
        depth = self._depths(named)
        height = max(depth, default=0)
        counts = [0] * (height + 1)
        self.level = depth
        for position, at in enumerate(depth):
            depth[position] = height - at
            counts[height - at] += 1
        return counts

    def _resolve(self, named: Callable[[int], str]) -> None:
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        hashes = array("Q", map(self.names.__getitem__, order))
        places = array("i", order)
        del order
        count = len(self.names)
        self.blocked_on = array("i", bytes(4 * count))
        self.waited_for = bytearray(count)
        self.below = array("i", bytes(4 * len(self.above)))
        for number, wanted in enumerate(self.waits_for):
            at = bisect_left(hashes, wanted)
            above = self.above[number]
            if at == count or hashes[at] != wanted:
                raise InvalidInput(
                    f"task {above} ({named(above)}): after: it names a task that is not in this tree", field="after", task=above
                )
            if at + 1 < count and hashes[at + 1] == wanted:
                raise InvalidInput(
                    f"task {above} ({named(above)}): after: several tasks are named {named(places[at])!r}", field="after", task=above
                )
            self.below[number] = places[at]
            self.blocked_on[above] += 1
            self.waited_for[places[at]] = 1
        self.waits_for = array("Q")

    def _depths(self, named: Callable[[int], str]) -> array[int]:
        """The longest way from each task to one that nothing waits for."""
        above, below = self.above, self.below
        if any(below[number] >= above[number] for number in range(len(above))):
            return self._depths_in_any_order(named)
        depth = array("i", bytes(4 * len(self.names)))
        for number in range(len(above) - 1, -1, -1):  # edges stand in the order of the tasks that wait
            at = depth[above[number]] + 1
            if at > depth[below[number]]:
                depth[below[number]] = at
        return depth

    def _depths_in_any_order(self, named: Callable[[int], str]) -> array[int]:
        count = len(self.names)
        first = array("i", bytes(4 * (count + 1)))  # of each task: where its edges begin
        waiting = array("i", bytes(4 * count))  # of each task: how many that wait for it have no depth yet
        for number in range(len(self.above)):
            first[self.above[number] + 1] += 1
            waiting[self.below[number]] += 1
        for position in range(count):
            first[position + 1] += first[position]
        depth = array("i", bytes(4 * count))
        todo = array("i", (position for position in range(count) if not waiting[position]))
        done = 0
        while todo:
            position = todo.pop()
            done += 1
            for number in range(first[position], first[position + 1]):
                upstream = self.below[number]
                depth[upstream] = max(depth[upstream], depth[position] + 1)
                waiting[upstream] -= 1
                if not waiting[upstream]:
                    todo.append(upstream)
        if done < count:
            self._refuse_cycle(first, waiting, named)
        return depth

    def _refuse_cycle(self, first: array[int], waiting: array[int], named: Callable[[int], str]) -> None:
        """Who still has somebody waiting is on a cycle or before one: going up, from waiter to waiter, must come round."""
        above_of = {self.below[n]: self.above[n] for n in range(len(self.above)) if waiting[self.above[n]]}
        at = next(position for position in above_of if waiting[position])
        seen: dict[int, int] = {}
        path: list[int] = []
        while at not in seen:
            seen[at] = len(path)
            path.append(at)
            at = above_of[at]
        cycle = [named(position) for position in (*path[seen[at] :], at)]
        raise CyclicGraph(f"cycle: {' → '.join(cycle)}", field="after", hint="remove one of these edges", cycle=cycle)
