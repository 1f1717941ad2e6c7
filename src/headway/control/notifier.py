"""Tells other servers what happened here, over NOTIFY: at most 100 times a second, on a connection of its own, and only when there
are other servers. NOTIFY takes a lock over the whole instance, so it is never part of a hot commit. A lost message costs latency
only: every receiver also looks by itself now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import time
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from headway import telemetry
from headway.control.bus import Bus, Freed
from headway.control.exchanges import Exchanges
from headway.control.planner import Planner
from headway.control.tenants import Tenants
from headway.logs import log
from headway.policy.order import Group, Key
from headway.store.database import GONE, Database

CHANNEL = "headway"
GAP_S = 0.01
LIMIT = 7_000  # NOTIFY carries at most 8,000 bytes
TRY_S = 20.0  # who only listens would not notice that the line is dead
ANSWER_S = 5.0


@dataclass
class Notifier:
    database: Database
    holder: str
    bus: Bus
    planner: Planner
    exchanges: Exchanges
    tenants: Tenants
    others: bool = False
    _ready: dict[Group, Key] = field(default_factory=dict)
    _finished: dict[int, int] = field(default_factory=dict)  # by node
    _returned: set[int] = field(default_factory=set)
    _orders: set[int] = field(default_factory=set)
    _changed: set[Group] = field(default_factory=set)
    _cancels: list[tuple[int, int, int]] = field(default_factory=list)
    _flags: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: Any = None
    _answered: float = 0.0  # monotonic: when the line was last known to work

    def __post_init__(self) -> None:
        self.bus.on_ready.append(self._on_ready)
        self.bus.on_freed.append(self._on_freed)
        self.bus.on_returned.append(self._on_returned)
        self.bus.on_cancel.append(self._on_cancel)
        self.bus.on_control.append(self.orders)
        self.bus.on_answered.append(lambda _: self._flag("answered"))
        self.bus.on_told.append(lambda: self._flag("ended"))
        self.bus.on_ended.append(lambda _: self._flag("ended"))
        self.bus.on_scheduled.append(lambda: self._flag("scheduled"))
        self.bus.on_fleet.append(lambda: self._flag("fleet"))
        self.bus.on_changed.append(self._on_changed)
        self.bus.on_queues.append(lambda: self._flag("queues"))
        self.bus.on_tenants.append(lambda: self._flag("tenants"))

    # What happened here

    def _flag(self, name: str) -> None:
        if self.others:
            self._flags.add(name)
            self._wake.set()

    def _on_ready(self, tasks: dict[Group, list[Key]]) -> None:
        if self.others:
            for group, keys in tasks.items():
                self._ready[group] = min(self._ready.get(group, keys[0]), keys[0])
            self._wake.set()

    def _on_freed(self, room: Freed) -> None:
        if self.others:
            for (node, _, _), count in room.items():
                self._finished[node] = self._finished.get(node, 0) + count
            self._wake.set()

    def _on_returned(self, room: Freed) -> None:
        if self.others:
            self._returned.update(node for node, _, _ in room)
            self._wake.set()

    def _on_changed(self, groups: list[Group]) -> None:
        if self.others:
            self._changed.update(groups)
            self._wake.set()

    def _on_cancel(self, attempts: list[tuple[int, int, int]]) -> None:
        if self.others:
            self._cancels += attempts
            self._wake.set()

    def orders(self, nodes: list[int]) -> None:
        """Orders were planned for nodes that talk to other servers."""
        if self.others:
            self._orders.update(nodes)
            self._wake.set()

    # Sending

    async def run(self) -> None:
        while True:
            try:
                await self._connect()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TRY_S):
                        await self._wake.wait()
                self._wake.clear()
                await self._send()
                await asyncio.sleep(GAP_S)  # coalesce what follows the leading edge
            except (*GONE, asyncpg.PostgresError) as error:
                log("notifier.waits", level="warning", error=repr(error))
                self._connection = None
                await asyncio.sleep(0.5)

    async def _connect(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        self._connection = await self.database.reach.connect("headway notify", command_timeout=ANSWER_S)
        await self._connection.add_listener(CHANNEL, self._heard)
        self._connection.add_termination_listener(lambda _: self._wake.set())
        await self._notify({"flags": ["hello"]})

    async def _send(self) -> None:
        message: dict[str, Any] = {}
        if self._ready:
            message["ready"] = [[g[0], g[1], k[0].timestamp(), k[1], k[2]] for g, k in self._ready.items()]
        for name, value in (
            ("finished", self._finished.items()),
            ("returned", self._returned),
            ("orders", self._orders),
            ("changed", self._changed),
            ("flags", self._flags),
        ):
            if value:
                message[name] = list(value)
        if self._cancels:
            message["cancels"] = self._cancels
        self._ready, self._finished, self._returned, self._orders, self._cancels, self._flags = {}, {}, set(), set(), [], set()
        self._changed = set()
        if message or time.monotonic() - self._answered > TRY_S:
            await self._notify(message)

    async def tell_at_once(self, flag: str) -> None:
        """For a server that ends: nothing is gathered any more."""
        async with self.database.cold() as connection:
            await connection.execute("select pg_notify($1, $2)", CHANNEL, json.dumps({"from": self.holder, "flags": [flag]}))

    async def _notify(self, message: dict[str, Any]) -> None:
        text = json.dumps({"from": self.holder, **message})
        if len(text) > LIMIT:
            text = json.dumps({"from": self.holder, "flags": ["rescan"], "orders": ["all"]})
        await self._connection.execute("select pg_notify($1, $2)", CHANNEL, text)
        self._answered = time.monotonic()

    # Hearing

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        message = json.loads(payload)
        if message["from"] == self.holder:
            return
        for tenant, shape, start_by, cap_ms, task in message.get("ready", ()):
            moment = datetime.datetime.fromtimestamp(start_by, datetime.UTC) - datetime.timedelta(milliseconds=1)
            self.planner.heard_ready((tenant, shape), (moment, cap_ms, task))
        self.planner.changed([(tenant, shape) for tenant, shape in message.get("changed", ())])
        self.planner.heard_room(dict(message.get("finished", ())), message.get("returned", []))
        self.exchanges.sessions.cancel([(n, t, a) for n, t, a in message.get("cancels", ())])
        orders = message.get("orders", [])
        for node in self.exchanges.sessions.by_node if "all" in orders else orders:
            telemetry.background(self.exchanges.load_orders(node))
        self._heard_flags(message.get("flags", []))

    def _heard_flags(self, flags: list[str]) -> None:
        if "hello" in flags:  # a server has come: from now on there is somebody to tell
            self.others, self.exchanges.alone = True, False
        if "duties" in flags:
            self.bus.vacant()
        if "rescan" in flags:
            self.planner.rescan()
        if "fleet" in flags:
            telemetry.background(self.exchanges.fleet.refresh())
        if "queues" in flags:
            telemetry.background(self._refresh_queues())
        if "tenants" in flags:
            telemetry.background(self._refresh_tenants())
        if "answered" in flags:
            self.bus.answered_elsewhere()
        if "scheduled" in flags or "rescan" in flags:
            self.bus.scheduled_elsewhere()
        if "ended" in flags or "rescan" in flags:
            for tell in self.bus.on_remote:
                tell()

    async def _refresh_queues(self) -> None:
        await self.planner.definitions.queues.refresh()

    async def _refresh_tenants(self) -> None:
        await self.tenants.refresh()
