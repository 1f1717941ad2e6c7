"""Questions about the graph of dependencies: what is before a task, what is behind it, what decides when a tree ends (B2)."""

from __future__ import annotations

from typing import Any

from litestar import Response, get
from litestar.params import FromPath

from headway.api.query import MAX_LIMIT, one_page, whole
from headway.api.request import PEOPLE, Http, answer, caller_of, core_of, id_of
from headway.api.tasks import one
from headway.api.tree_views import level_views, tree_row
from headway.domain.identity import MAX_ID
from headway.domain.lifecycle import State
from headway.domain.task import When
from headway.errors import InvalidInput
from headway.store.queries import query
from headway.wire.views.trees import CriticalPath, EdgePage, EdgeView, LevelPage, NeighbourView, PathTaskView

LONGEST_PATH = 5_000
_NEIGHBOURS = {"upstream": query("graph.upstream"), "downstream": query("graph.downstream")}
_PATH = query("graph.critical_path")
_EDGES = query("graph.edges")


@get("/v1/tasks/{task_id:str}/upstream")
async def upstream(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """What the task waits for; `steps` goes further than its own dependencies."""
    return answer(await _neighbours(request, task_id, "upstream"))


@get("/v1/tasks/{task_id:str}/downstream")
async def downstream(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """What waits for the task."""
    return answer(await _neighbours(request, task_id, "downstream"))


async def _neighbours(request: Http, task_id: str, way: str) -> list[NeighbourView]:
    caller = await caller_of(request, *PEOPLE)
    core, task = core_of(request), id_of(task_id)
    await one(core, task, caller.scope)  # its edges lead to tasks of the same tenant only
    steps = whole(request, "steps", 1, low=1, high=1000)
    limit = whole(request, "limit", 200, low=1, high=MAX_LIMIT)
    async with core.database.reads() as connection:
        rows = await connection.fetch(_NEIGHBOURS[way], task, steps, limit, caller.scope)
    return [
        NeighbourView(str(row["id"]), row["name"], State(row["state"]).word, row["step"], When(row["kind"]).name.lower(), row["level"])
        for row in rows
    ]


@get("/v1/trees/{tree_id:str}/levels")
async def levels(request: Http, tree_id: FromPath[str]) -> Response[bytes]:
    """The counters of a tree's levels, lowest first; `from` and `limit` page through very high trees."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    row = await tree_row(core, tree, caller.scope)
    first = whole(request, "from", 0, low=0, high=2**31 - 1)
    limit = whole(request, "limit", 500, low=1, high=MAX_LIMIT)
    shown, last = one_page(await level_views(core, row, first, limit + 1), limit)
    return answer(LevelPage(list(shown), str(last.level + 1) if last else None))


@get("/v1/trees/{tree_id:str}/critical-path")
async def critical_path(request: Http, tree_id: FromPath[str]) -> Response[bytes]:
    """The chain of tasks that decides when the tree ends, first task first."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    await tree_row(core, tree, caller.scope)
    async with core.database.reads() as connection:
        rows = await connection.fetch(_PATH, tree, LONGEST_PATH)
    tasks = [_on_path(row) for row in rows]
    spent = sum(task.run_s or 0.0 for task in tasks)
    return answer(CriticalPath(tasks, round(spent, 3), len(tasks) == LONGEST_PATH))


def _on_path(row: Any) -> PathTaskView:
    ran = (row["ended_at"] - row["started_at"]).total_seconds() if row["started_at"] and row["ended_at"] else None
    waited = (row["started_at"] - row["eligible_at"]).total_seconds() if row["started_at"] else None
    return PathTaskView(
        str(row["id"]), row["name"], State(row["state"]).word, row["level"], row["started_at"], row["ended_at"], ran,
        max(waited, 0.0) if waited is not None else None,
    )  # fmt: skip


@get("/v1/trees/{tree_id:str}/edges")
async def edges(request: Http, tree_id: FromPath[str]) -> Response[bytes]:
    """The edges of a tree, page by page."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    await tree_row(core, tree, caller.scope)
    limit = whole(request, "limit", 1000, low=1, high=MAX_LIMIT)
    before, after = _cursor(request.query_params.get("cursor"))
    async with core.database.reads() as connection:
        rows = await connection.fetch(_EDGES, tree, before, after, limit + 1)
    shown, last = one_page(rows, limit)
    found = [EdgeView(str(row["upstream"]), str(row["downstream"]), When(row["kind"]).name.lower()) for row in shown]
    return answer(EdgePage(found, f"{last['upstream']}-{last['downstream']}" if last else None))


def _cursor(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    one, _, two = text.partition("-")
    if not (one.isascii() and one.isdigit() and two.isascii() and two.isdigit() and int(one) <= MAX_ID and int(two) <= MAX_ID):
        raise InvalidInput(f"cursor: {text[:40]!r} is no cursor", field="cursor", hint="`next` of the page before")
    return int(one), int(two)


ROUTES = [upstream, downstream, levels, critical_path, edges]
