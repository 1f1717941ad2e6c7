"""Databases for tests: one real PostgreSQL for each test process, a migrated template, a fresh clone for each test."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from headway.embedded.postgres import Postgres
from headway.store.migrate import migrate
from tests.support import lifecycle_trigger

T = TypeVar("T")

# The same server as users get; only what a power cut would cost is given up, since no test survives one anyway.
FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
}


class Databases:
    """Makes and drops the databases of one test process."""

    def __init__(self, folder: Path) -> None:
        self.postgres = Postgres(folder, settings=FAST)
        self._numbers = itertools.count(1)
        self._template: str | None = None

    def start(self) -> None:
        self.postgres.start()

    def stop(self) -> None:
        self.postgres.stop()

    def dsn(self, name: str) -> str:
        return self.postgres.dsn.replace("/postgres?", f"/{name}?")

    @property
    def template(self) -> str:
        """The name of the migrated database that others are cloned from."""
        if self._template is None:
            self._admin("create database template_headway")
            run(self._fill(self.dsn("template_headway")))
            self._template = "template_headway"
        return self._template

    def empty(self) -> str:
        """The DSN of a new database without any of our tables."""
        name = f"test_{next(self._numbers)}"
        self._admin(f"create database {name}")
        return self.dsn(name)

    def clone(self) -> str:
        """The DSN of a new database with our tables and the lifecycle's trigger."""
        name = f"test_{next(self._numbers)}"
        # 17 ms; with `strategy wal_log` it is 42 (median of 15).
        self._admin(f"create database {name} template {self.template} strategy file_copy")
        return self.dsn(name)

    def drop(self, dsn: str) -> None:
        name = dsn.split("@/", 1)[1].split("?", 1)[0]
        self._admin(f"drop database if exists {name} with (force)")

    async def _fill(self, dsn: str) -> None:
        await migrate(dsn)
        await _execute(dsn, lifecycle_trigger.sql())

    def _admin(self, statement: str) -> None:
        run(_execute(self.postgres.dsn, statement))


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in a thread of its own: the test's event loop is not touched."""
    result: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(asyncio.run(coroutine))
        except BaseException as error:  # handed on to the caller
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
