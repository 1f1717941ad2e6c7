"""The test database refuses what the lifecycle's table does not allow."""

from __future__ import annotations

import itertools

import asyncpg
import pytest

from headway.domain.lifecycle import HELD, State
from tests.support.lifecycle_trigger import COME_IN, moves

HOT = [state for state in State if not state.final]


async def insert(connection: asyncpg.Connection, state: State, task_id: int = 1) -> None:
    held = "1, now(), now()" if state in HELD else "null, null, null"
    await connection.execute(
        "insert into headway.task (id, start_by, eligible_at, tenant, definition, shape, cap_ms, category, input, "
        "attempt, state, blocked_on, node, leased_at, started_at) "
        f"values ($1, now(), now(), 1, 1, 1, 1000, 1, '', 1, $2, $3, {held})",
        task_id,
        int(state),
        int(state == State.BLOCKED),
    )


async def move(connection: asyncpg.Connection, target: State, *, attempt: int = 2) -> None:
    held = "1, now(), now()" if target in HELD else "null, null, null"
    await connection.execute(
        f"update headway.task set attempt = $3, state = $1, blocked_on = $2, (node, leased_at, started_at) = ({held})",
        int(target),
        int(target == State.BLOCKED),
        attempt,
    )


async def place(connection: asyncpg.Connection, state: State) -> None:
    """A task in this state, however it came there."""
    await connection.execute("alter table headway.task disable trigger check_lifecycle")
    await connection.execute("delete from headway.task")
    await insert(connection, state)
    await connection.execute("alter table headway.task enable trigger check_lifecycle")


async def test_exactly_the_moves_of_the_table_are_allowed(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    done = set()
    for source, target in itertools.permutations(HOT, 2):
        await place(connection, source)
        try:
            await move(connection, target)
        except asyncpg.RaiseError:
            continue
        done.add((source, target))
    await connection.close()
    assert done == moves()


async def test_a_task_comes_in_waiting_or_leased_only(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    for number, state in enumerate(HOT):
        if state in COME_IN:
            await insert(connection, state, number)
        else:
            with pytest.raises(asyncpg.RaiseError, match="comes in with state"):
                await insert(connection, state, number)
    await connection.close()


async def test_the_fence_never_goes_back_and_every_lease_raises_it(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await insert(connection, State.READY)
    with pytest.raises(asyncpg.RaiseError, match="goes back"):
        await move(connection, State.READY, attempt=0)
    with pytest.raises(asyncpg.RaiseError, match="under the same attempt"):
        await move(connection, State.LEASED, attempt=1)
    await connection.close()


async def test_every_test_has_a_database_of_its_own(dsn: str, empty_dsn: str) -> None:
    there = await asyncpg.connect(dsn)
    empty = await asyncpg.connect(empty_dsn)
    question = "select count(*) from information_schema.tables where table_schema = 'headway'"
    assert await there.fetchval(question) > 10
    assert await empty.fetchval(question) == 0
    await there.close()
    await empty.close()
