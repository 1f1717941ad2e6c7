"""Schedules of a test: applied as a client would, made due at will, and what became of their firings."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from headway.control.core import Core
from headway.domain.schedule import Scheduled
from headway.policy.firing import Fate
from tests.support.engine import function
from tests.support.waiting import eventually

HOUR = datetime.timedelta(hours=1)


async def apply(core: Core, name: str = "s", *, tenant: int = 1, **fields: Any) -> str:
    fields = {"schedule": 3600, "task": function(), **fields}
    if "tasks" in fields:
        del fields["task"]
    body = msgspec.json.encode({"name": name, **fields})
    return (await core.schedules.apply(tenant, [msgspec.json.decode(body, type=Scheduled)]))[0].change


async def fetch(core: Core, sql: str, *values: Any) -> list[Any]:
    async with core.database.cold() as connection:
        rows: list[Any] = await connection.fetch(sql, *values)
    return rows


async def firings(core: Core, name: str = "s") -> list[Any]:
    return await fetch(core, "select f.* from firing f join schedule s on s.id = f.schedule where s.name = $1 order by at", name)


async def fates(core: Core, name: str = "s") -> list[Fate]:
    return [Fate(row["state"]) for row in await firings(core, name)]


async def make_due(core: Core, name: str = "s") -> None:
    """The next firing of an interval is now."""
    await fetch(core, "update schedule set next_at = t, due_at = t, anchor = t from clock_timestamp() as t where name = $1", name)
    core.bus.scheduled()


async def due_without_start(core: Core) -> None:
    """As make_due, for schedules that were applied with a start in the future: all of them."""
    await fetch(
        core,
        "update schedule set next_at = t, due_at = t, anchor = t, spec = (spec::jsonb - 'start')::text from clock_timestamp() as t",
    )
    core.bus.scheduled()


async def has_fired(core: Core, count: int, name: str = "s") -> list[Any]:
    async def enough() -> list[Any] | None:
        rows = await firings(core, name)
        return rows if len(rows) >= count else None

    found: list[Any] = await eventually(enough)
    return found
