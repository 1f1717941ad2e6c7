"""Connections: two small pools, settings that pin hot plans, transactions that retry what PostgreSQL asks to retry.

About eight connections for each server. Hot connections forbid every plan but index scans and nested loops (a plan that flips under
load is an outage); reads for people go through the other pool. Every connection has statement and idle-in-transaction timeouts.
A failover (read-only server, administrator shutdown, lost connection) empties the pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from headway.errors import Unavailable

Connection = Any  # asyncpg ships no types
Result = TypeVar("Result")

_HOT_PLANS = {
    "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
}  # fmt: skip

AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
GONE = (
    asyncpg.ReadOnlySQLTransactionError,  # 25006: connected to a server that is now a standby
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
    TimeoutError,
    OSError,
)
_TRIES = 6
FULL_RETRY_S = 5.0


async def _keep(_connection: Connection) -> None:
    """Nothing to reset between uses: we never change a session's settings, and the default costs a round trip each time."""


class Database:
    """The pools of one server process."""

    def __init__(self, dsn: str, *, pool_size: int = 9, statement_timeout_s: float = 30.0) -> None:
        self.dsn = dsn
        self.pool_size = pool_size
        self.statement_timeout_s = statement_timeout_s
        self._hot: Any = None
        self._cold: Any = None

    async def open(self) -> None:
        hot = max(self.pool_size * 2 // 3, 3)  # two lanes of admission, two of reports, the planner, and one for the rest
        self._hot = await self._pool(hot, "headway hot", _HOT_PLANS)
        self._cold = await self._pool(max(self.pool_size - hot, 2), "headway", {})

    async def _pool(self, size: int, name: str, extra: dict[str, str]) -> Any:
        settings = {
            "search_path": "headway",
            "application_name": name,
            "statement_timeout": str(int(self.statement_timeout_s * 1000)),
            "idle_in_transaction_session_timeout": "10000",
            "lock_timeout": "10000",
            "jit": "off",
            "timezone": "UTC",
            **extra,
        }
        return await asyncpg.create_pool(
            self.dsn, min_size=1, max_size=size, server_settings=settings, timeout=5, command_timeout=self.statement_timeout_s + 5,
            max_inactive_connection_lifetime=0, target_session_attrs="read-write",
            reset=_keep,
        )  # fmt: skip

    async def close(self) -> None:
        for pool in (self._hot, self._cold):
            if pool is not None:
                pool.terminate()

    @asynccontextmanager
    async def hot(self) -> AsyncIterator[Connection]:
        async with self._lend(self._hot) as connection:
            yield connection

    @asynccontextmanager
    async def cold(self) -> AsyncIterator[Connection]:
        async with self._lend(self._cold) as connection:
            yield connection

    @asynccontextmanager
    async def _lend(self, pool: Any) -> AsyncIterator[Connection]:
        try:
            async with pool.acquire(timeout=5) as connection:
                yield connection
        except asyncpg.InsufficientResourcesError as error:  # the disk is full, say: it refuses, and goes on when there is room again
            raise Unavailable(
                f"the database cannot take more: {error}", hint="make room where the database is", retry_after=FULL_RETRY_S
            ) from error
        except GONE as error:
            if isinstance(error, asyncpg.DataError):  # an InterfaceError by birth, but our own mistake
                raise
            await self._forget()
            raise Unavailable(f"the database did not answer: {error or type(error).__name__}") from error

    async def _forget(self) -> None:
        for pool in (self._hot, self._cold):
            if pool is not None:
                await pool.expire_connections()

    async def transact(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction on a hot connection; deadlocks and serialisation failures run it again."""
        for tried in range(_TRIES):
            async with self.hot() as connection:
                try:
                    async with connection.transaction():
                        return await work(connection)
                except AGAIN:
                    if tried == _TRIES - 1:
                        raise
            await asyncio.sleep(0.005 * 2**tried)
        raise AssertionError("unreachable")
