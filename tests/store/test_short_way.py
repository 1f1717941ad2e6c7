"""What cannot go anyway keeps nobody from the short way: a paused queue, a tenant at its quota (L2 F5 E6)."""

from __future__ import annotations

from typing import Any

from headway.control.core import Core
from headway.domain.lifecycle import State
from headway.domain.queues import Queue
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import tenant
from tests.support.waiting import eventually


async def taken_the_short_way(core: Core, agent: ScriptedAgent, **fields: Any) -> bool:
    """Whether one of twenty tasks was leased by the commit that stored it: now and then the planner is about to look for tasks itself."""
    for _ in range(20):
        receipt = await submit(core, function(**fields))
        await agent.succeed(*await agent.orders())
        if receipt.state == State.LEASED:
            return True
    return False


async def waits(core: Core) -> bool:
    return bool(core.planner.board.lanes) and not core.planner.board.hungry


async def test_a_task_in_a_paused_queue_keeps_nobody_from_the_short_way(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await core.queues.add(Queue("shut", paused=True))
        [held] = (await submit(core, function(queue="shut"))).ids
        await eventually(lambda: waits(core))
        assert await taken_the_short_way(core, agent)
        assert (await submit(core, function(queue="shut"))).state == State.READY
        assert await state_of(core, held) == State.READY
        await core.queues.change("shut", paused=False)
        assert held in {order.id for order in await agent.orders(2)}


async def test_a_tenant_at_its_quota_keeps_nobody_from_the_short_way(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        small = {"resources": {"cpus": 0.1}}
        bounded = await tenant(core, "bounded", max_running=1)
        [runs] = (await submit(core, function(**small), tenant=bounded)).ids
        [order] = await agent.orders()
        assert order.id == runs
        [waiting] = (await submit(core, function(**small), tenant=bounded)).ids
        await eventually(lambda: waits(core))
        assert await taken_the_short_way(core, agent, **small)
        assert await state_of(core, waiting) == State.READY
        await agent.succeed(order)
        [order] = await agent.orders()
        assert order.id == waiting, "the end that frees its quota lets it go"
