"""A task stored through one server comes due on time though another one keeps the time (D1): it does not wait for the next look."""

from __future__ import annotations

import time

from headway.control import timekeeper
from tests.support.engine import engine, function, listening, submit
from tests.support.waiting import eventually


async def test_a_task_stored_by_another_server_comes_due_without_waiting_for_the_next_look(dsn, monkeypatch):
    monkeypatch.setattr(timekeeper, "LOOK_S", 3600.0)
    async with engine(dsn, holder="keeper") as keeper, engine(dsn, holder="other") as other:
        await eventually(lambda: _leads(keeper))
        await eventually(lambda: _knows_others(other))
        await eventually(lambda: listening(other, 2))
        receipt = await submit(other, function(at=time.time() + 0.5))

        async def ready() -> bool:
            async with other.database.cold() as connection:
                return await connection.fetchval("select state = 2 from task where id = $1", receipt.ids[0])

        await eventually(ready)


async def _leads(core) -> bool:
    return core.leader.leads("timekeeper")


async def _knows_others(core) -> bool:
    return core.notifier.others
