"""/v1/dead-letters: tasks out of attempts, grouped by error, sent again in bulk, purged (F4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from litestar import Response, get, post

from headway.api.query import filter_of, one_page, whole
from headway.api.render import error_of, task_view
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of, id_of
from headway.domain.lifecycle import State
from headway.errors import InvalidInput
from headway.store.listing import page
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo
from headway.wire.views.answers import Changed
from headway.wire.views.tasks import DeadGroup, Page

_GROUPS = query("read.dead_groups")
SHOWN = 1_000  # ids named in an answer


class Which(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: by id, by group, by name, or all of them."""

    ids: list[str | int] | None = None
    fingerprint: str | None = None
    name: str | None = None
    all: bool = False
    edit: dict[str, Any] | None = None


@get("/v1/dead-letters")
async def list_dead(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    if request.query_params.get("group") in ("1", "true"):
        async with core.database.searches(caller.tenant) as connection:
            rows = await connection.fetch(_GROUPS, caller.scope, whole(request, "limit", 100, low=1, high=1000))
        return answer([_group(row) for row in rows])
    wanted = filter_of(request, core, caller.scope)
    wanted.states = [State.FAILED]
    async with core.database.searches(caller.tenant) as connection:
        rows, last = one_page(await page(connection, replace(wanted, limit=wanted.limit + 1)), wanted.limit)
    return answer(Page([task_view(row) for row in rows], str(last["id"]) if last else None))


@post("/v1/dead-letters/retry", status_code=200)
async def retry_dead(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    asked = await body_of(request, Which)
    ids = await core_of(request).actions.revive(await _chosen(request, asked, caller.scope), caller.scope, asked.edit)
    return answer(Changed(len(ids), [str(i) for i in ids[:SHOWN]]))


@post("/v1/dead-letters/purge", status_code=200)
async def purge_dead(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    asked = await body_of(request, Which)
    if asked.edit is not None:
        raise InvalidInput("edit: nothing is edited by a purge", field="edit")
    ids = await core_of(request).actions.purge(await _chosen(request, asked, caller.scope), caller.scope)
    return answer(Changed(len(ids), [str(i) for i in ids[:SHOWN]]))


async def _chosen(request: Http, asked: Which, tenant: int | None) -> list[int]:
    if not (asked.ids is not None or asked.fingerprint or asked.name or asked.all):
        raise InvalidInput("which dead letters?", hint='give ids, fingerprint or name, or "all": true')
    for field in ("fingerprint", "name"):
        if "\x00" in (getattr(asked, field) or ""):
            raise InvalidInput(f"{field}: a NUL character is not allowed", field=field)
    ids = None if asked.ids is None else [id_of(i) for i in asked.ids]
    return await core_of(request).actions.dead_ids(tenant, ids=ids, fingerprint=asked.fingerprint, name=asked.name)


def _group(row: Any) -> DeadGroup:
    error = error_of(row["error"]) or ErrorInfo("unknown", "")
    return DeadGroup(
        row["fingerprint"],
        row["name"],
        error.type,
        error.message,
        row["count"],
        row["first_at"],
        row["last_at"],
        str(row["example"]),
    )


ROUTES = [list_dead, retry_dead, purge_dead]
