"""The audit over HTTP: a row for every call that changes something, whatever route it takes, and `GET /v1/audit` (J5)."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from litestar import Response, get
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from headway.api.query import moment_of, one_page, text_of, whole
from headway.api.request import Http, answer, caller_of, core_of
from headway.control.audit import Entry
from headway.control.core import Core
from headway.domain.identity import MAX_ID
from headway.errors import HeadwayError
from headway.store.queries import query
from headway.wire.views.tenants import AuditPage, AuditView

_PAGE = query("audit.page")
_READS = ("GET", "HEAD", "OPTIONS")
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "set", "DELETE": "delete"}
AUDITED_ROLES = ("admin", "tenant", "reader")  # people and programs; what agents and running tasks say is their work
QUIET = {  # submissions are rows of their own; the rest changes nothing
    ("POST", "/v1/tasks"), ("POST", "/v1/trees"), ("POST", "/v1/trees/stream"), ("POST", "/v1/tasks/wait"), ("POST", "/v1/predictions"),
    ("POST", "/v1/nodes"), ("POST", "/v1/nodes/{node}/exchange"),
}  # fmt: skip


class AuditTrail:
    """Stands in front of every route."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, template = str(scope.get("method", "GET")), scope["path_template"]
        if method in _READS or (method, template) in QUIET:
            await self.app(scope, receive, send)
            return
        core: Core = scope["litestar_app"].state.core
        entry = await _begin(core, scope, method)
        if entry is None:
            await self.app(scope, receive, send)
            return
        scope["state"]["audit"] = entry
        status = "failed"

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = "done" if message["status"] < 400 else f"refused {message['status']}"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            await core.audit.end(entry, status)


async def _begin(core: Core, scope: Scope, method: str) -> Entry | None:
    """The row of this call; None for who is not audited. Who is not known at all is refused by the route."""
    header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    try:
        caller = await core.access.caller(header.decode("latin-1"))
    except HeadwayError:
        return None
    if caller.role not in AUDITED_ROLES:
        return None
    target = ", ".join(str(value) for value in scope["path_params"].values())
    return await core.audit.begin(caller, action_of(method, scope["path_template"]), target[:200].replace("\x00", ""))


def action_of(method: str, template: str) -> str:
    """`POST /v1/tasks/{task_id}/cancel` is tasks.cancel, `PATCH /v1/tenants/{tenant}` is tenants.set."""
    words = [word for word in template.split("/")[2:] if word and not word.startswith("{")] or ["?"]
    return f"{words[0]}.{words[-1] if len(words) > 1 else _VERBS.get(method, method.lower())}"


def entry_of(request: Http) -> Entry:
    """The row of this call, to tell before and after."""
    entry: Entry = request.scope["state"]["audit"]
    return entry


@get("/v1/audit")
async def audit(request: Http) -> Response[bytes]:
    """Who did what, the newest first; a tenant sees what was done in its name and to it."""
    caller = await caller_of(request, "admin", "tenant")
    limit = whole(request, "limit", 50, low=1, high=1000)
    before = whole(request, "cursor", MAX_ID, low=1, high=MAX_ID)
    since: datetime.datetime | None = moment_of(request, "since")
    patterns = [_like(text_of(request, name)) for name in ("actor", "action")]
    async with core_of(request).database.searches(caller.tenant) as connection:
        rows = await connection.fetch(_PAGE, caller.scope, before, *patterns, text_of(request, "target"), since, limit + 1)
    shown, last = one_page(rows, limit)
    return answer(AuditPage([_view(row) for row in shown], str(last["id"]) if last else None))


def _view(row: Any) -> AuditView:
    before, after = (None if row[name] is None else msgspec.json.decode(row[name]) for name in ("before", "after"))
    return AuditView(
        str(row["id"]),
        row["at"],
        row["actor"],
        row["role"],
        row["tenant"],
        row["action"],
        row["target"],
        row["result"],
        before,
        after,
    )


def _like(text: str | None) -> str | None:
    """A pattern in which * stands for anything."""
    if text is None:
        return None
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")


ROUTES = [audit]
