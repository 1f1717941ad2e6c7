"""/v1/tasks/{id}/explain: why a task does not run, and when it will (E8). PATCH /v1/tasks/{id}: change a waiting task in place (F5)."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, patch
from litestar.params import FromPath

from headway.api.render import task_view
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of, id_of
from headway.api.tasks import one
from headway.errors import InvalidInput


@get("/v1/tasks/{task_id:str}/explain")
async def explain(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Every reason that keeps it from running, its place in the order, what would start it, and when it will probably start."""
    caller = await caller_of(request, *PEOPLE)
    core, task = core_of(request), id_of(task_id)
    return answer(await core.explaining.explain(await one(core, task, caller.scope), caller.scope))


@patch("/v1/tasks/{task_id:str}")
async def change(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Change fields of a task that no node has yet; its id, fence and dependencies stay."""
    caller = await caller_of(request, *PEOPLE)
    core, task = core_of(request), id_of(task_id)
    edit = await body_of(request, dict[str, Any])
    for field in ("after", "for_each", "idempotency_key"):
        if field in edit:
            raise InvalidInput(f"{field}: cannot be changed on a waiting task", field=field, hint="cancel it and submit another")
    await core.changing.change(task, caller.scope, edit)
    return answer(task_view(await one(core, task, caller.scope), whole=True))


ROUTES = [explain, change]
