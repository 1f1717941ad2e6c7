"""What `explain` gathers of a task that was handed out (E8)."""

from __future__ import annotations

from headway.store.queries import query
from tests.support.engine import ScriptedAgent, engine, eventually, function, submit


async def explanation(core, task):
    async with core.database.cold() as connection:
        row = (await connection.fetch(query("read.one"), [task], None))[0]
    return await core.explaining.explain(row)


async def test_a_task_on_a_node_that_stopped_answering_is_not_said_to_run(dsn):
    async with engine(dsn, fence_s=0.3) as core:
        agent = await ScriptedAgent(core, "big-1").join()
        task = (await submit(core, function())).ids[0]
        await agent.start(*await agent.orders())
        await agent.say(heartbeat=True)

        async def silence():
            return (found := await explanation(core, task)).reasons and found

        found = await eventually(silence)
        assert [reason.code for reason in found.reasons] == ["silent_node"]
        assert found.summary.startswith("node big-1 has not answered for ")
        assert found.reasons[0].remedy == "it answers again, or is lost after 300 s and another runs the task"


async def test_a_task_that_waits_to_run_again_tells_how_long_it_ran(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(attempts=2, retry={"interval": 1000}))).ids[0]
        await agent.fail((await agent.orders())[0])
        async with core.database.cold() as connection:
            await connection.execute("update attempt set started_at = ended_at - interval '30 seconds' where task = $1", task)
        found = await explanation(core, task)
        assert (found.state, found.spent["in earlier attempts"]) == ("scheduled", 30.0)
