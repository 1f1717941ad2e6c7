"""Whether a database can be Headway's: what would fail strangely later is said before anything is made in it (L4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import asyncpg

from headway.errors import ConfigError
from headway.store.connecting import connect
from headway.store.queries import query
from headway.store.unreached import SESSION_MODE, SETTING, pooled

OLDEST = 150000
TRIES = 5  # others may come between two looks
SHOWN = 5
ENCODINGS = ("UTF8", "SQL_ASCII")  # the second takes every byte and looks at none
IN_UTF8 = "Headway needs UTF8: createdb --encoding=UTF8 --template=template0 NAME"
_ABOUT = query("session.about")
_BACKEND = query("session.backend")
_STRANGERS = query("session.strangers")
_DURABILITY = query("session.durability")
_CONNECTIONS = query("session.connections")


@dataclass(frozen=True)
class Doubt:
    """Headway works on such a database, but not as it should."""

    name: str
    found: str
    todo: str


async def refuse_unfit(connection: Any) -> None:
    """ConfigError when this database can never be ours."""
    about = await connection.fetchrow(_ABOUT)
    if about["number"] < OLDEST:
        raise ConfigError(f"PostgreSQL {about['version']} is too old", hint="Headway needs PostgreSQL 15 or newer")
    if about["encoding"] not in ENCODINGS and not about["used"]:  # who has begun with another goes on, and is told
        raise ConfigError(
            f"the database {about['name']!r} has the encoding {about['encoding']}, which cannot hold every name and every output",
            hint=IN_UTF8,
            where=SETTING,
        )


async def refuse_strangers(connection: Any) -> None:
    """ConfigError when somebody else has a schema of our name."""
    if found := [row["relname"] for row in await connection.fetch(_STRANGERS)]:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ConfigError(
            f"the schema `headway` of this database holds what is not Headway's: {', '.join(found[:SHOWN])}{more}",
            hint="Headway needs that name for itself: alter schema headway rename to ..., or another database",
            where=SETTING,
        )


async def refuse_pooler(connection: Any, dsn: str) -> None:
    """ConfigError behind a pooler that gives every transaction another session. Two clients of such a one meet in the same process: the one
    that was used last is lent first."""
    other = await connect(dsn, "headway", target="any")
    try:
        for _ in range(TRIES):
            async with connection.transaction():
                mine = await connection.fetchrow(_BACKEND)
            async with other.transaction():
                theirs = await other.fetchrow(_BACKEND)
            if mine == theirs:
                raise ConfigError(pooled(dsn), hint=SESSION_MODE, where=SETTING)
    except asyncpg.ConnectionDoesNotExistError as error:
        if "statement pooling" not in str(error):  # its words for a transaction in that mode
            raise
        raise ConfigError(pooled(dsn), hint=SESSION_MODE, where=SETTING) from error
    finally:
        other.terminate()


async def doubts(connection: Any, wanted: int) -> list[Doubt]:
    """What is wrong with it for a server that wants so many connections."""
    found = [Doubt(row["name"], "off", LOSSES[row["name"]]) for row in await connection.fetch(_DURABILITY)]
    about = await connection.fetchrow(_ABOUT)
    if about["encoding"] != "UTF8":
        found.append(Doubt("encoding", f"{about['encoding']}: some texts cannot be stored, or be looked for", IN_UTF8))
    row = await connection.fetchrow(_CONNECTIONS)
    limits = {
        f"role {row['role']}": (row["of_role"], f"alter role {row['role']} connection limit N"),
        "database": (row["of_database"], "alter database ... connection limit N"),
        "server": (row["of_server"], "raise max_connections"),
    }
    for who, (limit, todo) in limits.items():
        if 0 <= limit < wanted:
            doubt = f"the {who} allows {limit}, one server of Headway uses {wanted}"
            found.append(Doubt("connections", doubt, f"{todo}, or lower pool_size (HEADWAY_POOL_SIZE)"))
    return found


LOSSES = {
    "fsync": "turn fsync on: a power cut may lose or break everything",
    "full_page_writes": "turn full_page_writes on: a power cut may lose or break everything",
    "synchronous_commit": "turn it on: acknowledged tasks may be lost in a crash",
}
