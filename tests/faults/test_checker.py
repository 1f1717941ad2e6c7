"""The checker finds every kind of violation: each is planted by hand, and a sound history gives none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.support import checker_tasks
from tests.support.checker import assert_sound, check, check_journal, read_journal
from tests.support.engine import ScriptedAgent, engine, function, submit


@pytest.fixture
async def finished(dsn: str) -> list[int]:
    """Three tasks that went the whole way; the middle one needed two attempts."""
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await agent.say(heartbeat=True)
        receipt = await submit(core, *(function(attempts=2, retry={"interval": 0}, resources={"cpus": 0.1}) for _ in range(3)))
        orders = await agent.orders(3)
        await agent.fail(next(order for order in orders if order.id == receipt.ids[1]))
        await agent.succeed(*(order for order in orders if order.id != receipt.ids[1]))
        await agent.succeed(*await agent.orders(1))
    return receipt.ids


async def plant(dsn: str, statement: str, *values: object) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("alter table headway.task disable trigger all")
        await connection.execute(statement, *values)
    finally:
        await connection.close()


async def kinds(dsn: str, ids: list[int]) -> set[str]:
    return {violation.kind for violation in await check(dsn, ids)}


HOT = """
insert into headway.task (id, start_by, eligible_at, tenant, definition, shape, cap_ms, state, category, input)
select id, start_by, eligible_at, tenant, definition, shape, cap_ms, 2, category, input from headway.task_history where id = $1
"""


async def test_a_sound_run_has_no_violations(dsn, finished):
    await assert_sound(dsn, finished)


async def test_a_task_that_is_nowhere_is_found(dsn, finished):
    assert await kinds(dsn, [*finished, 4711]) == {"lost", "finishes"}


async def test_a_task_that_was_forgotten_is_found(dsn, finished):
    await plant(dsn, "with gone as (delete from headway.task_history where id = $1) delete from headway.attempt", finished[0])
    assert await kinds(dsn, finished) == {"lost"}


async def test_a_task_that_is_not_final_is_found(dsn, finished):
    await plant(dsn, HOT, finished[0])
    await plant(dsn, "delete from headway.task_history where id = $1", finished[0])
    assert await kinds(dsn, finished) == {"unfinished"}


async def test_a_final_task_that_is_also_hot_is_found(dsn, finished):
    await plant(dsn, HOT, finished[0])
    assert await kinds(dsn, finished) == {"unfinished", "two homes"}


async def test_two_final_rows_are_found(dsn, finished):
    await plant(
        dsn,
        """insert into headway.dead_letter (id, start_by, eligible_at, ended_at, tenant, definition, shape, cap_ms, attempt, category,
               failures, resource_failures, node_losses, requeues, has_dependants, input, fingerprint)
           select id, start_by, eligible_at, ended_at, tenant, definition, shape, cap_ms, 0, category, 0, 0, 0, 0, false, input, ''
           from headway.task_history where id = $1""",
        finished[0],
    )
    assert await kinds(dsn, finished) == {"two homes"}


async def test_a_second_finish_is_found(dsn, finished):
    await plant(dsn, "insert into headway.event (tenant, kind, tasks) values (1, 'task.failed', array[$1::bigint])", finished[0])
    assert await kinds(dsn, finished) == {"finishes"}


async def test_a_finish_that_nobody_was_told_of_is_found(dsn, finished):
    await plant(dsn, "update headway.event set tasks = array_remove(tasks, $1::bigint)", finished[0])
    assert await kinds(dsn, finished) == {"finishes"}


async def test_attempts_that_overlap_in_the_database_are_found(dsn, finished):
    await plant(dsn, "update headway.attempt set ended_at = clock_timestamp() + interval '1 minute' where task = $1", finished[1])
    assert await kinds(dsn, finished) == {"overlap in rows"}


async def test_an_attempt_that_ended_twice_is_found(dsn, finished):
    await plant(dsn, "update headway.task_history set attempt = 1 where id = $1", finished[1])
    assert await kinds(dsn, finished) == {"attempt twice"}


async def test_a_key_with_two_tasks_is_found(dsn, finished):
    await plant(dsn, "update headway.task_history set key = 'same' where id = any ($1::bigint[])", finished[:2])
    assert await kinds(dsn, finished) == {"key"}


def journal(folder: Path, *lines: str) -> list[str]:
    path = folder / "journal"
    path.write_text("".join(f"{line}\n" for line in lines))
    return [violation.kind for violation in check_journal(read_journal(path))]


def test_runs_one_after_another_are_sound(tmp_path):
    assert journal(tmp_path, "start 1 1 10 100", "tick 1 1 10 150", "start 1 2 11 200", "end 1 2 11 300", "start 2 1 12 210") == []


def test_a_run_that_begins_before_the_other_ended_is_found(tmp_path):
    assert journal(tmp_path, "start 1 1 10 100", "start 1 2 11 200", "end 1 1 10 250", "end 1 2 11 300") == ["overlap"]


def test_a_killed_run_is_believed_to_live_until_its_last_tick(tmp_path):
    assert journal(tmp_path, "start 1 1 10 100", "start 1 2 11 200", "tick 1 1 10 201", "end 1 2 11 300") == ["overlap"]


def test_a_long_run_overlaps_with_more_than_the_next_one(tmp_path):
    lines = ["start 1 1 10 100", "end 1 1 10 900", "start 1 2 11 200", "end 1 2 11 300", "start 1 3 12 400", "end 1 3 12 500"]
    assert journal(tmp_path, *lines) == ["overlap", "overlap"]


def test_an_attempt_that_is_run_again_is_found(tmp_path):
    assert journal(tmp_path, "start 1 1 10 100", "end 1 1 10 200", "start 1 1 11 300", "end 1 1 11 400") == ["run twice"]


def test_an_attempt_that_is_run_again_by_the_same_process_is_found(tmp_path):
    assert journal(tmp_path, "start 1 1 10 100", "end 1 1 10 200", "start 1 1 10 300", "end 1 1 10 400") == ["run twice"]


def test_an_older_attempt_that_begins_after_a_newer_one_is_found(tmp_path):
    assert journal(tmp_path, "start 1 2 10 100", "end 1 2 10 200", "start 1 1 11 300", "end 1 1 11 400") == ["fence"]


def test_a_program_leaves_the_trail_that_the_checker_reads(tmp_path):
    environment = {**os.environ, "HEADWAY_TASK_ID": "7", "HEADWAY_ATTEMPT": "3"}
    subprocess.run([sys.executable, checker_tasks.__file__, str(tmp_path / "journal"), "0.12"], env=environment, check=True)
    (run,) = read_journal(tmp_path / "journal")
    assert (run.task, run.attempt, run.ended) == (7, 3, True)
    assert 0.12e9 <= run.end - run.begin < 10e9
