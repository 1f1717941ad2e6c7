"""A real server core on a test's own database, and a scripted agent that talks to it like a real one, without HTTP."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headway.config import Settings
from headway.control.admission import Receipt
from headway.control.core import Core
from headway.domain.lifecycle import Outcome
from headway.domain.resources import GIB, Capacity
from headway.wire import PROTOCOL
from headway.wire.exchange import ErrorInfo, Exchange, Finished, Order, Orders, Register, Started


@asynccontextmanager
async def engine(dsn: str, *, holder: str = "test", **settings: Any) -> AsyncIterator[Core]:
    """A started core; stopped, with its duties handed on, at the end.

    A scripted agent beats only when its test speaks for it, and a busy machine takes its time between two lines of a test: its node
    is not lost for that, nor told to hold on because the database took a second, unless the test says after how long.
    """
    core = Core(Settings(database=dsn, data_dir="unused", **{"lost_s": 300.0, "fence_s": 120.0, **settings}), dsn, holder)
    await core.start()
    try:
        yield core
    finally:
        await core.stop()


async def cut_off(core: Core) -> None:
    """As a kill: nothing is handed on, and no transaction ends."""
    await end_loops(core)
    await core.database.close()


async def end_loops(core: Core) -> None:
    """It still answers, and does nothing of its own accord any more."""
    for task in core._tasks:
        task.cancel()
    await asyncio.gather(*core._tasks, return_exceptions=True)


async def submit(core: Core, *specs: dict[str, Any], tenant: int = 1, tree: str | None = None) -> Receipt:
    """Store specs as a client's request would."""
    body = msgspec.json.encode(list(specs))
    drafts, _ = await core.drafts.read(tenant, body, ndjson=False, key=None)
    return await core.admission.submit(tenant, drafts, tree=tree)


def function(**fields: Any) -> dict[str, Any]:
    return {"function": "tests.none:nothing", **fields}


class ScriptedAgent:
    """One boot of one node, driven by the test."""

    _boots = itertools.count(1)

    def __init__(
        self, core: Core, name: str = "node-1", *, cpus: float = 2.0, labels: dict[str, str] | None = None, machine: str = ""
    ) -> None:
        self.core = core
        self.machine = machine
        self.name = name
        self.boot = f"boot-{next(self._boots)}"
        self.capacity = Capacity(round(cpus * 1000), 16 * GIB, 100 * GIB, labels={"sandbox": "yes", **(labels or {})})
        self.id = 0
        self.sequence = 0

    async def join(self) -> ScriptedAgent:
        asked = Register(self.name, self.boot, self.capacity, PROTOCOL, "test", machine=self.machine)
        self.id = (await self.core.exchanges.register(asked)).id
        return self

    async def say(self, **fields: Any) -> Orders:
        self.sequence += 1
        return await self.core.exchanges.exchange(self.id, Exchange(self.boot, self.sequence, **fields))

    async def orders(self, count: int = 1, *, seconds: float = 120.0, known: Sequence[Order] = ()) -> list[Order]:
        """Poll, acknowledging what came, until `count` orders are there. One may come twice, even after its end: those `known` are none."""
        got: dict[tuple[int, int], Order] = {}
        before = {(order.id, order.attempt) for order in known}
        received: list[tuple[int, int]] = []
        async with asyncio.timeout(seconds):
            while len(got) < count:
                reply = await self.say(wait_s=2.0, received=received, heartbeat=True)
                received = [(order.id, order.attempt) for order in reply.orders]
                got |= ((ref, order) for ref, order in zip(received, reply.orders, strict=True) if ref not in before)
        await self.say(received=received)
        return list(got.values())

    async def succeed(self, *orders: Order, result: bytes | None = None) -> Orders:
        return await self.say(finished=[done(order, result=result) for order in orders])

    async def fail(self, order: Order, outcome: Outcome = Outcome.ERROR, message: str = "boom") -> Orders:
        error = msgspec.json.encode(ErrorInfo("ValueError", message)).decode()
        return await self.say(finished=[done(order, outcome=outcome, error=error, exit_code=1)])

    async def start(self, *orders: Order) -> Orders:
        return await self.say(started=[Started(order.id, order.attempt, 1) for order in orders])


def done(order: Order, *, outcome: Outcome = Outcome.SUCCEEDED, **fields: Any) -> Finished:
    return Finished(order.id, order.attempt, outcome, started_ms=1, ended_ms=2, **fields)


async def state_of(core: Core, task: int) -> int | None:
    async with core.database.cold() as connection:
        state: int | None = await connection.fetchval("select state from task_anywhere where id = $1", task)
    return state


async def listening(core: Core, servers: int) -> bool:
    """Whether so many servers hear what the others tell: each says hello once it does."""
    async with core.database.cold() as connection:
        own = "datname = current_database() and application_name = 'headway notify'"
        said = await connection.fetch(f"select query from pg_stat_activity where {own}")
        return len([row for row in said if "pg_notify" in row["query"]]) == servers
