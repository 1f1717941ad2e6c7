"""A node is kept for a large task that small ones pass, and explain says so (E1 E5 E8)."""

from __future__ import annotations

from headway.domain.lifecycle import State
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import explained

SMALL = {"resources": {"cpus": 0.5, "memory": "64MiB"}, "delay_tolerance": "10m", "preemptible": False}
LARGE = {"resources": {"cpus": 2, "memory": "64MiB"}, "delay_tolerance": "1ms", "category": "delayable"}


async def passed_until_kept(core, agent, held, large: int) -> int:
    """One small task after another ends and the next takes its place, until a node is kept; how many did."""
    for turn in range(100):
        await agent.succeed(held.pop(0))
        await core.planner.run_once()
        await core.reserving.run_once()
        if core.planner.board.keeping.nodes:
            return turn + 1
        held += await agent.orders()
        assert await state_of(core, large) == State.READY
    raise AssertionError("nothing is kept")


async def test_a_task_that_needs_a_whole_node_is_not_passed_for_ever(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        waiting = (await submit(core, *[function(**SMALL) for _ in range(60)])).ids
        held = await agent.orders(4)
        await agent.start(*held)
        [large] = (await submit(core, function(**LARGE))).ids
        turns = await passed_until_kept(core, agent, held, large)
        assert turns <= 6, "those that passed it took as much as it asks for"
        await core.outlook.run_once()
        reason = (await explained(core, large)).reasons[0]
        assert "node node-1 is being kept free for it" in reason.text
        small = (await explained(core, waiting[-1])).reasons[0]
        assert f"is being kept free for task {large}" in small.text
        held += (await agent.say()).orders
        await agent.succeed(*held)
        began: list[int] = []
        while large not in began:
            held = await agent.orders()
            began += [order.id for order in held]
            await agent.succeed(*held)
        assert began.index(large) <= 4, "only what was planned before the node was kept, and is on its way"
        assert len(await agent.orders(4)) >= 4, "the small ones go on"
        assert not core.planner.board.keeping.nodes
