"""Finished tasks leave the hot table, stay findable, and are dropped by whole days (B3 B4 F4)."""

from __future__ import annotations

import asyncio
import datetime

import asyncpg
import pytest

from headway.control.archivist import Archivist
from headway.control.clock import Clock
from headway.control.leader import Leader
from headway.domain.identity import first_id_of
from headway.domain.lifecycle import State
from headway.errors import IdempotencyConflict, StaleEpoch
from headway.store import listing, partitions
from headway.store.database import Database
from headway.store.queries import query
from headway.wire.exchange import Output, Progress
from tests.support.databases import run
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit

DAY = datetime.timedelta(days=1)
TABLES = (*partitions.BY_ID, *partitions.BY_TIME)


def days_ago(core, days: int) -> datetime.date:
    return core.clock.now().date() - days * DAY


def id_of(day: datetime.date, number: int = 0) -> int:
    """An id made at noon of that day."""
    noon = datetime.datetime(day.year, day.month, day.day, 12, tzinfo=datetime.UTC)
    return first_id_of(int(noon.timestamp() * 1000)) + number


async def sql(core, statement: str, *values: object) -> list:
    async with core.database.cold() as connection:
        return await connection.fetch(statement, *values)


async def stored(core) -> set[str]:
    """The partitions there are."""
    rows = await sql(
        core,
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = any ($1::text[]::regclass[])",
        TABLES,
    )
    return {row["name"] for row in rows}


def of_day(day: datetime.date) -> set[str]:
    return {partitions.name_of(table, day) for table in TABLES}


async def make_day(core, day: datetime.date) -> None:
    async with core.database.cold() as connection:
        await partitions.ensure(connection, day + DAY)  # it starts with the day before


async def backdate(core, task: int, day: datetime.date, table: str = "task") -> int:
    """Make a task one of an earlier day, as if it had waited since then."""
    old = id_of(day)
    await sql(core, f"update {table} set id = $2 where id = $1", task, old)
    await sql(core, "update idempotency_key set task = $2 where task = $1", task, old)
    return old


@pytest.fixture
def no_trigger(dsn):
    """The lifecycle's trigger refuses that a task changes its id, which is how these tests age one."""

    async def drop() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute("drop trigger check_lifecycle on headway.task")
        await connection.close()

    run(drop())


async def test_the_days_ahead_have_their_partitions_so_that_midnight_needs_nothing(dsn):
    async with engine(dsn) as core:
        there = await stored(core)
        for ahead in range(-1, 4):
            assert of_day(core.clock.now().date() + ahead * DAY) <= there


async def test_a_task_of_the_day_after_tomorrow_ends_in_that_days_history(dsn, no_trigger):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        day = days_ago(core, -2)
        task = await backdate(core, (await submit(core, function(at="2099-01-01T00:00:00Z"))).ids[0], day)
        await sql(core, "update task set eligible_at = now()")
        await agent.succeed(*await agent.orders())
        rows = await sql(core, "select tableoid::regclass::text as home from task_history where id = $1", task)
        assert [row["home"] for row in rows] == [partitions.name_of("task_history", day)]


async def test_servers_that_make_the_same_days_at_once_make_each_once(dsn):
    async with engine(dsn) as core:
        day = days_ago(core, -100)

        async def make() -> list[str]:
            async with core.database.cold() as connection:
                return await partitions.ensure(connection, day)

        made = await asyncio.gather(*(make() for _ in range(4)))
        assert sorted(map(len, made)) == [0, 0, 0, 5 * len(TABLES)]


async def test_retention_drops_whole_days_and_keeps_the_last_one_it_promised(dsn):
    async with engine(dsn, retention_days=7) as core:
        await make_day(core, days_ago(core, 9))
        await core.archivist.run_once()
        there = await stored(core)
        assert not (of_day(days_ago(core, 9)) | of_day(days_ago(core, 8))) & there
        assert of_day(days_ago(core, 7)) <= there


async def test_a_day_whose_tasks_are_still_hot_is_kept_until_they_end(dsn, no_trigger):
    async with engine(dsn, retention_days=7) as core:
        agent = await ScriptedAgent(core).join()
        day = days_ago(core, 20)
        task = await backdate(core, (await submit(core, function(at="2099-01-01T00:00:00Z"))).ids[0], day)
        await make_day(core, day)
        await core.archivist.run_once()
        kept = {partitions.name_of(table, day) for table in partitions.BY_ID}
        assert of_day(day) & await stored(core) == kept
        await sql(core, "update task set eligible_at = now() where id = $1", task)
        core.bus.scheduled()
        await agent.succeed(*await agent.orders())
        assert await state_of(core, task) == State.SUCCEEDED
        await core.archivist.run_once()
        assert not kept & await stored(core)
        assert await state_of(core, task) is None


