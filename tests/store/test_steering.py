"""Pause, resume and signal against a real database: wishes that hold in every state and survive whoever dies (H7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headway.control.core import Core
from headway.domain.lifecycle import Outcome, State
from headway.errors import Conflict, InvalidInput, NotFound
from headway.store.queries import query
from headway.wire.exchange import Control, Notice
from tests.support.engine import ScriptedAgent, done, engine, function, state_of, submit
from tests.support.ordering import nothing_comes


async def controls(agent: ScriptedAgent, count: int = 1) -> list[Control]:
    """Poll until so many controls came."""
    got: list[Control] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            got += (await agent.say(wait_s=2.0)).controls
    return got


async def running(core: Core, agent: ScriptedAgent, **fields: Any) -> Any:
    """A task that its node has begun."""
    await submit(core, function(**fields))
    [order] = await agent.orders()
    await agent.start(order)
    return order


async def answer(agent: ScriptedAgent, control: Control, kind: str) -> None:
    await agent.say(notices=[Notice(control.id, control.attempt, kind, control.number)])


async def kinds(core: Core, task: int) -> list[str]:
    async with core.database.cold() as connection:
        rows = await connection.fetch("select kind from event where $1 = any (tasks) order by xid, seq", task)
    return [row["kind"] for row in rows]


async def test_a_running_task_is_paused_when_its_node_says_so_and_goes_on_when_resumed(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        number = await core.steering.pause(order.id, None)
        assert number is not None
        [control] = await controls(agent)
        assert (control.word, control.id, control.attempt) == ("pause", order.id, 1)
        assert await state_of(core, order.id) == State.RUNNING
        await answer(agent, control, "paused")
        assert await core.steering.answer(number, 5.0) == "paused"
        assert await state_of(core, order.id) == State.PAUSED
        await core.steering.resume(order.id, None)
        [control] = await controls(agent)
        assert control.word == "resume"
        await answer(agent, control, "resumed")
        assert await state_of(core, order.id) == State.RUNNING
        await agent.succeed(order)
        assert await state_of(core, order.id) == State.SUCCEEDED
        assert await kinds(core, order.id) == ["task.paused", "task.resumed", "task.succeeded"]


async def test_a_resume_that_is_said_twice_is_one(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        await core.steering.pause(order.id, None)
        [control] = await controls(agent)
        await answer(agent, control, "paused")
        assert await core.steering.resume(order.id, None) is not None
        assert await core.steering.resume(order.id, None) is None  # its node has not answered yet
        [control] = await controls(agent)
        await answer(agent, control, "resumed")
        assert await state_of(core, order.id) == State.RUNNING


async def test_a_pause_asked_before_the_node_has_gone_on_stops_it_again(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        await core.steering.pause(order.id, None)
        [control] = await controls(agent)
        await answer(agent, control, "paused")
        await core.steering.resume(order.id, None)
        assert await core.steering.pause(order.id, None) is not None  # the node has not said that it goes on
        going_on, again = await controls(agent, 2)
        assert (going_on.word, again.word) == ("resume", "pause")
        await answer(agent, going_on, "resumed")
        await answer(agent, again, "paused")
        assert await state_of(core, order.id) == State.PAUSED


async def test_a_control_is_repeated_by_whatever_server_the_node_talks_to(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        await core.steering.pause(order.id, None)
    async with engine(dsn, holder="another") as other:
        agent.core = other
        [control] = await controls(agent)
        assert control.word == "pause"
        await answer(agent, control, "paused")
        await answer(agent, control, "paused")  # a repeated report
        assert await state_of(other, order.id) == State.PAUSED
        assert await kinds(other, order.id) == ["task.paused"]


async def test_a_waiting_task_does_not_start_until_it_is_resumed(dsn: str) -> None:
    async with engine(dsn) as core:
        receipt = await submit(core, function(), function(at=4_000_000_000))
        ready, later = receipt.ids
        assert await core.steering.pause(ready, None) is None
        assert await core.steering.pause(later, None) is None
        assert await core.steering.pause(later, None) is None  # again changes nothing
        assert [await state_of(core, task) for task in (ready, later)] == [State.PAUSED, State.PAUSED]
        agent = await ScriptedAgent(core).join()
        [other] = (await submit(core, function())).ids
        [order] = await agent.orders()
        assert order.id == other
        await core.steering.resume(ready, None)
        await core.steering.resume(later, None)
        assert await state_of(core, later) == State.SCHEDULED
        [order] = await agent.orders()
        assert order.id == ready


async def test_a_task_that_waits_for_others_waits_for_the_person_who_paused_it_too(dsn: str) -> None:
    async with engine(dsn) as core:
        first, second = (await submit(core, function(name="first"), function(after=["first"]))).ids
        await core.steering.pause(second, None)
        agent = await ScriptedAgent(core).join()
        [order] = await agent.orders()
        assert order.id == first
        await agent.succeed(order)
        assert await state_of(core, second) == State.BLOCKED
        await core.steering.resume(second, None)
        [order] = await agent.orders()
        assert order.id == second


async def test_a_paused_task_whose_node_is_lost_stays_paused_and_uses_no_attempt(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        await core.steering.pause(order.id, None)
        [control] = await controls(agent)
        await answer(agent, control, "paused")
        again = await ScriptedAgent(core).join()  # the same node under a new boot: everything the old one held is gone
        assert await state_of(core, order.id) == State.PAUSED
        assert await core.steering.resume(order.id, None) is None
        [order] = await again.orders()
        assert order.attempt == 2
        await again.succeed(order)
        assert await state_of(core, order.id) == State.SUCCEEDED


async def test_an_order_given_back_under_a_wish_to_pause_leaves_the_task_paused(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await submit(core, function())
        [order] = await agent.orders()
        await core.steering.pause(order.id, None)
        [control] = await controls(agent)
        await agent.say(returned=[(order.id, order.attempt)], notices=[Notice(order.id, 1, "returned", control.number)])
        assert await state_of(core, order.id) == State.PAUSED
        await core.steering.resume(order.id, None)
        [order] = await agent.orders()
        assert order.attempt == 2


async def test_an_order_given_back_before_its_node_heard_of_the_cancelling_is_run_by_nobody(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task, behind = (await submit(core, function(name="a"), function(after=["a"]), tree="t")).ids
        [order] = await agent.orders()
        await core.actions.cancel([task])
        await agent.say(returned=[(order.id, order.attempt)])
        assert await state_of(core, task) == State.CANCELLED
        assert await state_of(core, behind) == State.SKIPPED
        assert await nothing_comes(agent)
        assert await kinds(core, task) == ["task.cancelled"]


async def test_a_paused_task_can_be_cancelled_on_a_node_and_off_it(dsn: str) -> None:
    async with engine(dsn) as core:
        [waiting] = (await submit(core, function())).ids
        await core.steering.pause(waiting, None)
        await core.actions.cancel([waiting])
        assert await state_of(core, waiting) == State.CANCELLED
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        await core.steering.pause(order.id, None)
        [control] = await controls(agent)
        await answer(agent, control, "paused")
        await core.actions.cancel([order.id])
        with pytest.raises(Conflict, match="being cancelled"):
            await core.steering.resume(order.id, None)
        assert (await agent.say(wait_s=30.0)).cancels[0].id == order.id
        await agent.fail(order, Outcome.CANCELLED)
        assert await state_of(core, order.id) == State.CANCELLED


async def test_what_a_cancelled_task_used_is_kept(dsn: str) -> None:
    """It was the only end of which nobody could look up what it had cost (B4)."""
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        await core.actions.cancel([order.id])
        await agent.say(finished=[done(order, outcome=Outcome.CANCELLED, exit_code=143, cpu_ms=1500, max_memory=2**20)])
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select state, cpu_ms, max_memory from task_history where id = $1", order.id)
        assert tuple(row) == (State.CANCELLED, 1500, 2**20)


async def test_a_node_cannot_speak_of_attempts_it_does_not_hold_nor_answer_for_another(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        stranger = await ScriptedAgent(core, "node-2").join()
        await core.steering.pause(order.id, None)
        [control] = await controls(agent)
        await answer(stranger, control, "paused")
        await stranger.say(notices=[Notice(order.id, 1, "cap_warning"), Notice(order.id, 1, "paused", 10**12)])
        assert await core.steering.answer(control.number, 0.0) is None, "its own node has not answered"
        await agent.say(notices=[Notice(order.id, 99, "paused", control.number)])
        assert await state_of(core, order.id) == State.RUNNING
        assert await kinds(core, order.id) == []


async def test_a_tenant_cannot_pause_the_task_of_another(dsn: str) -> None:
    async with engine(dsn) as core:
        [task] = (await submit(core, function())).ids
        for change in (core.steering.pause, core.steering.resume):
            with pytest.raises(NotFound):
                await change(task, 2)


async def test_a_signal_goes_to_the_node_and_one_that_has_a_command_of_its_own_is_refused(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        number = await core.steering.signal(order.id, None, "sigusr1")
        [control] = await controls(agent)
        assert (control.word, control.argument) == ("signal", "USR1")
        await answer(agent, control, "signalled")
        assert await core.steering.answer(number, 5.0) == "signalled"
        for name, hint in (("KILL", "cancel"), ("STOP", "pause"), ("nonsense", "USR1")):
            with pytest.raises(InvalidInput) as error:
                await core.steering.signal(order.id, None, name)
            assert hint in (error.value.hint or "")


async def test_the_cap_warning_and_the_kill_are_told_with_what_was_used_and_allowed(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent, execution_cap=2)
        await agent.say(notices=[Notice(order.id, 1, "cap_warning", text='{"allowed_s":2}')])
        await agent.fail(order, Outcome.CAP_EXCEEDED, "ran too long")
        assert await kinds(core, order.id) == ["task.cap_warning", "task.killed", "task.failed"]
        async with core.database.cold() as connection:
            data = await connection.fetchval("select data from event where kind = 'task.killed'")
        assert '"allowed":{"execution_cap_s":2.0}' in data
        assert '"used":{"wall_s"' in data




@pytest.mark.parametrize("children", [0, 2])
async def test_a_paused_parent_that_waits_for_subtasks_waits_for_its_person_too(dsn: str, children: int) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        await core.steering.pause(order.id, None)
        async with core.database.hot() as connection:
            row = await connection.fetchrow(query("subtask.suspend"), [order.id], [children], [1])
            blocked_on = await connection.fetchval("select blocked_on from task where id = $1", order.id)
        assert (row["state"], blocked_on) == ((State.BLOCKED, 3) if children else (State.PAUSED, 0))
        await core.steering.resume(order.id, None)
        # With a node there, what is ready may be leased before we look.
        assert await state_of(core, order.id) in ([State.BLOCKED] if children else [State.READY, State.LEASED])


async def test_what_was_asked_of_an_attempt_that_ended_is_abandoned(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await running(core, agent)
        number = await core.steering.pause(order.id, None)
        assert number is not None
        await agent.succeed(order)
        await core.dispatcher.clean()
        assert await core.steering.answer(number, 0.0) == "gone"
