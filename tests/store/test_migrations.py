"""Migrations: once each, however many servers start; found out when changed; at home in somebody else's database (L4)."""

from __future__ import annotations

import asyncio
import secrets

import asyncpg
import pytest

from headway.errors import ConfigError
from headway.store import fitness
from headway.store import migrate as migrations
from headway.store.migrate import files, migrate, status
from tests.support.engine import ScriptedAgent, engine, function, submit

_OBJECTS = """
select n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname not in ('pg_catalog', 'information_schema', 'headway') and n.nspname not like 'pg\\_%'
union all
select 'function ' || n.nspname || '.' || p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname not in ('pg_catalog', 'information_schema', 'headway')
union all
select 'type ' || n.nspname || '.' || t.typname from pg_type t join pg_namespace n on n.oid = t.typnamespace
where n.nspname not in ('pg_catalog', 'information_schema', 'headway') and n.nspname not like 'pg\\_%'
union all
select 'schema ' || nspname from pg_namespace where nspname <> 'headway' and nspname not like 'pg\\_t%'
union all
select 'extension ' || extname from pg_extension
"""


async def fetch(dsn: str, statement: str, *values: object) -> list:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(statement, *values)
    finally:
        await connection.close()


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_ten_servers_that_start_at_once_apply_each_migration_once(empty_dsn):
    applied = await asyncio.gather(*(migrate(empty_dsn) for _ in range(10)))
    names = [name for name, _ in files()]
    assert sorted(applied) == [[]] * 9 + [names]
    assert [row["name"] for row in await fetch(empty_dsn, "select name from headway.migration order by name")] == names
    assert await status(empty_dsn) == [(name, True) for name in names]


async def test_a_migration_that_was_changed_after_it_ran_is_found_out(empty_dsn, monkeypatch):
    await migrate(empty_dsn)
    (first, sql), *rest = files()
    monkeypatch.setattr(migrations, "files", lambda: [(first, sql + "-- a small change"), *rest])
    with pytest.raises(ConfigError, match=f"{first} was changed"):
        await migrate(empty_dsn)


async def test_a_migration_that_fails_leaves_nothing_and_lets_the_next_server_try(empty_dsn, monkeypatch):
    good = files()
    monkeypatch.setattr(migrations, "files", lambda: [*good, ("9999_bad", "create table half (); select 1 / 0;")])
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(empty_dsn)
    assert await fetch(empty_dsn, "select 1 from pg_class where relname = 'half'") == []
    monkeypatch.setattr(migrations, "files", lambda: [*good, ("9999_bad", "create table half ();")])
    assert await migrate(empty_dsn) == ["9999_bad"]


async def test_a_new_migration_runs_after_those_that_ran_before(empty_dsn, monkeypatch):
    known = files()
    await migrate(empty_dsn)
    monkeypatch.setattr(migrations, "files", lambda: [*known, ("9999_more", "create table more (id int)")])
    assert await status(empty_dsn) == [*((name, True) for name, _ in known), ("9999_more", False)]
    assert await migrate(empty_dsn) == ["9999_more"]
    assert await migrate(empty_dsn) == []
    assert await fetch(empty_dsn, "select schemaname from pg_tables where tablename = 'more'") == [("headway",)]


async def test_everything_lives_in_the_schema_headway_and_nothing_outside_it_is_touched(empty_dsn):
    before = {row[0] for row in await fetch(empty_dsn, _OBJECTS)}
    await migrate(empty_dsn)
    async with engine(empty_dsn) as core:
        await submit(core, function())
    assert {row[0] for row in await fetch(empty_dsn, _OBJECTS)} == before
    tables = {row[0] for row in await fetch(empty_dsn, "select tablename from pg_tables where schemaname = 'headway'")}
    assert {"task", "task_history", "dead_letter", "edge", "event", "migration"} <= tables


async def test_it_works_beside_tables_of_the_same_names(empty_dsn):
    await execute(
        empty_dsn,
        """
        create table task (id text primary key, note text); insert into task values ('theirs', 'untouched');
        create table event (id int); create table migration (name text); create table node (name text);
        create type headway_state as enum ('a');
        """,
    )
    await migrate(empty_dsn)
    async with engine(empty_dsn) as core:
        task = (await submit(core, function())).ids[0]
    assert await fetch(empty_dsn, "select * from public.task") == [("theirs", "untouched")]
    assert await fetch(empty_dsn, "select id from headway.task") == [(task,)]
    assert await fetch(empty_dsn, "select * from public.migration union all select * from public.node") == []


async def test_a_server_older_than_supported_is_refused_before_anything_is_made(empty_dsn, monkeypatch):
    monkeypatch.setattr(fitness, "OLDEST", 999_999)
    with pytest.raises(ConfigError, match="too old"):
        await migrate(empty_dsn)
    assert await fetch(empty_dsn, "select 1 from pg_namespace where nspname = 'headway'") == []


async def test_who_owns_the_schema_needs_no_right_to_make_one(empty_dsn):
    """As an administrator gives it out: `create schema headway authorization app`, and nothing else in the database."""
    role = f"app_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(empty_dsn)
    try:
        await connection.execute(f"create role {role}; create schema headway authorization {role}; set role {role}")
        assert await migrations.migrate_on(connection) == [name for name, _ in files()]
        await connection.execute("reset role")
        assert await connection.fetch("select distinct tableowner from pg_tables where schemaname = 'headway'") == [(role,)]
    finally:
        await connection.execute(f"reset role; drop owned by {role} cascade; drop role {role}")
        await connection.close()


