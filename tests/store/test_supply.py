"""A node is given more than runs at once only while it turns over quickly, and of what the planner knows nothing is gone (E1 L1)."""

from __future__ import annotations

import math
import time

import pytest

from headway.control.core import Core
from headway.domain.lifecycle import State
from headway.policy.pace import Pace
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import nothing_comes, tenant
from tests.support.waiting import eventually


async def test_an_urgent_task_is_not_handed_to_a_full_node_for_what_ended_there_long_ago(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1.0).join()
        whole = {"cpus": 1.0}
        await submit(core, function(resources=whole, preemptible=False))
        await agent.start(*await agent.orders())
        core.planner.supply.paces[agent.id] = Pace(rate=1000.0, last=time.monotonic() - 10.0)
        core.planner.rooms[agent.id].ahead = 20
        core.planner.rooms.gained(agent.id)
        [urgent] = (await submit(core, function(resources=whole, category="urgent"))).ids
        assert await nothing_comes(agent)
        assert await state_of(core, urgent) == State.READY, "whoever makes room for it looks at what waits"


async def test_what_a_node_gives_back_does_not_count_as_finished(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=2).join()
        await eventually(lambda: _knows(core, agent.id))
        core.planner.supply.paces[agent.id] = Pace(rate=1000.0, horizon_s=0.1, last=math.inf)  # so fast that it is given all of them
        core.planner.rooms[agent.id].ahead = 100
        await submit(core, *[function() for _ in range(50)])
        orders = await agent.orders(50)
        await agent.say(returned=[(o.id, o.attempt) for o in orders[4:]])
        room = core.planner.rooms[agent.id]
        assert (room.held, room.ahead) == (4, 0)
        assert (await agent.say(wait_s=0.2)).orders == []


async def _knows(core: Core, node: int) -> bool:
    return node in core.planner.rooms


async def test_what_was_cancelled_behind_a_limit_does_not_stay_in_the_planners_books(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tries it, so nobody finds out; and it would press everybody else."""
    monkeypatch.setattr("headway.control.planner.RESCAN_S", 0.05)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        limited = await tenant(core, "limited", max_running=1)
        first, *others = (await submit(core, *[function()] * 4, tenant=limited)).ids
        [order] = await agent.orders()
        assert order.id == first
        known = core.planner.board.heads
        await eventually(lambda: sum(map(len, known.values())) == 3)
        await core.actions.cancel(others)
        await eventually(lambda: core.planner.wake.set() or not any(map(len, known.values())))
        (later,) = (await submit(core, function(), tenant=limited)).ids
        await agent.succeed(order)
        [order] = await agent.orders()
        assert order.id == later
