"""A task that no node could run any more ends as failed with that reason, and its client is told (G4)."""

from __future__ import annotations

import msgspec

from headway.control.core import Core
from headway.control.impossible import PART_S
from headway.domain.lifecycle import State
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually

LARGE = {"resources": {"cpus": 4, "memory": "64MiB"}, "preemptible": False}
SMALL = {"resources": {"cpus": 0.5, "memory": "64MiB"}}


async def left_waiting(core: Core, *specs: dict) -> tuple[ScriptedAgent, ScriptedAgent, list[int]]:
    """A large node is busy, and these wait behind what it does; a small one is there too."""
    large = await ScriptedAgent(core, "large", cpus=4.0).join()
    small = await ScriptedAgent(core, "small", cpus=1.0).join()
    await submit(core, function(**LARGE))
    [held] = await large.orders()
    await large.start(held)
    ids = (await submit(core, *specs)).ids
    return large, small, ids


async def leave(core: Core, agent: ScriptedAgent) -> None:
    async with core.database.cold() as connection:
        await connection.execute(query("node.leave"), agent.id, agent.boot)
    await core.fleet.refresh()


async def error_of(core: Core, task: int) -> ErrorInfo:
    async with core.database.cold() as connection:
        row = await connection.fetchrow(query("read.one"), [task], None)
    return msgspec.json.decode(row["error"], type=ErrorInfo)


async def test_it_fails_with_the_reason_and_what_wanted_that_goes_on(dsn):
    async with engine(dsn, impossible_s=0.1) as core:
        large, small, [big, on_failure, behind] = await left_waiting(
            core,
            function(name="big", **LARGE),
            function(after=[{"task": "big", "when": "failed"}], **SMALL),
            function(after=["big"], **SMALL),
        )
        await leave(core, large)

        async def ended() -> bool:
            await small.say(heartbeat=True)
            return await state_of(core, big) == State.FAILED

        await eventually(ended)
        error = await error_of(core, big)
        assert error.type == "UnsatisfiableResources"
        assert "asks for 4 cpus" in error.message
        assert "the largest of 1 nodes (small) has 1 cpus" in error.message
        [order] = await small.orders()
        assert order.id == on_failure
        assert await state_of(core, behind) == State.SKIPPED
        async with core.database.cold() as connection:
            told = await connection.fetchval("select count(*) from event where kind = 'task.failed' and $1 = any (tasks)", big)
        assert told == 1


async def test_a_dead_letter_of_it_runs_when_a_node_is_there_again(dsn):
    async with engine(dsn, impossible_s=0.1) as core:
        large, _, [big] = await left_waiting(core, function(**LARGE))
        await leave(core, large)
        await eventually(lambda: _is(core, big, State.FAILED))
        again = await ScriptedAgent(core, "larger", cpus=8.0).join()
        await core.actions.revive([big], 1, None)
        got: set[int] = set()
        while big not in got:  # what the node that left had at work may come too
            got |= {order.id for order in await again.orders()}


async def test_while_a_node_may_come_back_it_waits(dsn):
    """Lost nodes may come back, a restart takes its time, and a fleet without any node is not judged."""
    async with engine(dsn, impossible_s=300.0) as core:
        large, small, [big] = await left_waiting(core, function(**LARGE))
        await leave(core, large)
        await core.impossible.run_once()
        assert core.impossible._since, "it is seen"
        async with core.database.cold() as connection:
            await connection.execute("update node set state = 1 where id = $1", large.id)
        await core.fleet.refresh()
        core.impossible.after_s = 0.001  # not before: the duty itself may look at any moment
        await core.impossible.run_once()
        assert not core.impossible._since
        await leave(core, large)
        await leave(core, small)
        await core.impossible.run_once()
        assert await state_of(core, big) == State.READY


async def test_very_many_end_in_parts(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.impossible.CHUNK", 7)
    async with engine(dsn, impossible_s=300.0) as core:
        large, _, ids = await left_waiting(core, *[function(**LARGE) for _ in range(30)])
        await leave(core, large)
        await core.impossible.run_once()
        core.impossible._since = dict.fromkeys(core.impossible._since, -1e9)  # long ago: what is left must not begin to wait anew
        while await core.impossible.run_once() == PART_S:
            pass

        async def all_failed() -> bool:
            return {await state_of(core, task) for task in ids} == {State.FAILED}

        await eventually(all_failed)
        await eventually(lambda: _nothing_waits(core))


async def _is(core: Core, task: int, state: State) -> bool:
    return await state_of(core, task) == state


async def _nothing_waits(core: Core) -> bool:
    return not core.planner.waiting()


async def test_a_lost_node_that_an_administrator_removes_is_waited_for_no_longer(dsn):
    """A lost node may come back, so tasks wait for it for a day; one that will not can be removed. One that is up cannot."""
    async with engine(dsn, impossible_s=0.1) as core:
        large, small, [big] = await left_waiting(core, function(**LARGE))
        remove = query("node.remove")
        async with core.database.cold() as connection:
            assert await connection.fetchval(remove, large.id) is None, "it lives"
            await connection.execute("update node set state = 1 where id = $1", large.id)
            assert await connection.fetchval(remove, large.id) is None, "it answers for a task"
            await connection.execute("update task set node = $2 where node = $1", large.id, small.id)
            assert await connection.fetchval(remove, large.id) == large.id
        await core.fleet.refresh()

        async def ended() -> bool:
            await small.say(heartbeat=True)
            return await state_of(core, big) == State.FAILED

        await eventually(ended)
        assert (await error_of(core, big)).type == "UnsatisfiableResources"


async def test_tasks_of_a_shape_that_only_another_server_knows_are_judged_too(dsn):
    async with engine(dsn, holder="one") as one, engine(dsn, holder="two") as two:
        await eventually(lambda: one.planner.leading_epoch >= 0)
        [task] = (await submit(two, function(at="2099-01-01T00:00:00Z", **SMALL))).ids
        async with one.database.cold() as connection:
            row = await connection.fetchrow("select shape, start_by, cap_ms from task where id = $1", task)
        one.planner.heard_ready((1, row["shape"]), (row["start_by"], row["cap_ms"], task))
        assert await one.impossible.run_once() > 0
