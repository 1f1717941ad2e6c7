"""One session for each node that talks to this server: what it must still be told, and who waits to hear it.

Orders are the leased rows in the database; a session is a cache of those its node has not acknowledged. Each is repeated until the
node says it received that (id, attempt), so it does not matter which server planned it or died in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from headway.control.definitions import Definitions
from headway.control.outstanding import Outstanding
from headway.wire.exchange import Cancel, Control, Exchange, Order, Orders, Ref

REPEAT_S = 2.0  # an order or cancel that was not acknowledged is sent again after this long
BATCH = 2_000
FRESH_S = 3.0


@dataclass
class Session:
    """What one boot of one node has yet to hear."""

    node: int
    boot: str
    orders: Outstanding = field(default_factory=Outstanding)
    cancels: dict[Ref, float] = field(default_factory=dict)  # when last sent
    controls: dict[int, Control] = field(default_factory=dict)  # by number, lowest first
    told: dict[int, float] = field(default_factory=dict)  # when each control was last sent
    definitions: set[int] = field(default_factory=set)  # those this boot has
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    talks: int = 0  # exchanges that are not answered yet
    last_seen: float = 0.0
    last_reconciled: float = 0.0

    def offer(self, orders: Iterable[Order]) -> None:
        self.orders.add(orders)
        self.wake.set()

    def cancel(self, ref: Ref) -> None:
        self.cancels.setdefault(ref, 0.0)
        self.wake.set()

    def control(self, controls: list[Control]) -> None:
        """Everything the node has not answered, absolutely."""
        self.controls = {control.number: control for control in controls}
        self.told = {number: sent for number, sent in self.told.items() if number in self.controls}
        if controls:
            self.wake.set()

    def _due_controls(self, now: float) -> list[Control]:
        return [c for number, c in self.controls.items() if self.told.get(number, -REPEAT_S) <= now - REPEAT_S]

    def acknowledge(self, exchange: Exchange) -> None:
        """Forget what the node has: received orders, and cancels of attempts it no longer holds."""
        if exchange.received:
            self.orders.acknowledge(exchange.received)
        if self.cancels:
            for finished in exchange.finished:
                self.cancels.pop((finished.id, finished.attempt), None)
        for notice in exchange.notices:
            self.controls.pop(notice.number, None)
            self.told.pop(notice.number, None)
        self.definitions.difference_update(exchange.unknown_definitions)

    @contextlib.contextmanager
    def talking(self) -> Iterator[None]:
        """While its node waits for an answer it is here, whatever keeps us from giving that."""
        self.talks += 1
        try:
            yield
        finally:
            self.talks -= 1
            self.last_seen = time.monotonic()

    @property
    def owes(self) -> bool:
        """Whether something was said that the node has not acknowledged."""
        return bool(self.orders or self.cancels or self.controls)

    def due(self, now: float) -> bool:
        if self.orders.due(now - REPEAT_S) or any(sent <= now - REPEAT_S for sent in self.cancels.values()):
            return True
        return bool(self.controls and self._due_controls(now))

    async def fill(self, reply: Orders, definitions: Definitions, now: float) -> None:
        """Put what the node must hear into the reply."""
        reply.orders = self.orders.take(BATCH, now, now - REPEAT_S)
        new = {order.definition for order in reply.orders} - self.definitions
        if new:
            known = await definitions.load(new)
            reply.definitions = {i: interned.definition for i, interned in known.items()}
            self.definitions |= known.keys()
        for ref, sent in self.cancels.items():
            if sent <= now - REPEAT_S:
                reply.cancels.append(Cancel(*ref))
                self.cancels[ref] = now
        if self.controls:
            reply.controls = self._due_controls(now)
            self.told.update((control.number, now) for control in reply.controls)


@dataclass
class Sessions:
    """All sessions of this server."""

    definitions: Definitions
    by_node: dict[int, Session] = field(default_factory=dict)
    stopping: bool = False
    look_up: Callable[[int], None] = lambda _node: None  # ask the database what a node is to run

    def stop(self) -> None:
        """Answer every waiting poll: the agents go to another server."""
        self.stopping = True
        for session in self.by_node.values():
            session.wake.set()

    def open(self, node: int, boot: str) -> tuple[Session, bool]:
        """The session of this boot, and whether it is new here. One that was away has heard of others what this one does not know."""
        session = self.by_node.get(node)
        if session is not None and session.boot == boot and self.is_here(node):
            return session, False
        if session is not None:
            session.wake.set()
        session = self.by_node[node] = Session(node, boot)
        return session, True

    def close(self, node: int) -> None:
        session = self.by_node.pop(node, None)
        if session is not None:
            session.wake.set()

    def is_here(self, node: int) -> bool:
        """Whether the node is talking to this server now."""
        session = self.by_node.get(node)
        return session is not None and (session.talks > 0 or time.monotonic() - session.last_seen < FRESH_S)

    def offer(self, orders: dict[int, list[Order]], planned_for: dict[int, Session]) -> list[int]:
        """Hand planned orders to the sessions here; returns the nodes that talk to other servers.

        `planned_for` are the sessions from before the plan was written. One that was replaced meanwhile is another boot: its
        registration may have taken these very attempts back, so it must not run them. What is still meant for it is looked up.
        A node that went to another server is told there and acknowledges there: here nobody would forget what it was told.
        """
        elsewhere = []
        for node, items in orders.items():
            session = self.by_node.get(node)
            if not self.is_here(node):
                self.close(node)
                elsewhere.append(node)
            elif session is not None and session is planned_for.get(node):
                session.offer(items)
            else:
                self.look_up(node)
        return elsewhere

    def cancel(self, attempts: list[tuple[int, int, int]]) -> None:
        for node, task, attempt in attempts:
            session = self.by_node.get(node)
            if session is not None:
                session.cancel((task, attempt))

    async def wait(self, session: Session, seconds: float) -> None:
        """Until there is something to say, or the time is over, or the session was replaced."""
        deadline = time.monotonic() + seconds
        while not self.stopping and self.by_node.get(session.node) is session and not session.due(time.monotonic()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            session.wake.clear()
            try:
                async with asyncio.timeout(min(left, REPEAT_S) if session.owes else left):
                    await session.wake.wait()
            except TimeoutError:
                pass
