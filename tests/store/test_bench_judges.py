"""The benchmark's judges: what refuses to report, and what counts, on real databases."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import asyncpg
import pytest

from headway.bench import companions, durability
from headway.bench.ledger import Ids, Ledger, WrongCount
from headway.bench.sustained import DEEP, SHALLOW, feed
from headway.embedded.postgres import Postgres
from headway.errors import ConfigError
from headway.store.migrate import migrate

DEFINITION = """
    insert into headway.shape (id, hash, resources) overriding system value values (1, '', '{}');
    insert into headway.definition (id, tenant, hash, shape, name, body) overriding system value
    values (1, 1, '\\x01', 1, 'noop', '{}'), (2, 1, '\\x02', 1, 'other', '{}');
"""
FINISHED = """
    insert into headway.task_history
        (id, start_by, eligible_at, ended_at, tenant, definition, shape, cap_ms, attempt, state, category, outcome,
         failures, resource_failures, node_losses, requeues, input, result)
    values ($1, now(), now(), now(), 1, $2, 1, 1000, 1, $3, 1, 0, 0, 0, 0, 0, $4, $5)
"""
WAITING = """
    insert into headway.task (id, start_by, eligible_at, tenant, definition, shape, cap_ms, state, category, input)
    select id, now(), now(), 1, 1, 1, 1000, 2, 1, '' from generate_series($1::bigint, $2::bigint) id
"""
RIGHT = (b'["abcdefghijkl"]', b'"abcdefgh"')
IDS = Ids(first=1, last=3, count=3)


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def judged(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A database with room for finished tasks with small ids."""
    async with connected(dsn) as connection:
        await connection.execute(DEFINITION)
        await connection.execute("create table headway.old partition of headway.task_history for values from (minvalue) to (1000)")
        yield connection


async def finish(
    connection: asyncpg.Connection, task: int, *, definition: int = 1, state: int = 6, pair: tuple[bytes, bytes] = RIGHT
) -> None:
    await connection.execute(FINISHED, task, definition, state, *pair)


@pytest.mark.skipif("HEADWAY_TEST_DATABASE" in os.environ, reason="only the tests' own PostgreSQL is known to run without fsync")
async def test_no_figures_without_fsync(dsn: str) -> None:
    async with connected(dsn) as connection:
        with pytest.raises(ConfigError, match=r"fsync is off, full_page_writes is off|full_page_writes is off, fsync") as e:
            await durability.require(connection)
    assert "synchronous_commit is off" in str(e.value)


async def test_no_figures_of_unlogged_tables_or_of_a_user_that_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    server = Postgres(tmp_path)
    dsn = server.start()
    try:
        await migrate(dsn)
        async with connected(dsn) as connection:
            assert await durability.reasons(connection) == []
            await connection.execute("create unlogged table headway.part partition of headway.task_history default")
            await connection.execute("alter table headway.task set unlogged")
            await connection.execute("alter role headway set synchronous_commit = off")
            found = await durability.reasons(connection)
    finally:
        server.stop()
    assert found == ["synchronous_commit is off for a role", "table part is unlogged", "table task is unlogged"]


async def test_a_run_counts_when_every_task_succeeded(judged: asyncpg.Connection) -> None:
    for task in (1, 2, 3):
        await finish(judged, task)
    await Ledger(judged).require_success(IDS, "noop")
    await Ledger(judged).require_results(IDS)


async def test_a_missing_task_is_noticed(judged: asyncpg.Connection) -> None:
    await finish(judged, 1)
    await finish(judged, 3)
    with pytest.raises(WrongCount, match="3 tasks were acknowledged"):
        await Ledger(judged).require_success(IDS, "noop")


async def test_a_cancelled_task_is_noticed(judged: asyncpg.Connection) -> None:
    for task, state in ((1, 6), (2, 8), (3, 6)):
        await finish(judged, task, state=state)
    with pytest.raises(WrongCount, match="cancelled"):
        await Ledger(judged).require_success(IDS, "noop")


async def test_tasks_of_others_do_not_count(judged: asyncpg.Connection) -> None:
    for task in (1, 3):
        await finish(judged, task)
    await finish(judged, 2, definition=2)
    await Ledger(judged).require_success(Ids(1, 3, 2), "noop")


async def test_a_result_of_another_input_is_noticed(judged: asyncpg.Connection) -> None:
    for task in (1, 2):
        await finish(judged, task)
    await finish(judged, 3, pair=(b'["abcdefghijkl"]', b'"xxxxxxxx"'))
    with pytest.raises(WrongCount, match="2 of 3 results"):
        await Ledger(judged).require_results(IDS)


async def test_the_end_of_a_run_is_when_the_hot_table_holds_none_of_it(judged: asyncpg.Connection) -> None:
    await Ledger(judged).all_finished(IDS)
    assert (await Ledger(judged).finished(IDS))[1] == 0


async def test_a_backlog_is_counted_as_it_is_though_the_sessions_that_changed_it_rest(judged: asyncpg.Connection, dsn: str) -> None:
    """A session that rests tells PostgreSQL's statistics what it did after up to ten seconds."""
    async with connected(dsn) as server:
        await server.execute(WAITING, 1, 2)  # waited before the run, and is none of it
        backlog = await Ledger(judged).backlog()
        await server.execute(WAITING, 3, 7)
        await server.execute(WAITING, 8, 12)
        assert await backlog.look(1_000) == 10
        assert await backlog.look(4) == 4, "and no further than asked for"
        await server.execute("delete from headway.task where id between 3 and 11")
        assert await backlog.look(1_000) == 1
        await server.execute("delete from headway.task where id = 12")
        assert await backlog.look(1_000) == 0
        await server.execute(WAITING, 13, 14)
        assert await backlog.look(1_000) == 2


async def test_a_generator_that_pauses_goes_on_before_the_work_runs_out(judged: asyncpg.Connection, dsn: str) -> None:
    """What it would send and what Headway would end is done to the table at its words; each is waited for."""
    async with connected(dsn) as server:
        backlog = await Ledger(judged).backlog()
        told = Told(server)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            feeding = group.create_task(feed(backlog, cast(companions.Companion, told), seconds=3_600))
            group.create_task(told.play()).add_done_callback(lambda _: feeding.cancel())
        assert told.words == ["pause", "resume"]


class Told(asyncio.Queue[str]):
    """Stands where the generator's process is, and does what the words bring about."""

    def __init__(self, server: asyncpg.Connection) -> None:
        super().__init__()
        self.server, self.words = server, list[str]()

    def say(self, word: str) -> None:
        self.words.append(word)
        self.put_nowait(word)

    async def play(self) -> None:
        await self.server.execute(WAITING, 1, DEEP)
        assert await self.get() == "pause"
        await self.server.execute("delete from headway.task where id <= $1", DEEP - SHALLOW + 1)
        assert await self.get() == "resume"


async def test_ends_are_counted_by_parts_of_the_time(judged: asyncpg.Connection) -> None:
    since = await Ledger(judged).now()
    for task, after_s in ((1, -1), (2, 0), (3, 9), (4, 25), (5, 30)):
        await finish(judged, task)
        await judged.execute("update headway.task_history set ended_at = $2 where id = $1", task, since + timedelta(seconds=after_s))
    assert await Ledger(judged).finishes_by_parts(Ids(1, 5, 5), since, part_s=10, parts=3) == [2, 0, 1]


async def test_sizes_name_the_hot_table_and_its_indexes(judged: asyncpg.Connection) -> None:
    assert {"task", "task_pkey", "task_ready", "task_node"} <= (await Ledger(judged).sizes()).keys()
