"""/v1/webhooks: endpoints that are told of events, their secrets, their deliveries (J6)."""

from __future__ import annotations

import datetime
import secrets
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.params import FromPath

from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of
from headway.control.access import Caller
from headway.control.dispatcher import cloud_event
from headway.control.webhooks import Owner
from headway.domain.units import at_seconds
from headway.errors import Forbidden, InvalidInput
from headway.wire.views.answers import Changed
from headway.wire.views.events import DeliveryView, WebhookView

STATES = {"due": 0, "delivered": 1, "dead": 2}
_WORDS = {number: word for word, number in STATES.items()}
LIMIT = 100


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    url: str
    events: list[str] = msgspec.field(default_factory=lambda: ["finished"])
    all_tenants: bool = False  # an administrator's: hears of every tenant
    secret: str | None = None  # one is made when it is not given


class WebhookChange(msgspec.Struct, forbid_unknown_fields=True):
    url: str | None = None
    events: list[str] | None = None
    enabled: bool | None = None


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages to send again: these, those that died, or all since a moment."""

    messages: list[str] = []
    dead: bool = False
    since: str | float | None = None  # ISO 8601 or Unix seconds


@get("/v1/webhooks")
async def webhooks(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    return answer([_view(row) for row in await core_of(request).webhooks.all(_owner(caller))])


@post("/v1/webhooks", status_code=201)
async def add(request: Http) -> Response[bytes]:
    """A new endpoint; its secret is in this answer and in no other."""
    caller = await caller_of(request, *PEOPLE)
    asked = await body_of(request, NewWebhook)
    if asked.all_tenants and caller.role != "admin":
        raise Forbidden("all_tenants: only an administrator hears of all tenants")
    row, secret = await core_of(request).webhooks.add(
        _owner(caller), name=asked.name, url=asked.url, events=asked.events, everywhere=asked.all_tenants, secret=asked.secret
    )
    return answer(_view(row, secret), 201)


@get("/v1/webhooks/{name:str}")
async def show(request: Http, name: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    return answer(_view(await core_of(request).webhooks.one(_owner(caller), name)))


@patch("/v1/webhooks/{name:str}")
async def change(request: Http, name: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    asked = await body_of(request, WebhookChange)
    row = await core_of(request).webhooks.change(
        _owner(caller), name, url=asked.url, events=asked.events, enabled=asked.enabled
    )
    return answer(_view(row))


@delete("/v1/webhooks/{name:str}", status_code=200)
async def remove(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Remove an endpoint with everything that waits for it."""
    caller = await caller_of(request, *PEOPLE)
    await core_of(request).webhooks.remove(_owner(caller), name)
    return answer(Changed(1, [name]))


@post("/v1/webhooks/{name:str}/rotate", status_code=200)
async def rotate(request: Http, name: FromPath[str]) -> Response[bytes]:
    """A new secret; for a day messages are signed with the old one too."""
    caller = await caller_of(request, *PEOPLE)
    row, secret = await core_of(request).webhooks.rotate(_owner(caller), name)
    return answer(_view(row, secret))


@post("/v1/webhooks/{name:str}/test", status_code=202)
async def test(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Send a message that says nothing, to see whether it arrives."""
    caller = await caller_of(request, *PEOPLE)
    core, message = core_of(request), f"test-{secrets.token_hex(8)}"
    source = f"headway/tenants/{quote(caller.tenant_name)}"
    body = cloud_event(message, "webhook.test", source, core.clock.now(), None, {"webhook": name})
    await core.webhooks.test(_owner(caller), name, body, message)
    return answer(Changed(1, [message]), 202)


@post("/v1/webhooks/{name:str}/replay", status_code=200)
async def replay(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Send messages again that were delivered or given up; they keep their ids."""
    caller = await caller_of(request, *PEOPLE)
    asked = await body_of(request, Replay)
    if any("\x00" in message for message in asked.messages):
        raise InvalidInput("messages: a NUL character is not allowed", field="messages")
    since = None if asked.since is None else datetime.datetime.fromtimestamp(at_seconds(asked.since, "since"), datetime.UTC)
    again = await core_of(request).webhooks.replay(
        _owner(caller), name, messages=asked.messages, dead=asked.dead, since=since
    )
    return answer(Changed(len(again), [str(i) for i in again[:1000]]))


@get("/v1/webhooks/{name:str}/deliveries")
async def deliveries(request: Http, name: FromPath[str]) -> Response[bytes]:
    """The messages for an endpoint, newest first."""
    caller = await caller_of(request, *PEOPLE)
    word, before = request.query_params.get("state"), request.query_params.get("before")
    if word is not None and word not in STATES:
        raise InvalidInput(f"state: {word[:20]!r} is unknown", field="state", hint="due, delivered or dead")
    if before is not None and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise InvalidInput(f"before: {before[:20]!r} is not an id", field="before", hint="the id of the last delivery you have")
    rows = await core_of(request).webhooks.deliveries(
        _owner(caller), name, None if word is None else STATES[word], None if before is None else int(before), LIMIT
    )
    return answer([_delivery(row) for row in rows])


def _owner(caller: Caller) -> Owner:
    return Owner(caller.tenant, caller.role == "admin")


def _view(row: Any, secret: str | None = None) -> WebhookView:
    return WebhookView(
        row["name"], row["url"], list(row["kinds"]), row["enabled"], row["tenant_name"], row["created_at"], row["waiting"], row["dead"],
        row["implicit"], secret,
    )  # fmt: skip


def _delivery(row: Any) -> DeliveryView:
    return DeliveryView(
        str(row["id"]), row["message"], row["kind"], None if row["task"] is None else str(row["task"]), _WORDS[row["state"]],
        row["attempts"], row["created_at"], row["due_at"] if row["state"] == 0 else None, row["ended_at"], row["status"], row["error"],
    )  # fmt: skip


ROUTES = [webhooks, add, show, change, remove, rotate, test, replay, deliveries]
