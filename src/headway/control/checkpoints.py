"""Checkpoints: what a task saved, kept so that another machine goes on from there (H8).

A task has its last two good ones, of each kind: folders, which agents upload, and values, which functions save by a call. All
writes are fenced by the attempt. One whose content is damaged is passed over for the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.errors import Conflict, Corrupt, NotFound, TooLarge
from headway.logs import log
from headway.store import blobs
from headway.store.database import Connection, Database
from headway.store.queries import query
from headway.wire.exchange import Order, Resume, Staged

FOLDER, VALUE = 0, 1
KEPT = 2
FORGOTTEN = 1000  # in one go
_HOLDER = query("checkpoint.holder")
_RUNNING = query("checkpoint.running")
_NEWEST = query("checkpoint.newest")
_ADD = query("checkpoint.add")
_DROP_OLDER = query("checkpoint.drop_older")
_DROP_ONE = query("checkpoint.drop_one")
_GOOD = query("checkpoint.good")
_FORGET = query("checkpoint.forget")
_STAGE = query("checkpoint.stage")
_NEXT_STAGES = query("checkpoint.next_stages")


@dataclass(frozen=True)
class Writer:
    """The attempt that saves, and the node that says so; no node when it speaks for itself."""

    task: int
    attempt: int
    node: int | None = None


@dataclass
class Checkpoints:
    database: Database
    limit: int

    async def announce(self, writer: Writer, digest: bytes, size: int) -> bool:
        """A folder is to be saved. True: it is. False: its chunks must be sent first, and then it is announced again."""
        self._check(size)

        async def work(connection: Connection) -> bool:
            tenant = await _tenant(connection, writer)
            if not await blobs.begin(connection, tenant, digest, size):
                if await blobs.missing(connection, tenant, digest, size):
                    return False
                await blobs.complete(connection, tenant, digest)
            await _keep(connection, writer, tenant, FOLDER, digest)
            return True

        try:
            return await self.database.transact(work)
        except Corrupt:
            async with self.database.cold() as connection:  # not with the failed transaction: what was sent is to be sent anew
                await blobs.discard(connection, await _tenant(connection, writer), digest)
            raise

    async def put_chunk(self, writer: Writer, digest: bytes, size: int, number: int, data: bytes) -> None:
        self._check(size)
        async with self.database.cold() as connection:
            tenant = await _tenant(connection, writer)
            await blobs.put_chunk(connection, tenant, digest, size, number, data)

    async def chunk(self, writer: Writer, digest: bytes, number: int) -> bytes:
        """A piece of one of the task's own checkpoints."""
        async with self.database.cold() as connection:
            tenant = await _tenant(connection, writer)
            rows = await connection.fetch(_GOOD, [writer.task], FOLDER)
            if not any(row["hash"] == digest for row in rows):
                raise NotFound(f"task {writer.task} has no such checkpoint")
            return await blobs.chunk(connection, tenant, digest, number)

    async def reject(self, writer: Writer, digest: bytes) -> None:
        """An agent found a folder damaged. If it is damaged here, and not on the way, it is forgotten."""
        async with self.database.cold() as connection:
            tenant = await _tenant(connection, writer)
            try:
                async for _ in blobs.pieces(connection, tenant, digest):
                    pass
            except Corrupt as error:
                await _forget_damaged(connection, writer.task, FOLDER, digest, error)

    async def save_value(self, writer: Writer, content: bytes) -> None:
        """Durable when it returns."""
        self._check(len(content))

        async def work(connection: Connection) -> None:
            tenant = await _tenant(connection, writer)
            await _keep(connection, writer, tenant, VALUE, await blobs.put(connection, tenant, content))

        await self.database.transact(work)

    async def last_value(self, task: int) -> bytes | None:
        """The newest value that is not damaged."""
        async with self.database.cold() as connection:
            for row in await connection.fetch(_GOOD, [task], VALUE):
                try:
                    return await blobs.read(connection, row["tenant"], row["hash"])
                except Corrupt as error:
                    await _forget_damaged(connection, task, VALUE, row["hash"], error)
        return None

    async def complete(self, orders: list[Order]) -> None:
        """Tell those orders that are not the first of their task where it goes on."""
        again = {order.id: order for order in orders if order.attempt > 1 and order.resume is None}
        if not again:
            return
        async with self.database.hot() as connection:
            stages = await connection.fetch(_NEXT_STAGES, list(again))
            folders = await connection.fetch(_GOOD, list(again), FOLDER)
        for row in stages:
            again[row["task"]].resume = Resume(row["next"])
        for row in folders:
            order = again[row["task"]]
            order.resume = order.resume or Resume()
            order.resume.checkpoints.append((row["hash"], row["size"]))

    def _check(self, size: int) -> None:
        if not 0 <= size <= self.limit:
            raise TooLarge(f"the checkpoint has {size} bytes", hint=f"at most {self.limit} (max_checkpoint)")


async def keep_stages(connection: Connection, staged: list[tuple[int, Staged]]) -> None:
    """Stages that ended well, in the transaction of the report; a repeated report changes nothing."""
    rows = sorted((s.id, s.attempt, node, s.number) for node, s in staged)
    await connection.execute(_STAGE, *(list(column) for column in zip(*rows, strict=True)))


async def forget(connection: Connection) -> None:
    """Remove some of the checkpoints of tasks that have ended."""
    await _release(connection, await connection.fetch(_FORGET, FORGOTTEN))


async def _tenant(connection: Connection, writer: Writer) -> int:
    if writer.node is None:
        tenant = await connection.fetchval(_RUNNING, writer.task, writer.attempt)
    else:
        tenant = await connection.fetchval(_HOLDER, writer.task, writer.attempt, writer.node)
    if tenant is None:
        raise Conflict(f"attempt {writer.attempt} of task {writer.task} has ended: it saves nothing more")
    return int(tenant)


async def _keep(connection: Connection, writer: Writer, tenant: int, kind: int, digest: bytes) -> None:
    """The new one is the last, and of the others only the one before it stays."""
    newest = await connection.fetchrow(_NEWEST, writer.task, kind)
    if newest is not None and newest["hash"] == digest:
        return
    sequence = newest["sequence"] + 1 if newest is not None else 1
    await connection.execute(_ADD, writer.task, kind, sequence, writer.attempt, tenant, digest)
    await blobs.hold(connection, tenant, digest, _holder(writer.task, kind, sequence))
    await _release(connection, await connection.fetch(_DROP_OLDER, writer.task, kind, sequence - KEPT))


async def _forget_damaged(connection: Connection, task: int, kind: int, digest: bytes, error: Corrupt) -> None:
    log("checkpoint.damaged", level="error", task=task, hash=digest.hex(), error=str(error))
    await _release(connection, await connection.fetch(_DROP_ONE, task, kind, digest))


async def _release(connection: Connection, rows: list[Any]) -> None:
    if rows:
        await blobs.release(connection, [_holder(row["task"], row["kind"], row["sequence"]) for row in rows])
        await blobs.remove(connection, [(row["tenant"], row["hash"]) for row in rows])


def _holder(task: int, kind: int, sequence: int) -> str:
    return f"checkpoint/{task}/{kind}/{sequence}"
