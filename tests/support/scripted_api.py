"""Answers of the API for tests of the client: views with the fields that matter, and a table of routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tests.support.scripted_http import Answer, Request, reply

Route = Callable[[Request], Any]  # the value to answer with; raw bytes are sent as they are


def routes(table: dict[str, Route]) -> Answer:
    """Answers "POST /v1/tasks" and its like by the table; the query is not part of the route."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        made = table[f"{request.method} {request.path.partition('?')[0]}"](request)
        value = await made if isinstance(made, Awaitable) else made
        writer.write(value if isinstance(value, bytes) else reply(200, msgspec.json.encode(value)))

    return answer


def problem(status: int, code: str, **members: Any) -> bytes:
    body = {"type": "about:blank", "title": "T", "status": status, "code": code, "detail": "what was wrong", **members}
    headers = {"retry_after": str(members["retry_after"])} if "retry_after" in members else {}
    return reply(status, msgspec.json.encode(body), content_type="application/problem+json", **headers)


MOMENT = "2026-11-15T03:00:00Z"


def accepted(task_id: str = "1", *, created: bool = True) -> dict[str, Any]:
    return {"id": task_id, "state": "ready", "start_by": MOMENT, "created": created}


def task_view(task_id: str = "1", state: str = "succeeded", **fields: Any) -> dict[str, Any]:
    return {
        "id": task_id,
        "name": "job",
        "tenant": "default",
        "state": state,
        "category": "delayable",
        "what": "module:job",
        "labels": {},
        "attempt": 1,
        "attempts": 1,
        "execution_cap_s": 600.0,
        "created_at": MOMENT,
        "eligible_at": MOMENT,
        "start_by": MOMENT,
        **fields,
    }
