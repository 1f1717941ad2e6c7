"""Connections: three small pools, settings that pin hot plans, transactions that retry what PostgreSQL asks to retry.

About ten connections for each server. Hot connections forbid every plan but index scans and nested loops (a plan that flips under
load is an outage); people's questions have a pool of their own, so that slow ones keep no duty from its work. Every connection has
statement and idle-in-transaction timeouts. A failover (read-only server, administrator shutdown, lost connection) empties the pools.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

import asyncpg

from headway.errors import Unavailable
from headway.store import arrays
from headway.store.connecting import Reach
from headway.store.pool import Connection as Connection
from headway.store.pool import Pool
from headway.store.shares import Share, Shares
from headway.store.unreached import reason

Result = TypeVar("Result")

_HOT_PLANS = {
    "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
}  # fmt: skip
_AS_HOT = "; ".join(f"set local {name} = {value}" for name, value in _HOT_PLANS.items())

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
FAILING = (asyncpg.PostgresSystemError, asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)  # its files are gone, or cannot be read
FULL_RETRY_S = 5.0
REFUSED_S = 60.0
LOAN_S = 5.0  # how long to wait for a connection while all are lent


class Database:
    """The pools of one server process."""

    def __init__(self, dsn: str, *, pool_size: int = 12, statement_timeout_s: float = 30.0) -> None:
        self.dsn = dsn
        self.reach = Reach(dsn)
        self.pool_size = pool_size
        self.statement_timeout_s = statement_timeout_s
        hot = max(pool_size // 2, 3)  # of twelve: two lanes of admission, two of reports, the planner, and one for the rest
        cold = max(pool_size // 4, 2)
        self._hot = self._pool(hot, "headway hot", _HOT_PLANS, arrays.DOMAINS)
        self._cold = self._pool(cold, "headway", {}, ())
        reads = max(pool_size - hot - cold, 1)
        self._reads = self._pool(reads, "headway reads", {}, ())
        self._shares = Shares(reads)
        self._refused: tuple[float, str] | None = None  # when it last had no room (monotonic), and its words

    async def open(self) -> None:
        """One connection of each kind, so that a database that cannot be reached, or gives too few, is noticed at the start."""
        for loan in (self.hot(), self.cold(), self.reads()):
            async with loan:
                pass

    def _pool(self, size: int, name: str, extra: dict[str, str], lists: Sequence[str]) -> Pool:
        """`lists`: domains whose values are sent as bytes (store/arrays.py)."""
        settings = {
            "statement_timeout": str(int(self.statement_timeout_s * 1000)),
            "idle_in_transaction_session_timeout": "10000",
            "lock_timeout": "10000",
            **extra,
        }

        async def connect() -> Connection:
            connection = await self.reach.connect(name, settings=settings, command_timeout=self.statement_timeout_s + 5)
            try:
                for domain in lists:
                    await connection.set_builtin_type_codec(domain, schema="headway", codec_name="bytea", format="binary")
            except BaseException:
                connection.terminate()
                raise
            return connection

        return Pool(connect, size)

    async def close(self) -> None:
        for pool in (self._hot, self._cold, self._reads):
            pool.terminate()

    def hot(self) -> Loan:
        """For what every task passes through."""
        return Loan(self, self._hot)

    def cold(self) -> Loan:
        """For what the server itself wants to know, and whoever asks briefly."""
        return Loan(self, self._cold)

    def reads(self) -> Loan:
        """For people's questions, which may take long: they wait for each other, and keep no duty from its work."""
        return Loan(self, self._reads)

    def searches(self, tenant: int) -> Loan:
        """For questions whose length is the asker's choice: those of one tenant hold a part of `reads`."""
        return Loan(self, self._reads, self._shares.of(tenant))

    @property
    def trouble(self) -> str:
        """Why it has not taken something in the last minute: reading still works then, so nobody who only looks would know."""
        if self._refused is None or time.monotonic() - self._refused[0] > REFUSED_S:
            return ""
        return self._refused[1]

    def refused(self, why: str, error: BaseException) -> str:
        """It has no room, or its disk fails: remembered for who asks how it is."""
        self._refused = (time.monotonic(), f"{why}: {str(error).splitlines()[0]}")
        return self._refused[1]

    def forget(self) -> None:
        """The database went away, or is another one now: every connection is made anew."""
        for pool in (self._hot, self._cold, self._reads):
            pool.expire()

    async def transact(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction on a hot connection; deadlocks and serialisation failures run it again."""
        return await self._tried(self.hot, work)

    async def transact_aside(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """The same, with the same plans, on a cold connection: for what somebody waits for who holds a hot one. With as many of them as
        there are hot ones, each would wait for another that nobody gives back."""

        async def planned(connection: Connection) -> Result:
            await connection.execute(_AS_HOT)
            return await work(connection)

        return await self._tried(self.cold, planned)

    async def _tried(self, loan: Callable[[], Loan], work: Callable[[Connection], Awaitable[Result]]) -> Result:
        for tried in range(_TRIES):
            async with loan() as connection:
                try:
                    async with connection.transaction():
                        return await work(connection)
                except AGAIN:
                    if tried == _TRIES - 1:
                        raise
            await asyncio.sleep(0.005 * 2**tried)
        raise AssertionError("unreachable")


class Loan:
    """`async with` one connection. Errors that say that the database is away become Unavailable."""

    __slots__ = ("_connection", "_database", "_pool", "_share")

    def __init__(self, database: Database, pool: Pool, share: Share | None = None) -> None:
        self._database, self._pool, self._share = database, pool, share
        self._connection: Connection = None

    async def __aenter__(self) -> Connection:
        if self._share is not None:
            await self._share.enter(LOAN_S)
        try:
            self._connection = await self._pool.take(LOAN_S)
        except BaseException as error:
            if self._share is not None:
                self._share.leave()
            if isinstance(error, Exception):
                self._translate(error)
            raise
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._share is not None:
            self._share.leave()
        if error is None:
            self._pool.give(self._connection)
        elif isinstance(error, Exception) and not _is_gone(error):
            self._pool.give(self._connection)
            self._translate(error)
        else:  # cancelled, say: an answer may still be on its way to it
            self._pool.drop(self._connection)
            self._translate(error)

    def _translate(self, error: BaseException) -> None:
        if isinstance(error, asyncpg.TooManyConnectionsError):
            hint = f"raise max_connections or the limit of its role, or lower pool_size ({self._database.pool_size})"
            raise Unavailable(f"the database gives us no more connections: {error}", hint=hint) from error
        if isinstance(error, asyncpg.InsufficientResourcesError):  # the disk is full, say: it goes on when there is room again
            why = self._database.refused("the database cannot take more", error)
            raise Unavailable(why, hint="make room where the database is", retry_after=FULL_RETRY_S) from error
        if isinstance(error, FAILING):
            why = self._database.refused("the database cannot use its files", error)
            raise Unavailable(why, hint="look at its disk, its data folder and its log", retry_after=FULL_RETRY_S) from error
        if _is_gone(error):
            self._database.forget()
            if (task := asyncio.current_task()) is not None and task.cancelling():
                # The error of a rollback took the place of the cancelling: who goes on after it would never end, nor the server that waits.
                raise asyncio.CancelledError from error
            raise Unavailable(f"the database did not answer: {reason(error)}") from error


def is_passing(error: BaseException) -> bool:
    """Whether it is for the database's state, and not for what it was asked: later it may go well."""
    return _is_gone(error) or isinstance(error, (Unavailable, *AGAIN, *FAILING, asyncpg.InsufficientResourcesError))


def _is_gone(error: BaseException) -> bool:
    return isinstance(error, GONE) and not isinstance(error, asyncpg.DataError)  # an InterfaceError by birth, but our own mistake
