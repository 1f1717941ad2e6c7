"""What a task file says, once it has been read: trees of tasks with levels, and where each stood in the file."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.domain.schedule import ScheduleSpec
from headway.domain.spec import TaskSpec
from headway.domain.task import Edge


@dataclass(frozen=True)
class TreeTask:
    """One task. `spec` carries its name and dependencies too: it is all that a server needs to know."""

    name: str
    spec: TaskSpec
    after: list[Edge]
    level: int
    line: int
    column: int

    @property
    def upstream(self) -> list[str]:
        """The tasks of the same tree that this one waits for; ids of tasks submitted earlier are left out."""
        return [edge.task for edge in self.after if isinstance(edge.task, str)]


@dataclass(frozen=True)
class Tree:
    """Tasks joined by dependencies, in the order of the file."""

    name: str
    tasks: list[TreeTask]
    strict: bool = False  # the levels are barriers
    schedule: ScheduleSpec | None = None
    parts: dict[str, ScheduleSpec] = field(default_factory=dict)  # subtasks that run more often than the tree, by themselves too
    warnings: list[str] = field(default_factory=list)  # for people: what was accepted and has no effect yet

    @property
    def levels(self) -> dict[int, list[TreeTask]]:
        """The tasks of each level, the level that runs first first."""
        found: dict[int, list[TreeTask]] = {}
        for task in self.tasks:
            found.setdefault(task.level, []).append(task)
        return dict(sorted(found.items()))

    @property
    def after(self) -> dict[str, list[str]]:
        """The graph: each task with what it waits for."""
        return {task.name: task.upstream for task in self.tasks}