async def test_an_old_task_still_releases_what_waits_for_it(dsn, no_trigger):
    async with engine(dsn, retention_days=7) as core:
        agent = await ScriptedAgent(core).join()
        day = days_ago(core, 20)
        old = await backdate(core, (await submit(core, function(at="2099-01-01T00:00:00Z"))).ids[0], day)
        await make_day(core, day)
        waiting = (await submit(core, function(after=[str(old)]))).ids[0]
        await core.archivist.run_once()
        await sql(core, "update task set eligible_at = now() where id = $1", old)
        core.bus.scheduled()
        await agent.succeed(*await agent.orders())
        assert [order.id for order in await agent.orders()] == [waiting]


async def _old_dead_letter(core, agent: ScriptedAgent, day: datetime.date) -> int:
    """A dead letter that has outlived the history of its day."""
    task = (await submit(core, function())).ids[0]
    await agent.fail((await agent.orders())[0])
    old = await backdate(core, task, day, "dead_letter")
    await core.archivist.run_once()
    assert not of_day(day) & await stored(core)
    return old


async def test_a_dead_letter_older_than_its_history_can_be_sent_again_and_end(dsn):
    async with engine(dsn, retention_days=7) as core:
        agent = await ScriptedAgent(core).join()
        task = await _old_dead_letter(core, agent, days_ago(core, 20))
        assert await core.actions.revive([task], None, None) == [task]
        await core.archivist.run_once()
        await agent.succeed(*await agent.orders())
        assert await state_of(core, task) == State.SUCCEEDED


async def test_a_dead_letter_older_than_its_history_can_be_purged(dsn):
    async with engine(dsn, retention_days=7) as core:
        agent = await ScriptedAgent(core).join()
        task = await _old_dead_letter(core, agent, days_ago(core, 20))
        assert await core.actions.purge([task], None) == [task]
        assert await state_of(core, task) == State.CANCELLED
        await core.archivist.run_once()
        assert await state_of(core, task) is None


