"""Answers agents: registration, heartbeats, reports, orders (DESIGN: Guarantees).

An agent reports absolute state. A new boot gives back what the old one held; attempts the database knows and the agent does not are
ordered again; attempts the agent holds and nobody knows are cancelled.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headway import telemetry, version, wire
from headway.control.bus import Bus
from headway.control.checkpoints import Checkpoints
from headway.control.definitions import Definitions
from headway.control.fleet import Fleet
from headway.control.heartbeats import Heartbeats
from headway.control.leader import Leader
from headway.control.reaper import lose_tasks
from headway.control.reports import ReportDesk
from headway.control.results import Results
from headway.control.secrets import Secrets
from headway.control.sessions import Session, Sessions
from headway.control.settle import Effects, tell
from headway.domain.checks import check_labels, check_name
from headway.domain.lifecycle import State
from headway.errors import Conflict, InvalidInput, NotFound, Unavailable, VersionMismatch
from headway.logs import log
from headway.store.database import Connection, Database
from headway.store.queries import query
from headway.wire import task_token
from headway.wire.exchange import Control, Exchange, Order, Orders, Ref, Register, Registered

RECONCILE_S = 5.0
LONGEST_POLL_S = 30.0
LONGEST_TROUBLE = 200  # characters
FARTHEST_MS = 10 * 365 * 86_400_000  # a clock that is farther away than this is told as this far
_BOOT_OF = query("node.boot_of")
_REGISTER = query("node.register")
_LEAVE = query("node.leave")
_ORDERS = query("task.orders_of")
_BEGUN = query("task.begun_of")
_HELD = query("task.held_by")
_CANCELLED = query("task.cancelled_of")
_CONTROLS = query("control.open_of")


@dataclass
class Exchanges:
    database: Database
    fleet: Fleet
    definitions: Definitions
    sessions: Sessions
    desk: ReportDesk
    heartbeats: Heartbeats
    leader: Leader
    checkpoints: Checkpoints
    bus: Bus
    secrets: Secrets
    heartbeat_s: float
    fence_s: float
    hold_s: float
    alone: bool = True  # no other server lives, as far as we know
    held: Callable[[int], None] = lambda _node: None  # a node was told to hold on

    def __post_init__(self) -> None:
        self.results = Results(self.database, self.definitions)
        self.bus.on_cancel.append(self.sessions.cancel)
        self.bus.on_control.append(self._steer)
        self.sessions.look_up = lambda node: telemetry.background(self.load_orders(node))

    async def register(self, asked: Register) -> Registered:
        """A node joins, or comes back under a new boot: then everything the old boot held has ended."""
        if asked.protocol != wire.PROTOCOL:
            raise VersionMismatch(
                f"the agent speaks protocol {asked.protocol}, this server {wire.PROTOCOL}",
                hint="run the same version of Headway on both",
            )
        check_name(asked.name)
        check_name(asked.boot, "boot")
        for field, text in (("version", asked.version), ("region", asked.region), ("machine", asked.machine)):
            if text:
                check_name(text, field)
        check_labels(asked.capacity.labels, "capacity.labels")
        if min(asked.capacity.amounts()) < 0 or max(asked.capacity.amounts()) >= 2**62:
            raise InvalidInput("capacity: an amount is out of range", field="capacity")
        effects = Effects()

        async def work(connection: Connection) -> tuple[int, bytes]:
            effects.clear()
            old = await connection.fetchrow(_BOOT_OF, asked.name)
            if old is not None and old["lives"] and old["boot"] != asked.boot and _differ(old["machine"], asked.machine):
                raise Conflict(
                    f"a node named {asked.name!r} lives on another machine",
                    hint="give this one another name (--name), or wait until the other is gone",
                )
            capacity = msgspec.json.encode(asked.capacity).decode()
            new_key = secrets.token_bytes(task_token.KEY_BYTES)
            node, task_key = await connection.fetchrow(
                _REGISTER, asked.name, asked.boot, capacity, asked.region, asked.version, new_key, asked.machine
            )
            if old is not None and old["boot"] != asked.boot:
                await lose_tasks(connection, node, asked.name, self.definitions, effects)
            return node, task_key

        node, task_key = await self.database.transact(work)
        await self.fleet.refresh()
        tell(self.bus, effects)
        log("node.registered", node=asked.name, id=node, boot=asked.boot, cpus=asked.capacity.cpus_milli / 1000)
        return Registered(node, self.heartbeat_s, self.fence_s, self.hold_s, wire.PROTOCOL, version.VERSION, task_key)

    async def exchange(self, node: int, said: Exchange) -> Orders:
        """One call of an agent."""
        telemetry.exchanged()
        session, new = self.sessions.open(node, said.boot)
        with session.talking():
            return await self._answer(session, said, new=new)

    async def _answer(self, session: Session, said: Exchange, *, new: bool) -> Orders:
        node, reply = session.node, Orders(said.sequence)
        if new:
            try:
                reply.lost = not await self._welcome_or_forget(session)
            except Unavailable:
                if not (said.heartbeat and self._hold(session, reply)):
                    raise
                return reply  # it was here before
            if reply.lost:
                return reply
        session.acknowledge(said)
        clock_ms = self._ahead(said)
        if said.finished or said.started or said.returned or said.output or said.progress or said.notices or said.stages:
            await self.desk.submit(node, said)
        if said.heartbeat and not await self._beat(session, said, clock_ms, reply):
            return reply
        if said.wait_s > 0:
            await self.sessions.wait(session, min(said.wait_s, LONGEST_POLL_S))
        reply.drain = self._drains(node)
        if self.sessions.by_node.get(node) is not session:
            reply.lost = said.boot != self._boot_of(node)
            return reply
        await session.fill(reply, self.definitions, time.monotonic())
        await self.results.attach(reply.orders)
        if reply.orders:
            reply.secrets = await self.secrets.reveal(reply.orders)
        await self.checkpoints.complete(reply.orders)
        return reply

    def _drains(self, node: int) -> bool:
        """Goes by what the planner goes by: an answer that brings orders never tells the node to give them back."""
        known = self.fleet.nodes.get(node)
        return known is not None and known.drain

    def _boot_of(self, node: int) -> str | None:
        known = self.fleet.nodes.get(node)
        return known.boot if known else None

    async def _welcome_or_forget(self, session: Session) -> bool:
        """A boot that could not be welcomed, because the database is away, is new again when it comes back."""
        try:
            return await self._welcome(session)
        except Unavailable:
            if self.sessions.by_node.get(session.node) is session:
                self.sessions.close(session.node)
            raise

    async def _welcome(self, session: Session) -> bool:
        """First contact of a boot with this server: is it the one that is registered and alive?"""
        await self.fleet.refresh()
        node = self.fleet.nodes.get(session.node)
        if node is None:
            self.sessions.close(session.node)
            raise NotFound(f"there is no node {session.node}", hint="register first: POST /v1/nodes")
        if node.boot != session.boot or node.state == 1:
            self.sessions.close(session.node)
            return False
        await self.load_orders(session.node)
        async with self.database.hot() as connection:
            for row in await connection.fetch(_CANCELLED, session.node):
                session.cancel((row["id"], row["attempt"]))
        return True

    def _ahead(self, said: Exchange) -> int:
        """How far the node's clock is ahead of the database's, in milliseconds; 0 where that is not known."""
        if not said.now_ms:
            return 0
        try:
            return max(-FARTHEST_MS, min(said.now_ms - self.desk.clock.now_us() // 1000, FARTHEST_MS))
        except Unavailable:
            return 0

    async def _beat(self, session: Session, said: Exchange, clock_ms: int, reply: Orders) -> bool:
        """Commit the heartbeat; reconcile now and then. False: this boot is lost."""
        trouble = said.trouble[:LONGEST_TROUBLE].replace("\0", "")
        try:
            drain = await self._stored(session, trouble, clock_ms)
        except Unavailable:
            self._hold(session, reply)
            return True
        if drain is None:
            self.sessions.close(session.node)
            reply.lost = True
            return False
        reply.renewed = True
        known = self.fleet.nodes.get(session.node)
        if known is None or (known.drain, known.trouble) != (drain, trouble):
            await self.fleet.refresh()
        if said.draining and not said.held:
            await self._leave(session)
        elif said.held is not None and time.monotonic() - session.last_reconciled > RECONCILE_S:
            session.last_reconciled = time.monotonic()
            await self._reconcile(session, {(ref[0], ref[1]) for ref in said.held})
        return True

    async def _stored(self, session: Session, trouble: str, clock_ms: int) -> bool | None:
        """A database that does not answer is away too: the agent is told to hold on, if it may, before it gives the heartbeat up."""
        while True:
            try:
                async with asyncio.timeout(self.fence_s / 4):  # the agent waits for half of it
                    return await self.heartbeats.beat(session.node, session.boot, trouble, clock_ms)
            except TimeoutError:
                if self._may_hold(session):
                    raise Unavailable("the database takes long to store a heartbeat") from None

    def _hold(self, session: Session, reply: Orders) -> bool:
        """Tell the node to hold on, if it may."""
        reply.hold = self._may_hold(session)
        if reply.hold:
            self.held(session.node)
        return reply.hold

    def _may_hold(self, session: Session) -> bool:
        """While the database is away nobody can declare the node lost: we are the only server, or we are its reaper."""
        boot, last = self.heartbeats.committed.get(session.node, ("", 0.0))
        recent = boot == session.boot and time.monotonic() - last < self.hold_s
        return recent and (self.alone or self.leader.leads("reaper"))

    async def _leave(self, session: Session) -> None:
        async with self.database.hot() as connection:
            await connection.execute(_LEAVE, session.node, session.boot)
        await self.fleet.refresh()

    async def _reconcile(self, session: Session, held: set[Ref]) -> None:
        """Compare what the agent holds with what the database says it holds."""
        async with self.database.hot() as connection:
            rows = await connection.fetch(_HELD, session.node)
        known = {(row["id"], row["attempt"]): row for row in rows}
        if any(ref not in held and row["state"] == State.LEASED for ref, row in known.items()):
            await self.load_orders(session.node)
        if ended := [ref[0] for ref, row in known.items() if ref not in held and row["state"] != State.LEASED]:
            await self._ask_again(session, ended)
        for ref in held - known.keys():
            session.cancel(ref)  # nobody waits for it any more
        for ref, row in known.items():
            if row["cancel_at"] is not None and ref in held:
                session.cancel(ref)
        for ref in session.cancels.keys() - held:
            del session.cancels[ref]
        await self.load_controls(session)

    async def _ask_again(self, session: Session, tasks: list[int]) -> None:
        """Attempts that began, that the node does not hold and whose end is not here: this database has lost what it was told (a failover
        to a replica that was behind). They are ordered again, and the node, which knows them, tells their end once more."""
        async with self.database.hot() as connection:
            rows = await connection.fetch(_BEGUN, session.node, tasks)
        session.offer(_order(row) for row in rows)

    async def load_orders(self, node: int) -> None:
        """Fill a session from the leased rows: after a restart, a move between servers, or a plan made elsewhere."""
        session = self.sessions.by_node.get(node)
        if session is None:
            return
        async with self.database.hot() as connection:
            rows = await connection.fetch(_ORDERS, node)
            controls = await connection.fetch(_CONTROLS, node)
        if rows and self._drains(node):
            await self.fleet.refresh()  # who planned this may have heard first that it takes tasks again
        session.control([_control(row) for row in controls])
        session.offer(_order(row) for row in rows)

    async def load_controls(self, session: Session) -> None:
        """What the node has yet to do to attempts it holds."""
        async with self.database.hot() as connection:
            rows = await connection.fetch(_CONTROLS, session.node)
        session.control([_control(row) for row in rows])

    def _steer(self, nodes: list[int]) -> None:
        for node in nodes:
            if (session := self.sessions.by_node.get(node)) is not None:
                telemetry.background(self.load_controls(session))


def _control(row: Any) -> Control:
    return Control(row["number"], row["task"], row["attempt"], row["word"], row["argument"])


def _order(row: Any) -> Order:
    return Order(row["id"], row["attempt"], row["definition"], row["input"], row["name"])


def _differ(machine: str, other: str) -> bool:
    """Agents of before say none."""
    return machine != other and "" not in (machine, other)
