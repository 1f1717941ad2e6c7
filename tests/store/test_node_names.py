"""One name, one machine: whose tasks a registration takes (I1 F2), and what it changes of a node that is there (H1)."""

from __future__ import annotations

import msgspec
import pytest

from headway.domain.resources import Capacity
from headway.errors import Conflict, HeadwayError
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


async def test_a_node_that_offers_something_new_keeps_its_tasks_and_gets_what_needs_that(dsn):
    async with engine(dsn, holder="one") as one, engine(dsn, holder="two") as two:
        agent = await ScriptedAgent(one).join()
        await submit(one, {"command": ["true"]})
        (held,) = await agent.orders()
        needs = {"command": ["julia"], "resources": {"labels": {"interpreter/julia": "1"}}}
        with pytest.raises(HeadwayError, match="interpreter/julia"):
            await submit(one, needs)
        await agent.say(heartbeat=True, trouble="has a full disk")
        agent.capacity = with_label(agent.capacity, "interpreter/julia", "1")
        await agent.join()
        assert one.fleet.nodes[agent.id].trouble == "has a full disk"
        (waiting,) = (await eventually(lambda: submit(two, needs), away=(HeadwayError,))).ids
        assert not (await agent.say(heartbeat=True, held=[(held.id, held.attempt)])).lost
        await agent.succeed(held)
        (order,) = await agent.orders(known=[held])
        assert order.id == waiting


def with_label(capacity: Capacity, name: str, value: str) -> Capacity:
    return msgspec.structs.replace(capacity, labels={**capacity.labels, name: value})


async def test_one_that_goes_on_for_another_keeps_its_machine(dsn):
    async with engine(dsn) as core:
        first = await ScriptedAgent(core, machine="a").join()
        first.machine = ""  # its exchange side was started again: the same boot
        assert (await first.join()).id == first.id
        with pytest.raises(Conflict, match="lives on another machine"):
            await ScriptedAgent(core, machine="b").join()
