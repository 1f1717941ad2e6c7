"""The hot table is swept while tasks go through it, also where autovacuum sleeps (L1)."""

from __future__ import annotations

import asyncio

from headway.control import sweeper
from headway.errors import Unavailable
from tests.support.engine import ScriptedAgent, engine, function, submit
from tests.support.waiting import eventually

_SWEPT = "select vacuum_count from pg_stat_user_tables where schemaname = 'headway' and relname = 'task'"


async def test_the_hot_table_is_swept_after_so_many_tasks_and_goes_on_being_swept(dsn):
    async with engine(dsn) as core:
        core.sweeper.after = 4
        agent = await ScriptedAgent(core).join()

        async def swept() -> int:
            async with core.database.cold() as connection:
                return int(await connection.fetchval(_SWEPT))

        for turn in (1, 2):
            await submit(core, *[function() for _ in range(4)])
            left = 4
            while left:
                orders = await agent.orders()
                await agent.succeed(*orders)
                left -= len(orders)

            async def again(least: int = turn) -> bool:
                return await swept() >= least

            await eventually(again)


async def test_a_sweep_leaves_its_connection_as_it_was(dsn):
    async with engine(dsn) as core:
        async with core.database.cold() as connection:
            before = await connection.fetchval("show statement_timeout")
        await core.sweeper.sweep()
        for _ in range(core.database.pool_size):
            async with core.database.cold() as connection:
                assert await connection.fetchval("show statement_timeout") == before


async def test_a_sweep_that_fails_is_not_the_last_one(dsn, monkeypatch):
    monkeypatch.setattr(sweeper, "RESTS", 0)
    async with engine(dsn) as core:
        tried: list[int] = []
        done = asyncio.Event()

        async def away() -> None:
            tried.append(1)
            if len(tried) == 2:
                done.set()
            raise Unavailable("the database is away")

        monkeypatch.setattr(core.sweeper, "sweep", away)
        core.sweeper.after = 1
        core.bus.ended([1])
        await eventually(lambda: tried)
        core.bus.ended([2])
        async with asyncio.timeout(60):
            await done.wait()
