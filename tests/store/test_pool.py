"""Loans of connections: who waits gets one, who fails or is cancelled leaves none behind that is half used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from headway.domain.lifecycle import State
from headway.errors import Unavailable
from headway.store.database import Connection, Database
from headway.store.pool import Pool
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    made = Pool(lambda: asyncpg.connect(dsn), size=2)
    yield made
    made.terminate()


async def test_the_connection_that_was_used_last_is_lent_first(pool: Pool) -> None:
    first, second = await pool.take(1), await pool.take(1)
    pool.give(first)
    pool.give(second)
    assert await pool.take(1) is second
    assert await pool.take(1) is first


async def test_who_waits_gets_what_comes_back(pool: Pool) -> None:
    first, _ = await pool.take(1), await pool.take(1)
    waiting = asyncio.create_task(pool.take(30))
    await eventually(lambda: len(pool._waiting) == 1)
    pool.give(first)
    assert await waiting is first


async def test_who_waits_makes_a_new_one_when_one_is_dropped(pool: Pool) -> None:
    first, second = await pool.take(1), await pool.take(1)
    waiting = asyncio.create_task(pool.take(30))
    await eventually(lambda: len(pool._waiting) == 1)
    pool.drop(first)
    third = await waiting
    assert third not in (first, second)
    assert await third.fetchval("select 1") == 1


async def test_all_lent_for_too_long_is_unavailable_and_costs_no_place(pool: Pool) -> None:
    first, second = await pool.take(1), await pool.take(1)
    with pytest.raises(Unavailable, match="busy"):
        await pool.take(0.01)
    pool.give(first)
    pool.give(second)
    assert {await pool.take(1), await pool.take(1)} == {first, second}


async def test_one_that_gave_up_waiting_is_passed_over(pool: Pool) -> None:
    first, _ = await pool.take(1), await pool.take(1)
    gone, waiting = asyncio.create_task(pool.take(30)), asyncio.create_task(pool.take(30))
    await eventually(lambda: len(pool._waiting) == 2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    pool.give(first)
    assert await waiting is first


async def test_what_is_lent_when_all_expire_is_closed_when_it_comes_back(pool: Pool) -> None:
    lent, free = await pool.take(1), await pool.take(1)
    pool.give(free)
    pool.expire()
    assert free.is_closed()
    assert not lent.is_closed()
    pool.give(lent)
    assert lent.is_closed()
    assert {await pool.take(1), await pool.take(1)}.isdisjoint({lent, free})


async def test_a_connection_that_cannot_be_made_leaves_its_place_to_the_next(dsn: str) -> None:
    refuses = True

    async def connect() -> object:
        if refuses:
            raise ConnectionRefusedError
        return await asyncpg.connect(dsn)

    pool = Pool(connect, size=1)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await pool.take(1)
    refuses = False
    await pool.take(1)
    pool.terminate()


async def test_a_cancelled_statement_closes_its_connection(dsn: str) -> None:
    database = Database(dsn)
    await database.open()
    began = asyncio.Event()
    lent = []

    async def slow() -> None:
        async with database.hot() as connection:
            lent.append(connection)
            began.set()
            await connection.fetchval("select pg_sleep(60)")

    running = asyncio.create_task(slow())
    await began.wait()
    other = await asyncpg.connect(dsn)
    question = "select exists (select from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active')"
    await eventually(lambda: other.fetchval(question), what="the statement runs")
    await other.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert lent[0].is_closed()
    async with database.hot() as connection:
        assert await connection.fetchval("select 1") == 1
    await database.close()


async def test_a_refused_statement_keeps_its_connection(dsn: str) -> None:
    database = Database(dsn)
    await database.open()
    with pytest.raises(asyncpg.PostgresError):
        async with database.hot() as connection:
            await connection.execute("select nothing_of_the_kind")
    async with database.hot() as again:
        assert again is connection
    await database.close()


async def test_a_backend_that_is_ended_is_unavailable_and_all_are_made_anew(dsn: str) -> None:
    database = Database(dsn)
    await database.open()
    with pytest.raises(Unavailable):
        async with database.hot() as connection:
            await connection.fetchval("select pg_terminate_backend(pg_backend_pid())")
    async with database.hot() as again:
        assert await again.fetchval("select 1") == 1
    assert again is not connection
    await database.close()


async def test_a_database_without_room_is_told_to_who_asks_how_it_is(dsn: str) -> None:
    """Reading works, so that everything that only looks finds nothing wrong."""
    database = Database(dsn)
    full = "do $$ begin raise exception 'could not extend file' using errcode = 'disk_full'; end $$"
    gone = "do $$ begin raise exception 'could not open file' using errcode = 'undefined_file'; end $$"
    try:
        assert database.trouble == ""
        with pytest.raises(Unavailable, match="cannot take more"):
            async with database.cold() as connection:
                await connection.execute(full)
        assert database.trouble == "the database cannot take more: could not extend file"
        with pytest.raises(Unavailable, match="look at its disk"):
            async with database.cold() as connection:
                await connection.execute(gone)
        assert database.trouble == "the database cannot use its files: could not open file"
    finally:
        await database.close()


@pytest.mark.parametrize("lost_first", [True, False])
async def test_who_is_cancelled_while_its_connection_is_lost_ends(dsn: str, lost_first: bool) -> None:
    database, begun = Database(dsn), asyncio.Event()

    async def work(connection: Connection) -> None:
        begun.set()
        await connection.execute("select pg_sleep(100)")

    task = asyncio.create_task(database.transact(work))
    await begun.wait()
    steps = [database._hot.terminate, task.cancel]
    for step in steps if lost_first else reversed(steps):
        step()
    with pytest.raises(asyncio.CancelledError):
        await task
    await database.close()


async def test_searches_of_one_tenant_leave_a_connection_for_the_questions_of_others(dsn: str, monkeypatch) -> None:
    monkeypatch.setattr("headway.store.database.LOAN_S", 0.2)
    database = Database(dsn)
    async with contextlib.AsyncExitStack() as searches:
        for _ in range(2):
            await searches.enter_async_context(database.searches(1))
        with pytest.raises(Unavailable, match="searches of your tenant"):
            await searches.enter_async_context(database.searches(1))
        for loan in (database.searches(2), database.reads()):
            async with loan as connection:
                assert await connection.fetchval("select 1") == 1
    async with contextlib.AsyncExitStack() as again:  # each that ended made room
        for _ in range(2):
            await again.enter_async_context(database.searches(1))
    await database.close()


async def test_a_search_that_fails_or_is_given_up_leaves_its_room_to_the_next(dsn: str) -> None:
    database = Database(dsn)
    for _ in range(4):
        with pytest.raises(asyncpg.PostgresError):
            async with database.searches(1) as connection:
                await connection.execute("select nothing_of_the_kind")
    async with database.searches(1), database.searches(1):
        waiting = asyncio.create_task(database.searches(1).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with database.searches(1), database.searches(1) as connection:
        assert await connection.fetchval("select 1") == 1
    await database.close()


async def test_people_who_ask_long_questions_keep_no_task_and_no_duty_waiting(dsn, monkeypatch):
    monkeypatch.setattr("headway.store.database.LOAN_S", 0.2)
    async with engine(dsn, duty_lease_s=1.0) as core, contextlib.AsyncExitStack() as questions:
        agent = await ScriptedAgent(core).join()
        while True:  # as many as may be asked at once
            try:
                await questions.enter_async_context(core.database.reads())
            except Unavailable:
                break
        epoch = core.leader.epoch("planner")
        await core.leader.renew()
        (task,) = (await submit(core, function())).ids
        [order] = await agent.orders()
        assert (await agent.say(heartbeat=True, held=[(order.id, order.attempt)])).renewed
        await agent.succeed(order)
        assert await state_of(core, task) == State.SUCCEEDED
        assert core.leader.epoch("planner") == epoch
        assert core.leader.leads("planner")
        with pytest.raises(Unavailable, match="all connections to the database are busy"):
            await core.waiting.any_final([task], None, 0.0)
