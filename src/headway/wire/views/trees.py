"""Trees: their levels, their edges, their critical path."""

from __future__ import annotations

import datetime

import msgspec

from headway.wire.exchange import ErrorInfo
from headway.wire.views.tasks import ProgressView


class TreeTaskView(msgspec.Struct):
    id: str
    name: str
    state: str
    level: int
    progress: ProgressView | None = None
    exit_code: int | None = None
    error: ErrorInfo | None = None


class LevelView(msgspec.Struct):
    """What is left on a level, and when it is expected to end. `spared` were skipped because nobody needed them."""

    level: int
    total: int
    left: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    spared: int = 0
    expired: int = 0
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None  # when the last task on it ended, so far
    expected_end_at: datetime.datetime | None = None


class TreeView(msgspec.Struct):
    """A tree. Of a large one, the first tasks and the lowest levels that have something left are shown."""

    id: str
    name: str
    state: str
    created_at: datetime.datetime
    levels: list[LevelView]
    tasks: list[TreeTaskView]
    total: int = 0
    left: int = 0
    height: int = 0  # number of levels, also of those not shown
    strict: bool = False
    ended_at: datetime.datetime | None = None
    expected_end_at: datetime.datetime | None = None


class NeighbourView(msgspec.Struct):
    """A task before or behind another: how many steps away, and what kind of edge leads there."""

    id: str
    name: str
    state: str
    steps: int
    when: str
    level: int | None = None


class EdgeView(msgspec.Struct):
    upstream: str
    downstream: str
    when: str


class EdgePage(msgspec.Struct):
    edges: list[EdgeView]
    next: str | None = None


class LevelPage(msgspec.Struct):
    levels: list[LevelView]
    next: str | None = None  # `from` of the next page


class PathTaskView(msgspec.Struct):
    id: str
    name: str
    state: str
    level: int | None
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    run_s: float | None = None
    waited_s: float | None = None  # for room, after its dependencies were done


class CriticalPath(msgspec.Struct):
    """The chain that decides when a tree ends, first task first."""

    tasks: list[PathTaskView]
    run_s: float
    shortened: bool = False  # only the end of a very long one is shown


class TreeSummary(msgspec.Struct):
    id: str
    name: str
    tenant: str
    state: str
    created_at: datetime.datetime
    total: int
    left: int
    height: int
    ended_at: datetime.datetime | None = None


class TreePage(msgspec.Struct):
    """`GET /v1/trees`; `next` is the cursor of the next page."""

    trees: list[TreeSummary]
    next: str | None = None
