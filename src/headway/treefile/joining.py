"""Names, edges and levels: from the shape of a tree to its graph.

Inside a `sequence` an item, with everything below it, begins when the item before it has succeeded. A task waits for
its subtasks; `after:` on a task is about that task alone, and says another kind of edge where it names a subtask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from headway.domain import graph
from headway.domain.checks import check_name
from headway.domain.define import define
from headway.domain.fanout import ResultOf
from headway.domain.schedule import ScheduleSpec
from headway.domain.spec import AfterSpec, TaskSpec
from headway.domain.task import Edge, When
from headway.domain.tenant import ANYWHERE
from headway.errors import CyclicGraph, InvalidInput
from headway.treefile.document import Mark
from headway.treefile.elements import Block, Element, Ref, Shape
from headway.treefile.model import Tree, TreeTask
from headway.treefile.schedules import check_rhythms
from headway.treefile.values import Reader, did_you_mean


def join(reader: Reader, name: str, shape: Shape) -> Tree:
    """The tree with every name resolved and every task on its level."""
    return _Joiner(reader, shape).tree(name)


class _Joiner:
    def __init__(self, reader: Reader, shape: Shape) -> None:
        self.reader = reader
        self.shape = shape
        self.names: dict[str, Element] = {}
        self.edges: dict[str, dict[str | int, When]] = {}
        self.marks: dict[str, Mark] = {}  # where the `after` of a task stands, for the cycle's error

    def tree(self, name: str) -> Tree:
        self.register()
        tasks = [element for element in self.shape.elements if element.spec]
        self.edges = {_name(element): {} for element in tasks}
        for element in [self.shape.top, *(e for e in self.shape.elements if e is not self.shape.top)]:
            for block in element.blocks:
                self.order(block)
            self.below(element)
        for element in self.shape.elements:
            self.explicit(element)
            self.fan(element)
        levels = self.levels()
        return Tree(
            name=name,
            tasks=[self.task(element, element.spec, levels) for element in tasks if element.spec],
            schedule=self.shape.schedule,
            strict=self.shape.strict,
            parts=self.rhythms(tasks),
            warnings=self.shape.warnings,
        )

    def rhythms(self, tasks: list[Element]) -> dict[str, ScheduleSpec]:
        """Subtasks with schedules of their own."""
        own = {_name(element): element.schedule for element in tasks if element.schedule is not None}
        after = {name: [up for up in edges if isinstance(up, str) and up in self.edges] for name, edges in self.edges.items()}
        return check_rhythms(self.reader, after, self.shape.schedule, own)

    def task(self, element: Element, spec: TaskSpec, levels: dict[str, int]) -> TreeTask:
        name = _name(element)
        after = [Edge(task, when) for task, when in self.edges[name].items()]
        spec.name = name
        spec.after = [e.task if e.when == When.SUCCEEDED else AfterSpec(e.task, e.when.name.lower()) for e in after]
        return TreeTask(name, spec, after, levels[name], element.mark.line, element.mark.column)

    def register(self) -> None:
        """Every task's name is its own within the tree; a task without one is called after what it runs."""
        for element in self.shape.elements:
            if element.name is not None:
                self.check(element.name, element.mark)
                self.names[element.name] = element
        for element in self.shape.elements:
            if element.name is None and element.spec:
                element.name = self.free(define(element.spec, ANYWHERE).name)
                self.names[element.name] = element
        for element in self.shape.elements:
            if element.key is not None:
                self.names.setdefault(element.key, element)

    def check(self, name: str, mark: Mark) -> None:
        try:
            check_name(name)
        except InvalidInput as error:
            self.reader.fail(mark, error.detail, hint=error.hint)
        if name in self.names:
            first = self.names[name].mark.line
            self.reader.fail(
                mark, f"two tasks of the tree are called {name!r}, the first in line {first}", hint="rename one of them"
            )

    def free(self, base: str) -> str:
        number, name = 1, base
        while name in self.names:
            number += 1
            name = f"{base}-{number}"
        return name

    def find(self, name: str, mark: Mark, word: str) -> Element:
        if name not in self.names:
            self.reader.fail(mark, f"{word}: there is no task {name!r} in this tree{did_you_mean(name, self.names)}")
        return self.names[name]

    def target(self, item: Element | Ref, word: str = "list") -> Element:
        return item if isinstance(item, Element) else self.find(item.name, item.mark, word)

    def order(self, block: Block) -> None:
        """One after another: the first tasks of an item wait for the last tasks of the item before."""
        items = [self.target(item, "sequence" if block.ordered else "parallel") for item in block.items]
        if block.ordered:
            for before, behind in itertools.pairwise(items):
                lasts = self.lasts(before)
                for first in self.firsts(behind):
                    self.edges[first].update(dict.fromkeys(lasts, When.SUCCEEDED))

    def below(self, element: Element) -> None:
        """A task waits for what is below it."""
        if element.spec:
            mine = self.edges[_name(element)]
            for child in self.ends(element):
                mine.update(dict.fromkeys(self.lasts(child), When.SUCCEEDED))

    def explicit(self, element: Element) -> None:
        """`after:` of a task, or of a group, whose first tasks then wait."""
        for edge, mark in element.after:
            upstream = self.upstream(edge, mark)
            for name in [_name(element)] if element.spec else self.firsts(element):
                self.marks.setdefault(name, mark)
                for task in upstream:
                    self.edges[name][task] = edge.when

    def fan(self, element: Element) -> None:
        """`for_each: {result_of: NAME}` waits for that task."""
        asked = element.spec.for_each if element.spec else None
        if not isinstance(asked, ResultOf):
            return
        mark = element.each or element.mark
        upstream = self.upstream(Edge(asked.result_of), mark, "for_each")
        if len(upstream) != 1:
            self.reader.fail(mark, f"for_each: {asked.result_of!r} is a list of tasks, and one result is needed", hint="name one task")
        asked.result_of = upstream[0]
        self.marks.setdefault(_name(element), mark)
        self.edges[_name(element)].setdefault(upstream[0], When.SUCCEEDED)

    def upstream(self, edge: Edge, mark: Mark, word: str = "after") -> list[str | int]:
        """The tasks an edge names. A number that is no task's name is the id of a task submitted earlier."""
        name = str(edge.task)
        if name not in self.names and name.isascii() and name.isdigit():
            return [int(name)]
        return list(self.lasts(self.find(name, mark, word)))

    def ends(self, element: Element) -> list[Element]:
        """The elements directly below that nothing else below follows."""
        found: dict[int, Element] = {}
        followed: set[int] = set()
        for block in element.blocks:
            items = [self.target(item) for item in block.items]
            if block.ordered:
                followed.update(id(item) for item in items[:-1])
                items = items[-1:]
            found.update((id(item), item) for item in items)
        return [item for key, item in found.items() if key not in followed]

    def lasts(self, element: Element) -> list[str]:
        """The tasks whose end is the end of an element: itself, or the last ones of a group."""
        return [_name(task) for task in self.search(element, down=self.ends, stop=lambda e: e.spec is not None)]

    def firsts(self, element: Element) -> list[str]:
        """The tasks whose start is the start of an element: the deepest below it."""
        return [_name(task) for task in self.search(element, down=self.begins, stop=lambda e: not e.blocks)]

    def begins(self, element: Element) -> list[Element]:
        found = [self.target(item) for block in element.blocks for item in (block.items[:1] if block.ordered else block.items)]
        later = {id(self.target(item)) for block in element.blocks if block.ordered for item in block.items[1:]}
        return [item for item in found if id(item) not in later]

    def search(
        self, element: Element, *, down: Callable[[Element], list[Element]], stop: Callable[[Element], bool]
    ) -> Iterator[Element]:
        """The tasks found by going down; without recursion, and each once even if names run in a circle."""
        stack, seen = [element], {id(element)}
        while stack:
            here = stack.pop()
            if stop(here):
                yield here
                continue
            for child in reversed(down(here)):
                if id(child) not in seen:
                    seen.add(id(child))
                    stack.append(child)

    def levels(self) -> dict[str, int]:
        upstream = {name: [task for task in edges if isinstance(task, str)] for name, edges in self.edges.items()}
        try:
            return graph.levels(upstream)
        except CyclicGraph as error:
            cycle = [str(name) for name in error.extra["cycle"]]
            mark = next((self.marks[name] for name in cycle if name in self.marks), self.names[cycle[0]].mark)
            return self.reader.fail(mark, error.detail, kind=CyclicGraph, hint=error.hint, cycle=cycle)


def _name(element: Element) -> str:
    if element.name is None:
        raise AssertionError("every task is named when the tree is joined")
    return element.name
