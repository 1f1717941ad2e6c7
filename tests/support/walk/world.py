"""The world of a walk: servers, nodes, tenants, what was acknowledged, and one seeded source of all chances.

Whatever is asked of a server goes through `World.ask`: a server that dies in the middle leaves its callers with `Gone`, and nobody knows
whether what they asked for was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import asyncpg

from headway import logs
from headway.config import Settings
from headway.control.core import Core
from headway.errors import HeadwayError, Unavailable
from tests.support.engine import cut_off
from tests.support.ordering import tenant

FENCE_S = 1.5
LOST_S = 2.5
SETTINGS: dict[str, Any] = {"lost_s": LOST_S, "fence_s": FENCE_S, "hold_s": 2.0, "duty_lease_s": 1.0, "pool_size": 8}
# Loops and errands that fail for another reason than a database that is away are defects, though the server goes on.
DEFECTS = ("loop.failed", "background.failed", "duty.failed", "report.refused", "schedule.stopped")
EXPECTED = ("Unavailable", "StaleEpoch")
T = TypeVar("T")


class Gone(HeadwayError):
    """The server died before it answered."""

    code = "gone"


class Violation(AssertionError):
    """Something that must never be."""


class World:
    def __init__(self, seed: int, dsn: str, connection: asyncpg.Connection) -> None:
        self.seed, self.dsn = seed, dsn
        self.chance = random.Random(seed)
        self.connection, self._reading = connection, asyncio.Lock()
        self.cores: list[Core] = []
        self.tenants: list[int] = []
        self.known: list[int] = []  # every task that was acknowledged
        self.trees: list[int] = []
        self.keys: dict[tuple[int, str], tuple[str, int]] = {}  # tenant and idempotency key -> what was asked for, the task
        self.revived: dict[int, int] = {}  # task -> how often somebody tried to send it again
        self.purged: set[int] = set()  # dead letters that somebody wanted to be rid of
        self.defects: list[str] = []
        self._asked: dict[Core, set[asyncio.Future[Any]]] = {}
        self._doors: dict[Core, asyncio.Server] = {}
        self._numbers = 0

    def core(self) -> Core:
        return self.chance.choice(self.cores)

    async def ask(self, core: Core, question: Coroutine[Any, Any, T]) -> T:
        """What a server answers; Gone if it dies before that."""
        if core not in self.cores:
            question.close()
            raise Gone("the server was gone")
        asked = asyncio.ensure_future(question)
        self._asked.setdefault(core, set()).add(asked)
        try:
            await asyncio.wait([asked])
        finally:
            self._asked[core].discard(asked)
        if asked.cancelled():
            raise Gone("the server died before it answered")
        return asked.result()

    async def start_server(self) -> None:
        """One more, behind a door of its own: a server that can be knocked at is alive to the others."""
        door = await asyncio.start_server(_close, "127.0.0.1", 0)
        while True:
            self._numbers += 1
            core = Core(Settings(database=self.dsn, data_dir="unused", **SETTINGS), self.dsn, f"server-{self._numbers}")
            core.url = f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}"
            try:
                await core.start()
            except Unavailable:  # its connections were cut before it was there
                await core.database.close()
                continue
            self.cores.append(core)
            self._doors[core] = door
            return

    async def kill_server(self, core: Core) -> None:
        """From one moment to the next: transactions do not end, and whoever waits for an answer gets none."""
        self.cores.remove(core)
        self._doors.pop(core).close()
        core.database._hot.terminate()
        core.database._cold.terminate()
        for asked in list(self._asked.get(core, ())):
            asked.cancel()
        await cut_off(core)

    async def rows(self, statement: str, *values: Any) -> list[Any]:
        """What the database says, on a connection that no fault cuts."""
        async with self._reading:
            found: list[Any] = await self.connection.fetch(statement, *values)
        return found

    async def close(self) -> None:
        for core in list(self.cores):
            self._doors[core].close()
            await core.stop()
        await self.connection.close()


async def _close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@contextlib.asynccontextmanager
async def world(dsn: str, seed: int) -> AsyncIterator[World]:
    """Two servers, and tenants with and without limits; what servers log as their own failures is kept."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway", "application_name": "the walk"})
    made = World(seed, dsn, connection)
    write = logs._write

    def note(text: str) -> None:
        write(text)
        if any(f"event={defect}" in text for defect in DEFECTS) and not any(word in text for word in EXPECTED):
            made.defects.append(text)

    logs._write = note
    try:
        for _ in range(2):
            await made.start_server()
        limits: list[dict[str, Any]] = [{"max_running": 2}, {"max_waiting": 40, "rate_per_hour": 36_000.0, "burst": 60}, {}]
        made.tenants = [1, *[await tenant(made.cores[0], f"tenant-{n}", **said) for n, said in enumerate(limits)]]
        await made.cores[1].tenants.refresh()
        yield made
    finally:
        await made.close()
        logs._write = write
