"""A task that ran out of memory is tried again in a larger tier (K2)."""

from __future__ import annotations

import msgspec

from headway.domain.define import define
from headway.domain.lifecycle import Outcome, State
from headway.domain.resources import TIERS
from headway.domain.spec import ResourcesSpec, TaskSpec
from headway.domain.task import decode
from headway.policy.tiers import larger
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually

AGAIN = {"attempts": 5, "retry": {"interval": 0, "jitter": 0}}

_DEFINITION = "select d.body from task_anywhere t join definition d on d.id = t.definition where t.id = $1"


async def _tier(core, task: int) -> tuple[str, int]:
    async with core.database.cold() as connection:
        body = await connection.fetchval(_DEFINITION, task)
    definition = decode(body)
    return definition.tier, definition.resources.memory


async def test_each_time_it_runs_out_of_memory_it_goes_one_tier_up(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(resources="basic", **AGAIN))).ids[0]
        for tier in ("regular", "premium", "premium"):
            (order,) = await agent.orders()
            await agent.fail(order, Outcome.OUT_OF_MEMORY)
            assert await _tier(core, task) == (tier, TIERS[tier].memory)
        (order,) = await agent.orders()
        await agent.succeed(order)

        async def succeeded() -> bool:
            return await state_of(core, task) == State.SUCCEEDED

        await eventually(succeeded)


async def test_other_failures_leave_the_tier_as_it_is(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(resources="basic", **AGAIN))).ids[0]
        (order,) = await agent.orders()
        await agent.fail(order, Outcome.ERROR)
        assert (await _tier(core, task))[0] == "basic"


async def test_a_tier_that_no_node_has_room_for_is_not_tried(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1.0).join()
        task = (await submit(core, function(resources="regular", **AGAIN))).ids[0]
        (order,) = await agent.orders()
        await agent.fail(order, Outcome.OUT_OF_MEMORY)
        assert (await _tier(core, task))[0] == "regular"
        assert len(await agent.orders()) == 1


def test_what_a_task_had_more_of_it_keeps():
    definition = define(TaskSpec(command=["x"], resources=msgspec.convert({"cpus": 8, "memory": "300MiB", "ports": 2}, ResourcesSpec)))
    found = larger(definition, TIERS)
    assert found is not None
    assert (found.resources.cpus_milli, found.resources.memory, found.resources.ports, found.tier) == (8000, 2**30, 2, "")
    assert larger(found, TIERS, most_memory=2**30) is None

