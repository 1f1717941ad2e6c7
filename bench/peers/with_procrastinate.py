"""Procrastinate on PostgreSQL: durable (fsync and synchronous_commit on), no results kept, jobs kept as rows.

Jobs are deferred in batches and run as coroutines of one event loop for each core, several at once.
"""

from __future__ import annotations

import asyncio
import logging

import procrastinate
import psycopg
import race

CONCURRENCY = 4  # in each of two processes; 8 and 16 were slower
DEFER = 1000


def app(where: str, *, connections: int) -> procrastinate.App:
    made = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=where, min_size=connections, max_size=connections))

    @made.task(name="noop")
    async def noop(text: str) -> None:
        len(text)

    return made


class OnProcrastinate:
    def __init__(self, where: str) -> None:
        self.where = where
        self.app = app(where, connections=1)

    async def prepare(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.where, autocommit=True)
        await self.connection.execute("drop schema public cascade")
        await self.connection.execute("create schema public")
        await self.app.open_async()
        await self.app.schema_manager.apply_schema_async()

    async def submit(self, inputs: list[str]) -> None:
        for at in range(0, len(inputs), DEFER):
            await self.app.tasks["noop"].batch_defer_async(*({"text": text} for text in inputs[at : at + DEFER]))

    async def all_done(self, count: int) -> bool:
        return await self._count("select count(*) from procrastinate_jobs where status in ('todo', 'doing')") == 0

    async def succeeded(self) -> int:
        return await self._count("select count(*) from procrastinate_jobs where status = 'succeeded'")

    async def close(self) -> None:
        await self.app.close_async()
        await self.connection.close()

    async def _count(self, query: str) -> int:
        row = await (await self.connection.execute(query)).fetchone()
        return int(row[0]) if row else 0


async def serve(where: str) -> None:
    workers = app(where, connections=CONCURRENCY + 2)  # one for each job, one to listen, one to fetch
    async with workers.open_async():
        await workers.run_worker_async(concurrency=CONCURRENCY, delete_jobs="never")


def work(where: str) -> None:
    asyncio.run(serve(where))


if __name__ == "__main__":
    logging.getLogger("procrastinate").setLevel(logging.ERROR)  # it warns that the app stands in the main module: it may
    race.main(OnProcrastinate, work, program=__file__)
