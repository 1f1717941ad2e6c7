"""The benchmark's judges: what refuses to report, and what counts, on real databases."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from headway.bench import durability
from headway.bench.ledger import Ids, Ledger, WrongCount
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


async def test_sizes_name_the_hot_table_and_its_indexes(judged: asyncpg.Connection) -> None:
    assert {"task", "task_pkey", "task_ready", "task_node"} <= (await Ledger(judged).sizes()).keys()
