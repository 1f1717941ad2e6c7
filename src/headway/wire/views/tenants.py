"""Tenants, their limits and keys, and the audit log."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec


class TenantView(msgspec.Struct):
    """A tenant and what it subscribed to, in the words of `PATCH /v1/tenants/{tenant}`."""

    id: int
    name: str
    created_at: datetime.datetime
    subscription: dict[str, Any]


class TenantPage(msgspec.Struct):
    tenants: list[TenantView]
    next: str | None = None


class RemovedTenantView(msgspec.Struct):
    """What went with a tenant at once; those of its tasks that had not ended are being cancelled."""

    id: int
    name: str
    removed_at: datetime.datetime
    cancelling: int  # counted up to 10,000 of those that wait and of those on nodes
    keys: int
    schedules: int
    webhooks: int
    secrets: int


class LimitView(msgspec.Struct):
    """One limit: null where there is none."""

    limit: float | None
    used: float
    left: float | None


class LimitsView(msgspec.Struct):
    """What a tenant may use, uses, and has left (E6). Counts stop at 100,000 tasks of a state."""

    tenant: str
    running: LimitView
    waiting: LimitView
    cpus: LimitView
    memory: LimitView
    submissions: LimitView  # of the burst, now
    rate_per_hour: float | None
    subscription: dict[str, Any]


class KeyView(msgspec.Struct):
    """A key, without itself: that is shown once, when it is made."""

    id: int
    role: str
    tenant: str | None
    name: str
    created_at: datetime.datetime
    expires_at: datetime.datetime | None = None
    revoked_at: datetime.datetime | None = None


class KeyPage(msgspec.Struct):
    keys: list[KeyView]
    next: str | None = None


class NewKeyView(msgspec.Struct):
    """A key just made. The token is not kept: this is the only time it is shown."""

    id: int
    token: str
    role: str
    tenant: str | None
    name: str
    expires_at: datetime.datetime | None


class AuditView(msgspec.Struct):
    """One deed of a person or a program. `result` is `begun` when the server died in the middle of it."""

    id: str
    at: datetime.datetime
    actor: str
    role: str
    tenant: str | None
    action: str
    target: str
    result: str
    before: Any = None
    after: Any = None


class AuditPage(msgspec.Struct):
    entries: list[AuditView]
    next: str | None = None
