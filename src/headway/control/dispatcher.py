"""The dispatcher duty: events become messages for the endpoints that want them (J6).

The event table is the outbox: each row was written in the transaction of the fact it tells. One server at a time reads on from a
durable cursor, only below the oldest running transaction, and stores messages and cursor in one transaction. Without an endpoint
nothing is read, and no task costs anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec

from headway.control.bus import Bus
from headway.control.leader import Leader
from headway.control.webhooks import name_of
from headway.domain.lifecycle import Outcome, State
from headway.domain.task import decode
from headway.store.database import Connection, Database
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo

LOOK_S = 1.0
IDLE_S = 5.0  # how often to look for a first endpoint that another server stored
CLEAN_S = 60.0
SAVE_S = 10.0  # how often a cursor that passed nothing of interest is written
EVENTS = 500
TASKS = 5_000  # in one transaction, as far as whole events allow
FORGET = 10_000
LAST_SEQ = 2**62

_LISTENING = query("webhook.listening")
_DEFINITIONS = query("webhook.notifying_definitions")
_CURSOR = query("webhook.cursor")
_EVENTS = query("webhook.events")
_ADVANCE = query("webhook.advance")
_TASKS = query("webhook.tasks")
_SEND = query("webhook.send")
_FORGET = query("webhook.forget")
_ABANDON = query("control.abandon")

Cursor = tuple[str, int]


@dataclass
class Audience:
    """Who wants to hear what."""

    by_tenant: dict[int | None, list[Any]] = field(default_factory=dict)  # endpoints by tenant; None: of all tenants
    notify: dict[int, dict[str, frozenset[str]]] = field(default_factory=dict)  # definition -> endpoint's name -> kinds
    notifying: set[int] = field(default_factory=set)  # tenants with such definitions
    last_version: int = -1  # of the definitions that were read

    @property
    def everyone(self) -> bool:
        return bool(self.by_tenant.get(None))

    @property
    def tenants(self) -> list[int]:
        return sorted({tenant for tenant in self.by_tenant if tenant is not None} | self.notifying)

    def subscribers(self, tenant: int | None, kind: str) -> list[int]:
        """Endpoints that asked for this kind of event."""
        mine = self.by_tenant.get(tenant, []) if tenant is not None else []
        return [row["id"] for row in (*mine, *self.by_tenant.get(None, [])) if kind in row["kinds"]]

    def named_by(self, tenant: int | None, definition: int, kind: str) -> list[int]:
        """Endpoints that a task's own definition names for this kind."""
        wanted = self.notify.get(definition)
        if not wanted:
            return []
        names = {name for name, kinds in wanted.items() if kind in kinds}
        return [row["id"] for row in self.by_tenant.get(tenant, []) if row["name"] in names]


