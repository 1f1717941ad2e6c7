"""Connections that stay open and are lent, the one that was used last first.

The pool of asyncpg costs 70 µs of Python for each loan (proxy, queue, two timeouts, a reset), a small statement 25. This one knows what
ours need: nothing is reset, since nobody changes a session's settings, and whoever was cancelled or failed in the middle of a statement
leaves a connection that is closed rather than repaired.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from headway.errors import Unavailable

Connection = Any  # asyncpg ships no types
FEWER_S = 5.0  # a database that gave us no more connections is asked again after this


class Pool:
    """At most `size` connections, made when they are needed."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._places = 0  # connections there are, or that are being made
        self._all: set[Connection] = set()
        self._free: list[Connection] = []
        self._old: set[Connection] = set()  # lent, and not to be used again
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._full_until = 0.0  # monotonic

    async def take(self, timeout: float) -> Connection:
        """A connection; Unavailable when all are lent for so long."""
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
            self._leave(connection)
        given: Connection | None = None
        if self._places < self._size and not self._must_do():
            self._places += 1
            given = await self._make_if_given()
        while given is None:
            given = await self._wait(timeout) or await self._make_if_given()
        return given

    def give(self, connection: Connection) -> None:
        """It comes back; one that cannot be used again is closed."""
        if connection in self._old or connection.is_closed() or connection.is_in_transaction():
            self.drop(connection)
        elif (waiter := self._next()) is not None:
            waiter.set_result(connection)
        else:
            self._free.append(connection)

    def drop(self, connection: Connection) -> None:
        connection.terminate()
        self._leave(connection)

    def expire(self) -> None:
        """No connection that is open now is lent again."""
        free, self._free = self._free, []
        self._old = self._all.difference(free)
        for connection in free:
            self.drop(connection)

    def terminate(self) -> None:
        for connection in self._all:
            connection.terminate()

    async def _make_if_given(self) -> Connection | None:
        """None when the database gives us no more and there are others to wait for."""
        try:
            return await self._make()
        except asyncpg.TooManyConnectionsError:
            if not self._must_do():
                raise
            return None

    async def _make(self) -> Connection:
        """Fill a place that is counted already."""
        try:
            connection = await self._connect()
        except BaseException as error:
            if isinstance(error, asyncpg.TooManyConnectionsError):
                self._full_until = time.monotonic() + FEWER_S
            self._vacate()
            raise
        self._all.add(connection)
        return connection

    async def _wait(self, timeout: float) -> Connection | None:
        """What somebody gives back; None: a place, to be filled."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # it came in the moment we gave up
                given = waiter.result()
                self._vacate() if given is None else self.give(given)
            if isinstance(error, TimeoutError):
                raise Unavailable("all connections to the database are busy", retry_after=1.0) from None
            raise

    def _must_do(self) -> bool:
        """Whether those that there are have to do: the database gives us no more for now."""
        return bool(self._all) and time.monotonic() < self._full_until

    def _leave(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._old.discard(connection)
        self._vacate()

    def _vacate(self) -> None:
        """A place is empty: somebody who waits fills it, if the database gives us so many."""
        if not self._must_do() and (waiter := self._next()) is not None:
            waiter.set_result(None)
        else:
            self._places -= 1

    def _next(self) -> asyncio.Future[Connection | None] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None
