"""The HTTP application: a list of routes."""

from __future__ import annotations

import time
from typing import Any

from litestar import Litestar, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.response import Response

from headway import telemetry
from headway.api import (
    audit,
    checkpoints,
    content,
    dead,
    events,
    explain,
    graph,
    nodes,
    openapi,
    overview,
    predictions,
    problems,
    queues,
    schedules,
    steering,
    tasks,
    tenants,
    trees,
    webhooks,
)
from headway.api.request import Http, refuse_nul
from headway.control.core import Core
from headway.errors import HeadwayError

ROUTES = [
    *checkpoints.ROUTES,
    *content.ROUTES,
    *trees.ROUTES, *graph.ROUTES,
    *tasks.ROUTES, *steering.ROUTES, *schedules.ROUTES, *predictions.ROUTES, *nodes.ROUTES, *dead.ROUTES, *events.ROUTES,
    *webhooks.ROUTES, *overview.ROUTES,
    *queues.ROUTES, *explain.ROUTES,
    *tenants.ROUTES, *audit.ROUTES,
]  # fmt: skip


@get("/openapi.json")
async def openapi_json(request: Http) -> Response[bytes]:
    return Response(openapi.document_bytes(), media_type="application/json")


class Counted(Litestar):
    """Counts and times every answer, those too that come before any route is found (J2)."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began = time.perf_counter()

        async def watched(message: Any) -> None:
            if message["type"] == "http.response.start":
                route: str | None = scope.get("path_template")
                telemetry.answered(str(scope.get("method")), route, message["status"], time.perf_counter() - began)
            await send(message)

        await super().__call__(scope, receive, watched)


def create_app(core: Core) -> Litestar:
    return Counted(
        route_handlers=[*ROUTES, openapi_json],
        state=State({"core": core}),
        openapi_config=None,
        middleware=[audit.AuditTrail],
        before_request=refuse_nul,
        logging_config=None,  # ours is telemetry.log; Litestar's would start a thread
        request_max_body_size=core.settings.max_body,
        exception_handlers={
            HeadwayError: problems.on_headway_error,
            HTTPException: problems.on_http_error,
            Exception: problems.on_unexpected,
        },
    )
