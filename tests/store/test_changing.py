"""A waiting task is changed in place: a real core on a real database (F5)."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import msgspec
import pytest

from headway.control.core import Core
from headway.domain.lifecycle import State
from headway.domain.queues import Queue
from headway.errors import Conflict, InvalidInput, NotFound
from headway.store.queries import query
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import LONG, nothing_comes, tenant
from tests.support.waiting import eventually


async def row(core: Core, task: int) -> Any:
    async with core.database.cold() as connection:
        return await connection.fetchrow("select * from task where id = $1", task)


async def test_a_waiting_task_is_changed_in_place_and_keeps_its_fence(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function(input=1, **LONG))).ids[0]
        await core.changing.change(task, None, {"input": 2, "delay_tolerance": 0, "resources": "premium", "labels": {"a": "b"}})
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select t.*, s.resources from task t join shape s on s.id = t.shape where t.id = $1", task)
        assert (row["input"], row["attempt"], row["start_by"]) == (b"2", 0, row["eligible_at"])
        agent = await ScriptedAgent(core, cpus=1.9).join()
        assert await nothing_comes(agent), "two cpus do not fit: the new shape counts"
        big = await ScriptedAgent(core, "big", cpus=4).join()
        [order] = await big.orders()
        assert (order.id, order.attempt, order.input) == (task, 1, b"2")


async def test_a_task_whose_shape_changed_after_it_was_planned_is_not_leased(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=4).join()
        await core.queues.add(Queue("shut", paused=True))  # the planner itself hands nothing out
        task = (await submit(core, function(queue="shut"))).ids[0]
        async with core.database.cold() as connection:
            old, epoch = await connection.fetchval("select shape from task"), core.leader.epoch("planner")
            await core.changing.change(task, None, {"resources": "premium"})
            new = await connection.fetchval("select shape from task")
            for shape, leased in ((old, []), (new, [task])):
                rows = await connection.fetch(query("task.lease"), [task], [agent.id], epoch, [shape], [agent.id])
                assert [row["id"] for row in rows] == leased


async def test_only_a_waiting_task_of_the_callers_own_can_be_changed(dsn):
    async with engine(dsn) as core:
        other = await tenant(core, "other")
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        await agent.orders()
        with pytest.raises(Conflict, match="leased"):
            await core.changing.change(task, None, {"input": 2})
        with pytest.raises(NotFound):
            await core.changing.change(task, other, {"input": 2})
        with pytest.raises(InvalidInput):
            await core.changing.change(task, None, {"attempts": 0})


async def test_moving_the_time_of_a_task_makes_it_scheduled_or_ready(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function())).ids[0]
        await core.changing.change(task, None, {"at": 4_000_000_000})
        assert await state_of(core, task) == State.SCHEDULED
        await core.changing.change(task, None, {"at": 1})
        assert await state_of(core, task) == State.READY
        agent = await ScriptedAgent(core).join()
        assert [order.id for order in await agent.orders()] == [task]


async def test_many_changes_at_the_same_time_leave_one_of_them_whole(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function(**LONG))).ids[0]
        edits = [{"resources": tier, "input": tier} for tier in ("basic", "regular", "premium")] * 5
        results = await asyncio.gather(*(core.changing.change(task, None, edit) for edit in edits), return_exceptions=True)
        assert all(result is None or isinstance(result, Conflict) for result in results)
        async with core.database.cold() as connection:
            row = await connection.fetchrow(
                "select t.input, d.body from task t join definition d on d.id = t.definition where t.id = $1", task
            )
        assert msgspec.json.decode(row["input"]) == msgspec.json.decode(row["body"]).get("tier", "basic")


async def test_a_time_that_is_over_means_now_and_wins_nothing(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function(at=4_000_000_000, delay_tolerance="1m", max_wait="1h"))).ids
        before = core.clock.now()
        await core.changing.change(task, None, {"at": 1})
        found = await row(core, task)
        assert before <= found["eligible_at"] <= core.clock.now(), "the past would go before everybody's tasks"
        assert found["start_by"] == found["eligible_at"] + datetime.timedelta(minutes=1)
        await core.changing.change(task, None, {"at": "now"})
        assert (await row(core, task))["eligible_at"] == found["eligible_at"], "it could run since then, and has waited since then"
        with pytest.raises(InvalidInput, match="not a moment"):
            await core.changing.change(task, None, {"at": "soon"})


async def test_a_task_that_is_paused_before_a_node_has_it_can_be_changed_and_stays_paused(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function(input=1, **LONG))).ids
        await core.steering.pause(task, None)
        await core.changing.change(task, None, {"input": 2, "delay_tolerance": 0})
        assert await state_of(core, task) == State.PAUSED
        agent = await ScriptedAgent(core).join()
        assert await nothing_comes(agent)
        await core.steering.resume(task, None)
        [order] = await agent.orders()
        assert (order.id, order.input) == (task, b"2")
        await agent.start(order)
        with pytest.raises(Conflict, match="running"):
            await core.changing.change(task, None, {"input": 3})


async def test_a_for_each_that_is_changed_before_its_list_is_known_still_becomes_its_tasks(dsn):
    async with engine(dsn) as core:
        first, each = (await submit(core, function(name="a"), function(name="b", for_each={"result_of": "a"}, after=["a"]))).ids
        await core.changing.change(each, None, {"attempts": 3, "execution_cap": "1m"})
        agent = await ScriptedAgent(core).join()
        [order] = await agent.orders()
        assert order.id == first
        await agent.succeed(order, result=b"[1, 2]")
        made = await agent.orders(2)
        assert sorted(order.input for order in made) == [b"1", b"2"]
        async with core.database.cold() as connection:
            assert await connection.fetchval("select distinct cap_ms from task where id = $1", made[0].id) == 60_000
        with pytest.raises(Conflict, match="its tasks are there"):
            await core.changing.change(each, None, {"attempts": 4})


async def test_what_is_not_said_stays_as_it_was(dsn):
    async with engine(dsn) as core:
        _, then = (await submit(core, function(name="a"), function(name="b", after=["a"], with_results=True))).ids
        await core.changing.change(then, None, {"attempts": 3})
        agent = await ScriptedAgent(core).join()
        [order] = await agent.orders()
        await agent.succeed(order, result=b"7")
        [order] = await agent.orders()
        assert order.dependencies is not None, "it asked for the results of what it waited for"


async def test_a_change_is_checked_like_a_new_task(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function(**LONG))).ids
        with pytest.raises(InvalidInput, match="secret"):
            await core.changing.change(task, None, {"secrets": ["nobody-made-it"]})
        with pytest.raises(InvalidInput, match="there is no upload"):
            await core.changing.change(task, None, {"function": None, "executable": f"upload:{'0' * 64}/x.py"})


async def test_changing_something_else_neither_lengthens_a_limit_on_waiting_nor_warns_again(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function(max_wait="1h"))).ids
        async with core.database.cold() as connection:
            await connection.execute("update waiting_limit set warned = true")
            before = await connection.fetchrow("select * from waiting_limit")
            await core.changing.change(task, None, {"attempts": 3})
            assert await connection.fetchrow("select * from waiting_limit") == before


async def test_a_limit_that_is_changed_counts_from_when_the_task_could_run(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function(max_wait="1d"))).ids
        async with core.database.cold() as connection:
            await connection.execute("update task set eligible_at = clock_timestamp() - interval '2 hours'")
        await core.changing.change(task, None, {"max_wait": "1h"})

        async def is_over() -> bool:
            return await state_of(core, task) == State.EXPIRED

        await eventually(is_over)


async def test_a_promoted_task_that_is_changed_is_not_promoted_twice(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function(delay_tolerance="1h"))).ids
        async with core.database.cold() as connection:
            await connection.execute("update task set category = 0")  # as promotion does
        await core.changing.change(task, None, {"attempts": 3})
        assert (await row(core, task))["category"] == 0
