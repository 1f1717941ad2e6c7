"""One name, one machine: whose tasks a registration takes (I1 F2)."""

from __future__ import annotations

import pytest

from headway.errors import Conflict
from tests.support.engine import ScriptedAgent, engine, submit
from tests.support.waiting import eventually


async def test_a_second_machine_does_not_take_the_tasks_of_a_living_one_with_its_name(dsn):
    async with engine(dsn) as core:
        first = await ScriptedAgent(core, machine="a").join()
        await submit(core, {"command": ["true"]})
        (order,) = await first.orders()
        with pytest.raises(Conflict, match="lives on another machine"):
            await ScriptedAgent(core, machine="b").join()
        assert not (await first.say(heartbeat=True, held=[(order.id, order.attempt)])).lost


async def test_the_same_machine_comes_back_at_once_under_a_new_boot(dsn):
    async with engine(dsn) as core:
        first = await ScriptedAgent(core, machine="a").join()
        again = await ScriptedAgent(core, machine="a").join()
        assert again.id == first.id
        assert (await first.say(heartbeat=True, held=[])).lost


async def test_another_machine_may_have_the_name_once_the_first_is_lost(dsn):
    async with engine(dsn, lost_s=0.6, heartbeat_s=0.1, fence_s=0.3) as core:
        first = await ScriptedAgent(core, machine="a").join()

        async def joined() -> int | None:
            try:
                return (await ScriptedAgent(core, machine="b").join()).id
            except Conflict:
                return None

        assert await eventually(joined) == first.id
