"""Ids from leased numbers, and the database's clock as a server knows it (A4): no two alike, whatever dies or is set back."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headway.api.nodes import views
from headway.control.clock import Clock
from headway.control.identity import IdSource
from headway.domain.identity import PER_MS, ms_of, number_of
from headway.errors import Unavailable
from headway.store.database import Database
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[tuple[Database, Clock]]:
    database, clock = Database(dsn), Clock()
    await database.open()
    try:
        await clock.ask(database)
        yield database, clock
    finally:
        await database.close()


async def source(database: Database, clock: Clock, holder: str) -> IdSource:
    ids = IdSource(database, clock, holder)
    await ids.claim()
    return ids


async def expire(database: Database) -> None:
    """As if every holder had been silent for too long."""
    async with database.cold() as connection:
        await connection.execute("update id_number set held_until = clock_timestamp() - interval '1 second'")


async def test_two_servers_make_ids_under_numbers_of_their_own(dsn):
    async with opened(dsn) as (database, clock):
        one, two = await source(database, clock, "one"), await source(database, clock, "two")
        made = [await ids.take(1000) for ids in (one, two, one, two)]
        assert {number_of(task) for task in made[0]} == {one.number}
        assert {number_of(task) for task in made[1]} == {two.number}
        assert one.number != two.number
        assert len({task for batch in made for task in batch}) == 4000


async def test_servers_that_start_at_once_get_different_numbers(dsn):
    async with opened(dsn) as (database, clock):
        sources = await asyncio.gather(*(source(database, clock, f"server-{n}") for n in range(20)))
        assert {ids.number for ids in sources} == set(range(20))


async def test_a_number_given_back_is_used_again_and_its_ids_go_on_rising(dsn):
    async with opened(dsn) as (database, clock):
        first = await source(database, clock, "first")
        made = await first.take(5 * PER_MS)
        number = first.number
        await first.release()
        second = await source(database, clock, "second")
        assert second.number == number
        more = await second.take(10)
        assert more[0] > made[-1]
        # What was reserved and not used was given back: ids do not run ahead of the clock by a whole reservation.
        assert ms_of(more[0]) - clock.now_us() // 1000 < 1_000


async def test_a_server_that_was_given_a_number_back_cannot_use_it_any_more(dsn):
    async with opened(dsn) as (database, clock):
        first = await source(database, clock, "first")
        await first.release()
        await source(database, clock, "second")
        assert number_of((await first.take(1))[0]) == 1


async def test_a_number_whose_holder_was_silent_for_too_long_is_used_again_behind_all_it_reserved(dsn):
    async with opened(dsn) as (database, clock):
        silent = await source(database, clock, "silent")
        await expire(database)
        heir = await source(database, clock, "heir")
        assert heir.number == silent.number
        late = await silent.take(2000)  # it has not noticed yet
        made = await heir.take(2000)
        assert made[0] > late[-1]
        assert not set(late) & set(made)


async def test_a_server_that_wakes_up_without_its_number_takes_another_one(dsn):
    async with opened(dsn) as (database, clock):
        silent = await source(database, clock, "silent")
        await expire(database)
        heir = await source(database, clock, "heir")
        await silent.renew()
        assert silent.number not in (-1, heir.number)
        await silent.release()
        assert number_of((await heir.take(1))[0]) == heir.number


async def test_a_late_release_does_not_take_the_number_from_its_new_holder(dsn):
    async with opened(dsn) as (database, clock):
        silent = await source(database, clock, "silent")
        await expire(database)
        heir = await source(database, clock, "heir")
        await silent.release()
        assert (await source(database, clock, "third")).number != heir.number


async def test_more_ids_than_are_reserved_are_made_in_rising_order(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.identity.RESERVE_MS", 20)
    async with opened(dsn) as (database, clock):
        ids = await source(database, clock, "busy")
        made = [task for _ in range(8) for task in await ids.take(10 * PER_MS)]
        assert len(made) == 80 * PER_MS
        assert all(earlier < later for earlier, later in itertools.pairwise(made))


async def test_ids_are_not_made_twice_when_the_clock_of_the_database_is_set_back(dsn):
    async with opened(dsn) as (database, clock):
        first = await source(database, clock, "first")
        made = await first.take(100)
        await first.release()
        async with database.cold() as connection:  # what a clock an hour behind looks like: reservations lie in the future
            reserved = await connection.fetchval("update id_number set until_ms = until_ms + 3600000 returning until_ms")
        second = await source(database, clock, "second")
        after = [task for _ in range(3) for task in await second.take(PER_MS)]
        assert after == sorted(set(after))
        assert ms_of(after[0]) > reserved > ms_of(made[-1])


# The clock


async def test_a_server_admits_nothing_once_it_has_lost_touch_with_the_clock_and_again_when_it_has_heard(dsn, monkeypatch):
    async with engine(dsn) as core:
        await submit(core, function())
        with monkeypatch.context() as silent:
            silent.setattr("headway.control.clock.STALE_S", -1.0)
            with pytest.raises(Unavailable, match="clock"):
                await submit(core, function())
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(*) from task") == 1
        await submit(core, function())


async def test_a_clock_that_never_heard_the_database_tells_no_time():
    with pytest.raises(Unavailable):
        Clock().now_us()


async def test_the_clock_is_the_databases_whatever_the_hosts_says(dsn, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)
    async with opened(dsn) as (database, clock):
        async with database.cold() as connection:
            before = await connection.fetchval("select clock_timestamp()")
            told = clock.now()
            after = await connection.fetchval("select clock_timestamp()")
        slack = datetime.timedelta(seconds=30)  # half a round trip on a busy machine; the host says 1970
        assert before - slack <= told <= after + slack


async def test_a_host_whose_clock_steps_back_changes_neither_ids_nor_times(dsn, monkeypatch):
    async with engine(dsn) as core:
        ids = (await submit(core, function())).ids
        real = time.time
        for step in (-3600.0, -10 * 365 * 86_400.0, 86_400.0):
            monkeypatch.setattr(time, "time", lambda step=step: real() + step)
            ids += (await submit(core, function(delay_tolerance=30), function(at="2099-01-01T00:00:00Z"))).ids
        assert ids == sorted(set(ids))
        async with core.database.cold() as connection:
            rows = await connection.fetch(
                "select id, eligible_at - now() as wait, start_by - eligible_at as tolerance, now() from task"
            )
        states = [await state_of(core, task) for task in ids]
        assert [state == 1 for state in states] == [False, *[False, True] * 3]
        for row in rows:
            assert abs(ms_of(row["id"]) / 1000 - row["now"].timestamp()) < 60
            assert row["wait"] < datetime.timedelta(0) or row["wait"] > datetime.timedelta(days=365)


async def test_a_server_that_starts_again_with_its_clock_set_back_goes_on_with_higher_ids(dsn, monkeypatch):
    async with engine(dsn, holder="before") as core:
        before = (await submit(core, *[function()] * 10)).ids
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 86_400)
    async with engine(dsn, holder="after") as core:
        after = (await submit(core, *[function()] * 10)).ids
    assert max(before) < min(after)


async def test_a_node_whose_clock_is_wrong_is_seen_as_such_until_it_is_right(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        now_ms = core.clock.now_us() // 1000
        for said, expected in ((now_ms + 3_600_000, 3600.0), (now_ms - 3_600_000, -3600.0), (2**62, 315_360_000.0), (0, 0.0)):
            await agent.say(heartbeat=True, now_ms=said)
            [view] = await views(core)
            assert view.clock_s == pytest.approx(expected, abs=100.0)
