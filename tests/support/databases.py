"""Databases for tests: one real PostgreSQL for each test process, a migrated template, a fresh clone for each test.

With `HEADWAY_TEST_DATABASE` (the address of a superuser) they are made on that server instead, beside those of other
test processes: so the same tests hold for the oldest PostgreSQL that is promised.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

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
        self._outside = os.environ.get("HEADWAY_TEST_DATABASE")
        self._postgres = Postgres(folder, settings=FAST)
        self._numbers = itertools.count(1)
        self._template: str | None = None

    def start(self) -> None:
        if not self._outside:
            self._postgres.start()

    def stop(self) -> None:
        if self._template is not None:
            self._drop(self._template)
        if not self._outside:
            self._postgres.stop()

    def dsn(self, name: str) -> str:
        return urlsplit(self._root)._replace(path=f"/{name}").geturl()

    @property
    def _root(self) -> str:
        return self._outside or self._postgres.dsn

    @property
    def template(self) -> str:
        """The name of the migrated database that others are cloned from."""
        if self._template is None:
            name = self._create("")
            run(self._fill(self.dsn(name)))
            self._template = name
        return self._template

    def empty(self) -> str:
        """The DSN of a new database without any of our tables."""
        return self.dsn(self._create(""))

    def clone(self) -> str:
        """The DSN of a new database with our tables and the lifecycle's trigger."""
        # 17 ms; with `strategy wal_log` it is 42 (median of 15).
        return self.dsn(self._create(f"template {self.template} strategy file_copy"))

    def drop(self, dsn: str) -> None:
        self._drop(urlsplit(dsn).path.removeprefix("/"))

    def _create(self, how: str) -> str:
        name = f"headway_test_{os.getpid()}_{next(self._numbers)}"
        self._admin(f"create database {name} {how}")
        return name

    def _drop(self, name: str) -> None:
        self._admin(f"drop database if exists {name} with (force)")

    async def _fill(self, dsn: str) -> None:
        await migrate(dsn)
        await _execute(dsn, lifecycle_trigger.sql())

    def _admin(self, statement: str) -> None:
        run(_execute(self._root, statement))


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
