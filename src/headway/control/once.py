"""Effects that happen once though the task runs again (H10).

A claim is a row under the tenant's key. The first attempt that asks gets it; when it says `done`, everybody after it is told so, with
the value it left. An attempt that died in between leaves a claim that nobody knows the end of: the next attempt is told that, and
decides. Every change is fenced by the attempt: one that is not the task's running attempt any more changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.domain.checks import check_key
from headway.errors import Conflict, InvalidInput
from headway.store.database import Connection, Database
from headway.store.queries import query

LARGEST = 64 * 1024
_RUNNING = query("once.running")
_CLAIM = query("once.claim")
_READ = query("once.read")
_TAKE_OVER = query("once.take_over")
_DONE = query("once.done")
_RELEASE = query("once.release")


@dataclass
class Claimed:
    """yours: do it now. done: it has happened, with this value. uncertain: an earlier attempt began it, nobody knows how it ended.
    taken: another task has it and has not said that it is done."""

    state: str
    value: bytes | None = None
    task: int = 0
    attempt: int = 0


@dataclass
class Once:
    database: Database

    async def claim(self, task: int, attempt: int, key: str, *, again: bool) -> Claimed:
        """Ask for the effect. `again`: take over what an earlier attempt of this task left uncertain."""
        check_key(key)

        async def work(connection: Connection) -> Claimed:
            tenant = await _tenant(connection, task, attempt)
            if await connection.fetchval(_CLAIM, tenant, key, task, attempt) is not None:
                return Claimed("yours", None, task, attempt)
            row = await connection.fetchrow(_READ, tenant, key)
            if row is None:  # released between the two statements
                raise Conflict("the claim was released just now", hint="ask again")
            holder = (row["task"], row["attempt"])
            if row["done_at"] is not None:
                return Claimed("done", row["value"], *holder)
            if holder == (task, attempt):
                return Claimed("yours", None, *holder)
            if row["task"] != task:
                return Claimed("taken", None, *holder)
            if again and await connection.fetchval(_TAKE_OVER, tenant, key, task, attempt) is not None:
                return Claimed("yours", None, task, attempt)
            return Claimed("uncertain", None, *holder)

        return await self.database.transact(work)

    async def done(self, task: int, attempt: int, key: str, value: bytes | None) -> None:
        """The effect has happened. Said again, it changes nothing."""
        if value is not None and len(value) > LARGEST:
            raise InvalidInput(f"value: {len(value)} bytes are too many", field="value", hint=f"at most {LARGEST}")

        async def work(connection: Connection) -> None:
            tenant = await _tenant(connection, task, attempt)
            if await connection.fetchval(_DONE, tenant, key, task, attempt, value) is None:
                row = await connection.fetchrow(_READ, tenant, key)
                if row is None or (row["task"], row["attempt"]) != (task, attempt):
                    raise Conflict(f"{key[:60]!r} is not claimed by this attempt")

        await self.database.transact(work)

    async def release(self, task: int, attempt: int, key: str) -> None:
        """The effect has not happened: the claim is given up."""

        async def work(connection: Connection) -> None:
            tenant = await _tenant(connection, task, attempt)
            await connection.fetchval(_RELEASE, tenant, key, task, attempt)

        await self.database.transact(work)


async def _tenant(connection: Connection, task: int, attempt: int) -> int:
    tenant: int | None = await connection.fetchval(_RUNNING, task, attempt)
    if tenant is None:
        raise Conflict(f"attempt {attempt} of task {task} does not run any more", hint="a later attempt has taken over; end now")
    return tenant
