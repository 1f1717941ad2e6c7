"""/v1/events: the live stream of facts, resumable by the id of the last event (J6)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar import get
from litestar.response import Stream

from headway.api.query import seconds_of
from headway.api.request import PEOPLE, Http, caller_of, core_of, while_known
from headway.domain.events import kinds_of
from headway.errors import InvalidInput
from headway.wire.views.events import EventView

_CURSOR = re.compile(r"(\d{1,19})-(\d{1,19})")


@get("/v1/events")
async def events(request: Http) -> Stream:
    """Server-sent events; each id resumes after it with the header Last-Event-ID (or ?after=). Without either it begins now, or
    `since` so long ago; `kind` lets only some through; `follow=0` ends it when everything there is was sent."""
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
    following = core_of(request).following
    if after is None and "since" in request.query_params:
        after = await following.since(seconds_of(request, "since", 0.0))
    words = [word for word in request.query_params.get("kind", "").split(",") if word]
    kinds = list(kinds_of(words, "kind")) if words else None
    follow = request.query_params.get("follow") not in ("0", "false")
    return Stream(
        _sse(while_known(request, following.events(caller.scope, after, kinds, follow=follow))),
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
