"""Celery on Redis: not durable (Redis answers before anything reaches the disk), results kept.

Two `solo` workers, one for each core, were the quickest of solo, prefork and threads on two cores: no pipe between a
parent and its pool. Messages are acknowledged early (Celery's default), the prefetch is deep and gossip is off, all of
which favour Celery.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import race
import redis.asyncio
from celery import Celery

QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
BROKER_DB, RESULT_DB = 0, 1  # apart, so that DBSIZE of the second is the number of finished tasks


def app(where: str) -> Celery:
    made = Celery("peer", broker=f"{where}/{BROKER_DB}", backend=f"{where}/{RESULT_DB}")
    made.conf.update(
        worker_prefetch_multiplier=64,
        task_serializer="json",
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )
    made.task(noop, name="noop")
    return made


def noop(text: str) -> int:
    return len(text)


class OnCelery:
    def __init__(self, where: str) -> None:
        self.app = app(where)
        port = urlsplit(where).port or 6379
        self.broker = redis.asyncio.Redis(port=port, db=BROKER_DB)
        self.results = redis.asyncio.Redis(port=port, db=RESULT_DB)

    async def prepare(self) -> None:
        await self.broker.flushall()

    async def submit(self, inputs: list[str]) -> None:
        task = self.app.tasks["noop"]
        # One connection for all of them, as Celery advises for bulk.
        with self.app.producer_pool.acquire(block=True) as producer:
            for text in inputs:
                task.apply_async((text,), producer=producer)

    async def all_done(self, count: int) -> bool:
        return int(await self.results.dbsize()) >= count

    async def succeeded(self) -> int:
        succeeded = 0
        async for key in self.results.scan_iter(count=1000):
            succeeded += b'"SUCCESS"' in await self.results.get(key)
        return succeeded

    async def close(self) -> None:
        await self.broker.aclose()
        await self.results.aclose()


def work(where: str) -> None:
    app(where).worker_main(["worker", "-P", "solo", "-l", "ERROR", *QUIET, "-n", f"worker{os.getpid()}@%h"])


if __name__ == "__main__":
    race.main(OnCelery, work, program=__file__)
