"""Why the figures of a database would not count: it could lose what it acknowledged."""

from __future__ import annotations

import asyncpg

from headway.errors import ConfigError

SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")
HOT_TABLES = ("task", "task_history")

# A partition is a table of its own and can be unlogged by itself. `remote_write`, `remote_apply` and `local` of
# synchronous_commit all wait for the local disk; only `off` does not.
_UNLOGGED = """
    select c.relname
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'headway' and c.relpersistence <> 'p' and c.relkind in ('r', 'p')
      and (c.relname = any($1)
           or exists (select from pg_inherits i join pg_class p on p.oid = i.inhparent
                      where i.inhrelid = c.oid and p.relname = any($1)))
    order by c.relname
"""
_SETTINGS = """
    select name, setting from pg_settings where name = any($1) and setting = 'off'
    union all
    select split_part(setting, '=', 1), 'off for ' || coalesce(d.datname, 'a role')
    from pg_db_role_setting s left join pg_database d on d.oid = s.setdatabase, unnest(setconfig) as setting
    where split_part(setting, '=', 1) = any($1) and split_part(setting, '=', 2) = 'off'
    order by 1
"""


async def reasons(connection: asyncpg.Connection) -> list[str]:
    """Everything that could lose an acknowledged task, in words; empty when nothing could."""
    found = [f"{row[0]} is {row[1]}" for row in await connection.fetch(_SETTINGS, list(SETTINGS))]
    found += [f"table {row[0]} is unlogged" for row in await connection.fetch(_UNLOGGED, list(HOT_TABLES))]
    return found


async def require(connection: asyncpg.Connection) -> None:
    found = await reasons(connection)
    if found:
        raise ConfigError(
            f"no figures: {', '.join(found)}",
            hint="a queue that may lose acknowledged tasks is easily quick; turn these on and run again",
        )
