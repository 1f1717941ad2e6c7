"""The wall behind the wall (A7): what is told whose wish it is checks it again, whatever the routes checked before it.

tests/e2e/test_walls.py walks the routes; with one of the two checks gone it finds the other.
"""

from __future__ import annotations

import pytest

from headway.domain.lifecycle import State
from headway.errors import HeadwayError, NotFound
from tests.support.engine import ScriptedAgent, engine, function, submit
from tests.support.ordering import tenant


async def test_what_steers_a_task_does_not_find_one_of_another_tenant(dsn):
    async with engine(dsn) as core:
        stranger = await tenant(core, "stranger")
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        await agent.start(*await agent.orders())
        for wish in (
            core.steering.pause(task, stranger),
            core.steering.resume(task, stranger),
            core.steering.signal(task, stranger, "USR1"),
            core.changing.change(task, stranger, {"input": 2}),
        ):
            with pytest.raises(NotFound):
                await wish
        async with core.database.cold() as connection:
            assert await connection.fetchval("select hold_at is null from task where id = $1", task)
            assert await connection.fetchval("select count(*) from control") == 0


async def test_a_dead_letter_of_another_tenant_is_neither_sent_again_nor_purged(dsn):
    async with engine(dsn) as core:
        stranger = await tenant(core, "stranger")
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(attempts=1))).ids[0]
        await agent.fail(*await agent.orders())
        assert await core.actions.dead_ids(stranger, ids=[task], fingerprint=None, name=None) == []
        assert await core.actions.revive([task], stranger, None) == []
        assert await core.actions.purge([task], stranger) == []
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(*) from dead_letter where id = $1", task) == 1
        assert await core.actions.revive([task], 1, None) == [task]
        assert [order.id for order in await agent.orders()] == [task]


async def test_a_task_cannot_be_waited_for_by_another_tenant(dsn):
    async with engine(dsn) as core:
        stranger = await tenant(core, "stranger")
        task = (await submit(core, function())).ids[0]
        with pytest.raises(HeadwayError, match=str(task)):
            await submit(core, function(after=[str(task)]), tenant=stranger)
        assert (await submit(core, function(after=[str(task)]))).state == State.BLOCKED


@pytest.mark.parametrize("limits", [{}, {"rate_per_hour": 1, "burst": 1}], ids=["free", "at their limit"])
async def test_one_key_of_two_tenants_is_two_tasks(dsn, limits):
    async with engine(dsn) as core:
        first, second = [await tenant(core, name, isolation="none", **limits) for name in ("first", "second")]
        spec = function(idempotency_key="k", input=1)
        made = {number: (await submit(core, spec, tenant=number)).ids for number in (first, second)}
        assert made[first] != made[second]
        for number in (first, second):
            assert (await submit(core, spec, tenant=number)).ids == made[number]
