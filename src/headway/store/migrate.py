"""Forward-only migrations, under an advisory lock, safe with many servers starting at once.

Each file in migrations/ runs once, in its own transaction, inside the schema `headway`; its hash is kept, so a file that was
changed after it ran is found out.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any

from headway.errors import ConfigError
from headway.logs import log
from headway.store import fitness
from headway.store.connecting import connect
from headway.store.queries import query
from headway.store.unreached import in_our_words

SCHEMA = "headway"
_LOCK = 0x4EAD_0001  # any constant: the same for every server
_OF_ANOTHER = query("event.of_another")
_RENUMBER = (query("event.renumber_told"), query("event.renumber"), query("event.renumber_sampled"))


def files() -> list[tuple[str, str]]:
    """(name, SQL) of every migration, in order."""
    folder = resources.files("headway.store") / "migrations"
    found = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return [(item.name.removesuffix(".sql"), item.read_text()) for item in found]


async def migrate(dsn: str) -> list[str]:
    """Bring the database up to date; returns the names applied."""
    with in_our_words(dsn):
        connection = await connect(dsn, "headway migrate")
        try:
            await fitness.refuse_pooler(connection, dsn)
            return await migrate_on(connection)
        finally:
            await connection.close()


async def migrate_on(connection: Any) -> list[str]:
    await fitness.refuse_unfit(connection)
    done: list[str] = []
    await connection.execute("select pg_advisory_lock($1)", _LOCK)
    try:
        # Even with "if not exists" PostgreSQL asks for the right to make one, which the owner of this one need not have.
        if not await connection.fetchval("select to_regnamespace($1) is not null", SCHEMA):
            await connection.execute(f"create schema {SCHEMA}")
        await fitness.refuse_strangers(connection)
        await connection.execute(
            f"create table if not exists {SCHEMA}.migration "
            "(name text primary key, hash text not null, applied_at timestamptz not null default clock_timestamp())"
        )
        applied = dict(await connection.fetch(f"select name, hash from {SCHEMA}.migration"))
        for name, sql in files():
            digest = hashlib.sha256(sql.encode()).hexdigest()
            if name in applied:
                if applied[name] != digest:
                    raise ConfigError(
                        f"migration {name} was changed after it ran on this database",
                        hint="migrations only go forward: write a new one",
                    )
                continue
            async with connection.transaction():
                await connection.execute(f"set local search_path = {SCHEMA}")
                await connection.execute(sql)
                await connection.execute(f"insert into {SCHEMA}.migration (name, hash) values ($1, $2)", name, digest)
            done.append(name)
        if newer := sorted(applied.keys() - {name for name, _ in files()}):
            log("database.newer", level="warning", migrations=",".join(newer), hint="a newer Headway has used it: upgrade this one too")
        await _adopt(connection)
    finally:
        await connection.execute("select pg_advisory_unlock($1)", _LOCK)
    return done


async def _adopt(connection: Any) -> None:
    """Events are ordered by numbers of transactions, which begin anew in another PostgreSQL. A dump that was restored there would
    tell nothing until it has counted as far, and then everything again."""
    async with connection.transaction():
        await connection.execute(f"set local search_path = {SCHEMA}")
        if await connection.fetchval(_OF_ANOTHER):
            # All at once: who read on between two parts would pass over the events of the second.
            log("database.numbering", level="warning", hint="its events come from another PostgreSQL: this may take minutes for millions")
            for statement in _RENUMBER:
                await connection.execute(statement)
            log("database.restored", hint="its events come from another PostgreSQL: they were numbered anew")


async def status(dsn: str) -> list[tuple[str, bool]]:
    """Every migration, those too that only a newer Headway knows, and whether this database has it."""
    with in_our_words(dsn):
        connection = await connect(dsn, "headway", target="any")
        try:
            there = await connection.fetchval("select to_regclass($1) is not null", f"{SCHEMA}.migration")
            applied = {row[0] for row in await connection.fetch(f"select name from {SCHEMA}.migration")} if there else set()
        finally:
            await connection.close()
    known = [name for name, _ in files()]
    return [(name, name in applied) for name in (*known, *sorted(applied.difference(known)))]