@dataclass
class Dispatcher:
    database: Database
    leader: Leader
    bus: Bus
    source: str  # of the CloudEvents
    sent: list[Any] = field(default_factory=list)  # who wants to know that there are new messages
    _audience: Audience = field(default_factory=Audience)
    _version: int = -1  # of the audience
    _cleaned: float = 0.0
    _saved: float = 0.0
    _cursor: Cursor | None = None  # where we are; the durable one may lie behind it
    _epoch: int = -1

    @property
    def busy(self) -> bool:
        """Whether anybody listens, so that events matter."""
        return bool(self._audience.by_tenant)

    async def run_once(self) -> float:
        now = time.monotonic()
        if now - self._cleaned >= CLEAN_S:
            self._cleaned = now
            await self.clean()
        if self._epoch != self.leader.epoch("dispatcher"):
            self._epoch, self._cursor = self.leader.epoch("dispatcher"), None
        elif not self.busy and not await self._has_changed():
            return IDLE_S
        self._cursor, more, count = await self.database.transact(self._dispatch)
        if count:
            for tell in self.sent:
                tell()
        return 0.0 if more else LOOK_S if self.busy else IDLE_S

    async def _has_changed(self) -> bool:
        """Whether an endpoint was stored since nobody listened."""
        async with self.database.hot() as connection:
            row = await connection.fetchrow(_CURSOR)
        return bool(row["version"] != self._version)

    async def clean(self) -> None:
        async def work(connection: Connection) -> None:
            await self.leader.fence(connection, "dispatcher")
            await connection.execute(_FORGET, FORGET)
            await connection.execute(_ABANDON, FORGET)

        await self.database.transact(work)

    async def _refresh(self, connection: Connection) -> None:
        """Endpoints are few; definitions that name them never change, so only new ones are read."""
        audience = self._audience
        rows = await connection.fetch(_LISTENING)
        by_tenant: dict[int | None, list[Any]] = {}
        for row in rows:
            by_tenant.setdefault(row["tenant"], []).append(row)
        audience.by_tenant = by_tenant
        for row in await connection.fetch(_DEFINITIONS, audience.last_version) if rows else ():
            targets = decode(row["body"]).notify
            audience.notify[row["definition"]] = {name_of(target.to): frozenset(target.kinds) for target in targets}
            audience.notifying.add(row["tenant"])
            audience.last_version = row["version"]

    async def _dispatch(self, connection: Connection) -> tuple[Cursor | None, bool, int]:
        """The next events; returns where we are then, whether there may be more at once, and how many messages were made.

        The horizon comes first, then who listens, then the events below the horizon: whoever came before an event is told of it.
        """
        await self.leader.fence(connection, "dispatcher")
        row = await connection.fetchrow(_CURSOR)
        if row["version"] != self._version:
            await self._refresh(connection)
            self._version = row["version"]
        if not self.busy:
            return None, False, 0
        at, horizon = self._cursor or (row["xid"], row["seq"]), row["horizon"]
        audience = self._audience
        events = await connection.fetch(_EVENTS, *at, horizon, audience.everyone, audience.tenants, EVENTS)
        taken = _portion(events)
        more = len(events) == EVENTS or len(taken) < len(events)
        messages = await self._messages(connection, taken)
        if messages:
            await connection.execute(_SEND, *(list(column) for column in zip(*messages, strict=True)))
        at = (taken[-1]["xid"], taken[-1]["seq"]) if more else (str(int(horizon) - 1), LAST_SEQ)
        if messages or time.monotonic() - self._saved > SAVE_S:
            await connection.execute(_ADVANCE, *at)
            self._saved = time.monotonic()
        return at, more, len(messages)

    async def _messages(self, connection: Connection, events: list[Any]) -> list[tuple[int, int | None, str, str, str]]:
        wanted = {task for event in events if self._is_wanted(event) for task in event["tasks"]}
        tasks = {row["id"]: row for row in await connection.fetch(_TASKS, sorted(wanted))} if wanted else {}
        messages = []
        for event in events:
            subscribers = self._audience.subscribers(event["tenant"], event["kind"])
            for task in event["tasks"] or ([None] if subscribers else []):
                row = tasks.get(task)
                targets = set(subscribers)
                if row is not None:
                    targets.update(self._audience.named_by(event["tenant"], row["definition"], event["kind"]))
                if targets:
                    message = f"{event['xid']}-{event['seq']}" + (f"-{task}" if task is not None else "")
                    body = self._body(message, event, task, row)
                    messages += [(target, task, message, event["kind"], body) for target in sorted(targets)]
        return messages

    def _is_wanted(self, event: Any) -> bool:
        return event["tenant"] in self._audience.notifying or bool(self._audience.subscribers(event["tenant"], event["kind"]))

    def _body(self, message: str, event: Any, task: int | None, row: Any) -> str:
        data = msgspec.json.decode(event["data"]) if event["data"] else {}
        if row is not None:
            data["task"] = _described(row)
        tenant = event["tenant_name"] or ""
        return cloud_event(message, event["kind"], f"{self.source}/tenants/{quote(tenant)}", event["at"], task, data)


def cloud_event(message: str, kind: str, source: str, at: Any, task: int | None, data: dict[str, Any]) -> str:
    """CloudEvents 1.0, as JSON."""
    event = {"specversion": "1.0", "id": message, "type": f"headway.{kind}", "source": source, "time": at}
    if task is not None:
        event["subject"] = str(task)
    return msgspec.json.encode({**event, "datacontenttype": "application/json", "data": data}).decode()


def _described(row: Any) -> dict[str, Any]:
    error = msgspec.json.decode(row["error"], type=ErrorInfo) if row["error"] else None
    about = {
        "id": str(row["id"]),
        "name": row["name"],
        "state": State(row["state"]).word,
        "attempt": row["attempt"],
        "outcome": None if row["outcome"] is None else Outcome(row["outcome"]).word,
        "exit_code": row["exit_code"],
        "error": None if error is None else _error(error),
        "labels": msgspec.json.decode(row["labels"]) if row["labels"] else None,
        "node": row["node"],
        "tree": None if row["tree"] is None else str(row["tree"]),
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
    }
    return {key: value for key, value in about.items() if value is not None}


def _error(error: ErrorInfo) -> dict[str, Any]:
    """With the limit that it was ended for, if it was: what it used and what it was allowed."""
    about: dict[str, Any] = {"type": error.type, "message": error.message[:2_000]}
    return about if error.excess is None else {**about, "excess": error.excess}


def _portion(events: Iterable[Any]) -> list[Any]:
    """Whole events, until they are about enough tasks for one transaction."""
    taken, count = [], 0
    for event in events:
        taken.append(event)
        count += len(event["tasks"])
        if count >= TASKS:
            break
    return taken