async def test_a_task_is_looked_up_alike_wherever_it_is(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        same = {"name": "same", "labels": {"team": "a"}, "input": [1]}
        receipt = await submit(core, function(**same), function(**same), function(**same, at="2099-01-01T00:00:00Z"))
        succeeded, failed = await agent.orders(2)
        await agent.succeed(succeeded, result=b"2")
        await agent.fail(failed)
        async with core.database.cold() as connection:
            rows = {row["id"]: row for row in await connection.fetch(query("read.one"), receipt.ids, 1)}
            listed = await listing.page(connection, listing.Filter(tenant=1))
        states = {row["id"]: row["state"] for row in rows.values()}
        assert states == {succeeded.id: State.SUCCEEDED, failed.id: State.FAILED, receipt.ids[2]: State.SCHEDULED}
        told = {
            tuple(row[field] for field in ("name", "labels", "input", "definition", "tenant_name", "category"))
            for row in rows.values()
        }
        assert len(told) == 1
        assert {row["id"]: row["state"] for row in listed} == states
        assert [tuple(row.keys()) for row in listed] == [tuple(listed[0].keys())] * 3
        assert (rows[succeeded.id]["result"], rows[failed.id]["node_name"]) == (b"2", "node-1")


async def _ended_with_key(core, ago: str) -> int:
    """A task of two days ago under the key `k`, which ended so long ago."""
    agent = await ScriptedAgent(core).join()
    task = (await submit(core, function(idempotency_key="k", input=1))).ids[0]
    await agent.succeed(*await agent.orders())
    await make_day(core, days_ago(core, 2))
    old = await backdate(core, task, days_ago(core, 2), "task_history")
    await sql(core, "update task_history set ended_at = now() - $1::text::interval where id = $2", ago, old)
    return old


async def test_old_trees_are_forgotten_with_their_history_but_not_while_something_of_them_is_left(dsn, no_trigger):
    async with engine(dsn, retention_days=7) as core:
        agent = await ScriptedAgent(core).join()
        old = [(await submit(core, function(), tree=name)).tree for name in ("done", "late", "failed")]
        orders = {order.id: order for order in await agent.orders(3)}
        rows = await sql(core, "select tree, first from tree_part order by tree")
        done, late, failed = (orders[row["first"]] for row in rows)
        await agent.succeed(done, late)
        await agent.fail(failed)
        going = (await submit(core, function(at="2099-01-01T00:00:00Z"), tree="going")).tree
        aged = {tree: id_of(days_ago(core, 20), n) for n, tree in enumerate([*old, going])}
        for tree, id in aged.items():
            for table, column in (("tree", "id"), ("tree_level", "tree"), ("tree_part", "tree")):
                await sql(core, f"update {table} set {column} = $2 where {column} = $1", tree, id)
        await sql(core, "update tree_level set last_at = last_at - interval '20 days' where tree <> $1", aged[old[1]])
        await core.archivist.run_once()
        left = {aged[old[1]], aged[old[2]], aged[going]}
        for table, column in (("tree", "id"), ("tree_level", "tree"), ("tree_part", "tree")):
            assert {row[column] for row in await sql(core, f"select {column} from {table}")} == left, table


async def test_an_idempotency_key_may_be_used_again_a_day_after_its_task_ended(dsn):
    async with engine(dsn) as core:
        old = await _ended_with_key(core, "24 hours 1 minute")
        await core.archivist.run_once()
        again = await submit(core, function(idempotency_key="k", input="another"))
        assert again.created == [True]
        assert again.ids != [old]


async def test_an_idempotency_key_holds_for_a_whole_day_after_the_end(dsn):
    async with engine(dsn) as core:
        old = await _ended_with_key(core, "23 hours 59 minutes")
        await core.archivist.run_once()
        assert (await submit(core, function(idempotency_key="k", input=1))).ids == [old]
        with pytest.raises(IdempotencyConflict):
            await submit(core, function(idempotency_key="k", input="another"))


async def test_the_key_of_a_task_that_has_not_ended_well_or_at_all_never_expires(dsn, no_trigger):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        dead = (await submit(core, function(idempotency_key="dead"))).ids[0]
        await agent.fail((await agent.orders())[0])
        waiting = (await submit(core, function(idempotency_key="waiting", at="2099-01-01T00:00:00Z"))).ids[0]
        old = [await backdate(core, dead, days_ago(core, 9), "dead_letter"), await backdate(core, waiting, days_ago(core, 8))]
        await core.archivist.run_once()
        specs = [function(idempotency_key="dead"), function(idempotency_key="waiting", at="2099-01-01T00:00:00Z")]
        assert [(await submit(core, spec)).ids[0] for spec in specs] == old


async def test_expired_keys_are_dropped_in_bounded_steps_until_none_is_left(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.archivist.KEYS", 3)
    database, clock = Database(dsn), Clock()
    await database.open()
    await clock.ask(database)
    leader = Leader(database, "test", 10)
    await leader.renew()
    archivist = Archivist(database, leader, clock, 7)
    async with database.cold() as connection:
        old = id_of(clock.now().date() - 5 * DAY)
        await connection.execute(
            "insert into idempotency_key select 1, 'k' || n, '', $1::bigint + n from generate_series(1, 7) n", old
        )
        assert [await archivist.run_once() > 0 for _ in range(3)] == [False, False, True]
        assert await connection.fetchval("select count(*) from idempotency_key") == 0
    await database.close()


async def test_what_is_no_longer_needed_is_cleaned_up(dsn):
    async with engine(dsn) as core:
        live = (await submit(core, function(at="2099-01-01T00:00:00Z"))).ids[0]
        await sql(core, "insert into progress (task, done, total, attempt, text) values ($1, 1, 2, 1, ''), (7, 1, 2, 1, '')", live)
        await sql(
            core,
            "insert into node (name, boot, capacity, state, seen_at) select 'left-' || days, '', $1, 2, now() - days * "
            "interval '1 day' from unnest('{0, 2}'::int[]) days",
            '{"cpus_milli": 1000, "memory": 1, "disk": 1}',
        )
        await core.archivist.run_once()
        assert [row["task"] for row in await sql(core, "select task from progress")] == [live]
        assert [row["name"] for row in await sql(core, "select name from node")] == ["left-0"]


async def test_a_deposed_archivist_drops_nothing(dsn):
    async with engine(dsn, retention_days=7) as core:
        await core.archivist.run_once()
        await sql(core, "update duty set epoch = epoch + 1, holder = 'other' where name = 'archivist'")
        day = days_ago(core, 20)
        await make_day(core, day)
        with pytest.raises(StaleEpoch):
            await core.archivist.run_once()
        assert of_day(day) <= await stored(core)


async def test_an_agent_writes_output_and_progress_only_of_attempts_it_has_or_had(dsn):
    async with engine(dsn) as core:
        mine, other = await ScriptedAgent(core, "mine").join(), await ScriptedAgent(core, "other", cpus=0.1).join()
        task = (await submit(core, function())).ids[0]
        (order,) = await mine.orders()
        await other.say(output=[Output(task, 1, 0, 1, 1, b"forged")], progress=[Progress(task, 1, 9.0, 9.0, "forged")])
        await mine.say(output=[Output(task, 1, 1, 1, 1, b"right"), Output(task, 2, 0, 1, 1, b"of no attempt yet")])
        await mine.succeed(order)
        await mine.say(output=[Output(task, 1, 2, 1, 1, b"late")])
        async with core.database.cold() as connection:
            kept = [row["data"] for row in await connection.fetch("select data from output order by sequence")]
            assert kept == [b"right", b"late"]
            assert await connection.fetchval("select count(*) from progress") == 0
