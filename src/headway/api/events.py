"""/v1/events: the live stream of facts, resumable by the id of the last event (J6)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar import get
from litestar.response import Stream

from headway.api.request import PEOPLE, Http, caller_of, core_of
from headway.errors import InvalidInput
from headway.wire.views import EventView

_CURSOR = re.compile(r"(\d{1,19})-(\d{1,19})")


@get("/v1/events")
async def events(request: Http) -> Stream:
    """Server-sent events; each id resumes after it with the header Last-Event-ID (or ?after=)."""
    caller = await caller_of(request, *PEOPLE)
    asked = request.headers.get("last-event-id") or request.query_params.get("after")
    after = None
    if asked:
        match = _CURSOR.fullmatch(asked)
        if match is None or int(match[1]) >= 2**63 or int(match[2]) >= 2**63:
            raise InvalidInput(
                f"Last-Event-ID: {asked[:40]!r} is no event id", field="last-event-id", hint="the id of an event of this stream"
            )
        after = (match[1], int(match[2]))
    return Stream(
        _sse(core_of(request).waiting.events(caller.scope, after)),
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
    )


async def _sse(batches: AsyncIterator[list[Any]]) -> AsyncIterator[bytes]:
    async for rows in batches:
        yield b"".join(_event(row) for row in rows) if rows else b": still here\n\n"


def _event(row: Any) -> bytes:
    view = EventView(
        id=f"{row['xid']}-{row['seq']}",
        kind=row["kind"],
        tenant=row["tenant"] or "",
        at=row["at"],
        tasks=[str(task) for task in row["tasks"]],
        data=msgspec.json.decode(row["data"]) if row["data"] else {},
    )
    return b"id: " + view.id.encode() + b"\nevent: " + view.kind.encode() + b"\ndata: " + msgspec.json.encode(view) + b"\n\n"


ROUTES = [events]