async def test_a_database_that_a_newer_headway_has_used_is_told(empty_dsn, monkeypatch):
    known = files()
    monkeypatch.setattr(migrations, "files", lambda: [*known, ("9999_more", "create table more (id int)")])
    await migrate(empty_dsn)
    monkeypatch.setattr(migrations, "files", lambda: known)
    told: list[dict] = []
    monkeypatch.setattr(migrations, "log", lambda event, **fields: told.append({"event": event, **fields}))
    assert await migrate(empty_dsn) == []
    assert [(one["event"], one["migrations"]) for one in told] == [("database.newer", "9999_more")]
    assert (await status(empty_dsn))[-1] == ("9999_more", True)


# Rows that contradict their state

_READY = {
    "id": "1", "start_by": "now()", "eligible_at": "now()", "tenant": "1", "definition": "1", "shape": "1", "cap_ms": "1",
    "state": "2", "category": "1", "input": "''",
}  # fmt: skip
_LEASED = {**_READY, "state": "3", "node": "1", "leased_at": "now()", "attempt": "1"}
_RUNNING = {**_LEASED, "state": "4", "started_at": "now()"}
CONTRADICTIONS = {
    "task_is_not_final": [{**_READY, "state": str(state)} for state in (6, 7, 8, 9, 10, 11, -1)],
    "task_held_has_node": [{**_LEASED, "node": "null"}, {**_READY, "node": "1"}],
    "task_held_has_lease": [{**_LEASED, "leased_at": "null"}, {**_READY, "leased_at": "now()"}],
    "task_begun_has_start": [{**_RUNNING, "started_at": "null"}, {**_RUNNING, "state": "5", "started_at": "null"}],
    "task_blocked_counts": [{**_READY, "state": "0"}, {**_READY, "blocked_on": "1"}, {**_READY, "state": "0", "blocked_on": "-1"}],
    "task_leased_has_attempt": [{**_LEASED, "attempt": "0"}, {**_RUNNING, "attempt": "0"}],
}


def insert(table: str, row: dict[str, str]) -> str:
    return f"insert into headway.{table} ({', '.join(row)}) values ({', '.join(row.values())})"


@pytest.mark.parametrize("constraint", CONTRADICTIONS)
async def test_a_task_that_contradicts_its_state_is_refused(empty_dsn, constraint):
    await migrate(empty_dsn)
    for row in CONTRADICTIONS[constraint]:
        with pytest.raises(asyncpg.CheckViolationError) as error:
            await execute(empty_dsn, insert("task", row))
        assert error.value.constraint_name == constraint
    for row in (_READY, {**_LEASED, "id": "2"}, {**_RUNNING, "id": "3"}, {**_READY, "id": "4", "state": "0", "blocked_on": "2"}):
        await execute(empty_dsn, insert("task", row))


async def test_history_takes_only_tasks_that_ended_and_a_dead_letter_only_a_failed_one(empty_dsn):
    await migrate(empty_dsn)
    await execute(empty_dsn, "create table headway.all_days partition of headway.task_history default")
    ended = {
        **_READY,
        "ended_at": "now()",
        "attempt": "1",
        **dict.fromkeys(("failures", "resource_failures", "node_losses", "requeues"), "0"),
    }
    for state in (0, 1, 2, 3, 4, 5, 7, 11):
        with pytest.raises(asyncpg.CheckViolationError, match="history_is_final"):
            await execute(empty_dsn, insert("task_history", {**ended, "state": str(state)}))
    await execute(empty_dsn, insert("task_history", {**ended, "state": "6"}))
    with pytest.raises(asyncpg.UniqueViolationError):  # a second finish
        await execute(empty_dsn, insert("task_history", {**ended, "state": "8"}))
    dead = {**ended, "has_dependants": "false", "fingerprint": "''"}
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(empty_dsn, insert("dead_letter", {**dead, "state": "6"}))
    await execute(empty_dsn, insert("dead_letter", {**dead, "state": "7"}))


@pytest.mark.parametrize("role", ["'admin', 1", "'agent', 1", "'tenant', null", "'king', null"])
async def test_a_token_without_its_tenant_or_with_one_it_must_not_have_is_refused(empty_dsn, role):
    await migrate(empty_dsn)
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(empty_dsn, f"insert into headway.token (hash, role, tenant) values ('x', {role})")


async def test_trees_of_before_their_runs_of_ids_were_kept_are_found_afterwards(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        leaves = [function(name=f"leaf {n}", after=["first"] if n % 3 else []) for n in range(9)]
        await submit(core, function(name="first"), *leaves, function(after=["leaf 1", "leaf 2"]), tree="one")
        await submit(core, function(), tree="two")
        await submit(core, function())
        await agent.succeed(*await agent.orders(2))
        await agent.fail((await agent.orders())[0])
        async with core.database.cold() as connection:
            before = await connection.fetch("select * from tree_part order by tree, level, first")
            await connection.execute("truncate tree_part")
            text = dict(files())["0014_tree_parts"]
            await connection.execute(text[text.index("insert into tree_part") : text.index("drop index")])
            assert await connection.fetch("select * from tree_part order by tree, level, first") == before
    assert len(before) > 4
