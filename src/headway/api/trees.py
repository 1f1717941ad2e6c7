"""/v1/trees: tasks that belong together, submitted at once, watched and cancelled as one."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

import msgspec
from litestar import Response, get, post

from headway.api.query import seconds_of
from headway.api.render import error_of
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of, id_of
from headway.control.core import Core
from headway.domain.lifecycle import State
from headway.domain.task import TaskSpec, check_name
from headway.errors import NotFound
from headway.store.queries import query
from headway.wire.views import AcceptedMany, LevelView, ProgressView, TreeTaskView, TreeView

MAX_SHOWN = 2_000
_GET = query("tree.get")
_TASKS = query("tree.tasks")
_COUNTS = query("tree.counts")
_LIVE = query("tree.live_ids")
_PROGRESS = query("output.progress_of")


class TreeSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A tree: its tasks name each other in `after`."""

    name: str
    tasks: list[TaskSpec]


@post("/v1/trees", status_code=201)
async def submit_tree(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    spec = await body_of(request, TreeSpec)
    check_name(spec.name)
    drafts = await core.drafts.many(caller.tenant, spec.tasks)
    receipt = await core.admission.submit(caller.tenant, drafts, tree=spec.name)
    return answer(AcceptedMany([str(i) for i in receipt.ids], len(receipt.ids), str(receipt.tree)), 201)


@get("/v1/trees/{tree_id:str}")
async def show_tree(request: Http, tree_id: str) -> Response[bytes]:
    """The tree with its levels; `wait` with `seen` (the ETag of an earlier answer) holds until something changed."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    deadline = time.monotonic() + min(seconds_of(request, "wait", 0.0), 60.0)
    seen = request.query_params.get("seen") or request.headers.get("if-none-match")
    while True:
        view = await tree_view(core, tree, caller.scope)
        body = msgspec.json.encode(view)
        etag = hashlib.blake2b(body, digest_size=8).hexdigest()
        if etag != seen or time.monotonic() >= deadline:
            return Response(body, media_type="application/json", headers={"etag": etag})
        live = [int(task.id) for task in view.tasks if not State[task.state.upper()].final]
        if live:
            await core.waiting.any_final(live[:200], caller.scope, 0.3)
        await asyncio.sleep(0.03)


@post("/v1/trees/{tree_id:str}/cancel", status_code=200)
async def cancel_tree(request: Http, tree_id: str) -> Response[bytes]:
    """Cancels every task of the tree that is not final."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    await _tree_row(core, tree, caller.scope)
    async with core.database.cold() as connection:
        ids = [row["id"] for row in await connection.fetch(_LIVE, tree, 10_000_000)]
    # Those that wait for others first, so that cancelling one does not release the next.
    await core.actions.cancel(ids[::-1])
    return answer(await tree_view(core, tree, caller.scope))


async def _tree_row(core: Core, tree: int, tenant: int | None) -> Any:
    async with core.database.cold() as connection:
        row = await connection.fetchrow(_GET, tree, tenant)
    if row is None:
        raise NotFound(f"there is no tree {tree}")
    return row


async def tree_view(core: Core, tree: int, tenant: int | None) -> TreeView:
    row = await _tree_row(core, tree, tenant)
    async with core.database.cold() as connection:
        counts = await connection.fetch(_COUNTS, tree)
        tasks = await connection.fetch(_TASKS, tree, MAX_SHOWN)
        progress = {
            p["task"]: ProgressView(p["done"], p["total"], p["text"])
            for p in await connection.fetch(_PROGRESS, [t["id"] for t in tasks])
        }
    left = [0] * len(row["levels"])
    for count in counts:
        if not State(count["state"]).final:
            left[count["level"]] += count["count"]
    return TreeView(
        id=str(tree),
        name=row["name"],
        state=tree_state({State(c["state"]) for c in counts}),
        created_at=row["created_at"],
        levels=[LevelView(level, total, left[level]) for level, total in enumerate(row["levels"])],
        tasks=[
            TreeTaskView(
                str(t["id"]),
                t["name"],
                State(t["state"]).word,
                t["level"],
                progress.get(t["id"]),
                t["exit_code"],
                error_of(t["error"]),
            )
            for t in tasks
        ],
    )


def tree_state(states: set[State]) -> str:
    """A tree's state is derived from its tasks (SPEC: States)."""
    if not all(state.final for state in states):
        return "running" if any(state >= State.LEASED for state in states) else "ready"
    if states & {State.FAILED, State.EXPIRED}:
        return "failed"
    if State.CANCELLED in states:
        return "cancelled"
    return "succeeded"


ROUTES = [submit_tree, show_tree, cancel_tree]
