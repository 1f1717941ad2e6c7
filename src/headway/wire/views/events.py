"""Events, and the webhooks that carry them."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec


class EventView(msgspec.Struct):
    """One fact on the stream (`GET /v1/events`, SSE): the SSE id resumes after it."""

    id: str
    kind: str  # one of domain.events.KINDS
    tenant: str
    at: datetime.datetime
    tasks: list[str] = []
    data: dict[str, Any] = {}


class WebhookView(msgspec.Struct):
    """One endpoint. The secret is shown when it is made or changed, and never again."""

    name: str
    url: str
    events: list[str]
    enabled: bool
    tenant: str | None  # None: hears of all tenants
    created_at: datetime.datetime
    waiting: int  # messages, 1,000 at most
    dead: int
    implicit: bool = False  # made by a task's `notify`
    secret: str | None = None


class DeliveryView(msgspec.Struct):
    """One message to one endpoint."""

    id: str
    message: str
    kind: str
    task: str | None
    state: str  # due | delivered | dead
    attempts: int
    created_at: datetime.datetime
    due_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    status: int | None
    error: str | None
