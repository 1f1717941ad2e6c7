"""PgQueuer on PostgreSQL: durable (its tables logged, fsync and synchronous_commit on), no results kept.

It runs each task inside its own event loop, so there is no process border to cross.
Jobs are enqueued and dequeued in batches.
"""

from __future__ import annotations

import asyncio

import asyncpg
import race
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = 1000  # 100 and 500 were slower


class OnPgQueuer:
    def __init__(self, where: str) -> None:
        self.where = where

    async def prepare(self) -> None:
        self.connection = await asyncpg.connect(self.where)
        self.queries = Queries(AsyncpgDriver(self.connection))
        if await self.queries.schema_is_installed():
            await self.queries.uninstall()
        await self.queries.install()
        unlogged = "select count(*) from pg_class where relname like 'pgqueuer%' and relpersistence = 'u'"
        if await self.connection.fetchval(unlogged):
            raise SystemExit("PgQueuer has unlogged tables: not durable, no figure")

    async def submit(self, inputs: list[str]) -> None:
        for at in range(0, len(inputs), BATCH):
            part = [text.encode() for text in inputs[at : at + BATCH]]
            await self.queries.enqueue(["noop"] * len(part), part, [0] * len(part))

    async def all_done(self, count: int) -> bool:
        # A finish deletes the job and logs it in one statement, so an empty queue is enough; counting the log over
        # and over would steal its time.
        return not await self.connection.fetchval("select exists (select from pgqueuer)")

    async def succeeded(self) -> int:
        return int(await self.connection.fetchval("select count(*) from pgqueuer_log where status = 'successful'"))

    async def close(self) -> None:
        await self.connection.close()


async def serve(where: str) -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(where)))

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        len(job.payload or b"")

    await queue.run(batch_size=BATCH)


def work(where: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(where))


if __name__ == "__main__":
    race.main(OnPgQueuer, work, program=__file__)
