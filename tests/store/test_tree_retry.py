"""Trying a tree again runs what failed and what was skipped behind it, once, under the same ids; cancelling ends all of it (C5 H7)."""

from __future__ import annotations

import asyncio

import pytest

from headway.api.tree_views import tree_view
from headway.control import tree_actions
from headway.control.core import Core
from headway.domain.lifecycle import State
from headway.errors import Conflict, NotFound
from headway.store.queries import query
from tests.store.test_tree_levels import agrees, diamond, left, submit_strict, tree_state
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually


async def states(core: Core, ids: list[int]) -> list[str]:
    """Where the tasks are; the planner may have given those that are ready to the node already."""
    words = [State(await state_of(core, task) or 0).word for task in ids]
    return ["ready" if word == "leased" else word for word in words]


async def test_only_the_failed_part_runs_again(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(core, *diamond(), function(name="aside"), tree="d")
        for order in await agent.orders(2):
            await agent.succeed(order)
        one, two = sorted(await agent.orders(2), key=lambda order: order.id)
        await agent.succeed(two)
        await agent.fail(one)
        assert await states(core, receipt.ids) == ["succeeded", "failed", "succeeded", "skipped", "succeeded"]
        assert await core.trees.retry(receipt.tree or 0, 1) == 2
        assert await states(core, receipt.ids) == ["succeeded", "ready", "succeeded", "blocked", "succeeded"]
        assert await agrees(core, receipt.tree)
        [again] = await agent.orders()
        assert (again.id, again.attempt) == (one.id, one.attempt + 1)
        await agent.succeed(again)
        await agent.succeed(*await agent.orders())
        assert await tree_state(core, receipt.tree) == "succeeded"
        assert await agrees(core, receipt.tree)
        async with core.database.cold() as connection:
            kept = await connection.fetch("select attempt, exit_code from attempt where task = $1", one.id)
        assert [tuple(row) for row in kept] == [(1, 1)]


async def test_a_dead_letter_that_somebody_purges_in_the_same_moment_is_left_out_and_counted_once(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(core, function(name="one"), function(name="two"), tree="t")
        for order in await agent.orders(2):
            await agent.fail(order)
        async with core.database.hot() as connection, connection.transaction():
            await connection.fetch(query("read.purge"), receipt.ids[:1], None)
            await connection.execute("update tree_level set failed = failed - 1, cancelled = cancelled + 1 where tree = $1", receipt.tree)
            retrying = asyncio.create_task(core.trees.retry(receipt.tree or 0, None))
            await eventually(lambda: somebody_waits_for_a_lock(core))
        assert await retrying == 1
        assert await states(core, receipt.ids) == ["cancelled", "ready"]
        assert await agrees(core, receipt.tree)


async def somebody_waits_for_a_lock(core: Core) -> bool:
    async with core.database.cold() as connection:
        waiting = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        return bool(await connection.fetch(waiting))


async def test_a_late_report_of_the_failed_attempt_changes_nothing(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, function(name="one"), tree="t")
        [order] = await agent.orders()
        await agent.fail(order)
        await core.trees.retry(receipt.tree or 0, None)
        await agent.succeed(order)
        assert await states(core, [order.id]) == ["ready"]
        assert await left(core, receipt.tree) == [1]


async def test_two_people_who_try_at_once_run_it_once(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, *diamond(), tree="t")
        await agent.fail((await agent.orders())[0])
        outcomes = await asyncio.gather(*(core.trees.retry(receipt.tree or 0, 1) for _ in range(4)), return_exceptions=True)
        assert sorted(str(type(one).__name__) for one in outcomes) == ["Conflict", "Conflict", "Conflict", "int"]
        assert await agrees(core, receipt.tree)


async def test_a_tree_that_succeeded_or_is_not_there_cannot_be_tried_again(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, function(name="one"), tree="t")
        await agent.succeed(*await agent.orders())
        with pytest.raises(Conflict, match="nothing of tree"):
            await core.trees.retry(receipt.tree or 0, 1)
        with pytest.raises(NotFound):
            await core.trees.retry(receipt.tree or 0, 2)
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(*) from task") == 0


async def test_what_ran_because_of_the_failure_is_not_run_again_and_what_was_spared_stays_so(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(
            core,
            function(name="work"),
            function(name="clean up", after=[{"task": "work", "when": "done"}]),
            function(name="alarm", after=[{"task": "work", "when": "failed"}]),
            function(name="undo", after=[{"task": "clean up", "when": "failed"}]),
            tree="t",
        )
        await agent.fail((await agent.orders())[0])
        await agent.succeed(*await agent.orders(2))
        assert await states(core, receipt.ids) == ["failed", "succeeded", "succeeded", "skipped"]
        await core.trees.retry(receipt.tree or 0, 1)
        assert await states(core, receipt.ids) == ["ready", "succeeded", "succeeded", "skipped"]
        await agent.succeed(*await agent.orders())
        assert await tree_state(core, receipt.tree) == "succeeded"


async def test_a_cancelled_tree_goes_on_where_it_was(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, *diamond(), tree="t")
        await agent.succeed(*await agent.orders())
        orders = await agent.orders(2)
        await core.trees.cancel(receipt.tree or 0)
        assert await state_of(core, receipt.ids[3]) == State.CANCELLED
        reply = await agent.say(held=[(order.id, order.attempt) for order in orders], heartbeat=True)
        assert {cancel.id for cancel in reply.cancels} == {order.id for order in orders}
        for order in orders:
            await agent.fail(order)
        assert await tree_state(core, receipt.tree) == "cancelled"
        assert await core.trees.retry(receipt.tree or 0, 1) == 3
        again = await agent.orders(2)
        await agent.succeed(*again)
        await agent.succeed(*await agent.orders())
        assert await tree_state(core, receipt.tree) == "succeeded"
        assert await agrees(core, receipt.tree)


async def test_a_tree_that_was_cancelled_after_a_failure_comes_back_whole_and_a_task_cancelled_alone_does_not(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, *diamond(), tree="t")
        await agent.succeed(*await agent.orders())
        left, right = await agent.orders(2)
        await agent.fail(left)
        await core.trees.cancel(receipt.tree or 0)
        await agent.fail(right)
        assert sorted(await states(core, receipt.ids)) == ["cancelled", "failed", "skipped", "succeeded"]
        assert await core.trees.retry(receipt.tree or 0, 1) == 3
        left, right = await agent.orders(2)
        await agent.fail(left)
        await core.actions.cancel([right.id])
        await agent.fail(right)
        assert await core.trees.retry(receipt.tree or 0, 1) == 1, "nobody wants the other"
        await agent.succeed(*await agent.orders())
        assert await tree_state(core, receipt.tree) == "cancelled", "the last was skipped"
        assert await agrees(core, receipt.tree)


async def test_a_strict_tree_starts_over_at_the_level_that_failed(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit_strict(
            core,
            function(name="a"),
            function(name="b"),
            function(name="after a", after=["a"]),
            function(name="after b", after=["b"]),
            function(name="root", after=["after a", "after b"]),
        )
        a, b = sorted(await agent.orders(2), key=lambda order: order.id)
        await agent.fail(a)
        await agent.succeed(b)
        [second] = await agent.orders()
        await agent.fail(second)
        assert await states(core, receipt.ids) == ["failed", "succeeded", "skipped", "failed", "skipped"]
        await core.trees.retry(receipt.tree or 0, 1)
        assert await states(core, receipt.ids) == ["ready", "succeeded", "blocked", "blocked", "blocked"]
        await agent.succeed(*await agent.orders())
        await agent.succeed(*await agent.orders(2))
        await agent.succeed(*await agent.orders())
        assert await tree_state(core, receipt.tree) == "succeeded"


@pytest.mark.parametrize("whole", [True, False])
async def test_what_had_counted_a_failure_waits_again_for_what_is_tried_again(dsn, whole):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(
            core,
            function(name="a"),
            function(name="b"),
            function(name="c", after=[{"task": "a", "when": "done"}, "b"]),
            function(name="alarm", after=[{"task": "a", "when": "failed"}, "b"]),
            tree="t",
        )
        a, b = sorted(await agent.orders(2), key=lambda order: order.id)
        await agent.fail(a)
        if whole:
            assert await core.trees.retry(receipt.tree or 0, 1) == 1
        else:
            await core.actions.revive([a.id], None, None)
        await agent.succeed(*await agent.orders())
        assert await states(core, receipt.ids) == ["succeeded", "ready", "blocked", "skipped"]
        await agent.succeed(b)
        assert [order.id for order in await agent.orders()] == [receipt.ids[2]]
        assert await agrees(core, receipt.tree)


async def test_an_item_of_a_for_each_is_tried_again_and_the_whole_goes_on(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(core, function(name="work", for_each=[1, 2]), function(after=["work"]), tree="t")
        one, two = await agent.orders(2)
        await agent.fail(one)
        await agent.succeed(two, result=b"2")

        async def skipped() -> bool:
            return await state_of(core, receipt.ids[1]) == State.SKIPPED

        await eventually(skipped)
        assert await core.trees.retry(receipt.tree or 0, 1) == 3
        await agent.succeed(*await agent.orders(), result=b"1")
        [last] = await agent.orders()
        assert last.id == receipt.ids[1]
        async with core.database.cold() as connection:
            assert await connection.fetchval("select result from task_history where id = $1", receipt.ids[0]) == b"[1,2]"
        await agent.succeed(last)
        assert await agrees(core, receipt.tree)


async def test_a_for_each_over_a_wrong_result_can_be_sent_again_as_a_dead_letter(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, function(name="list"), function(name="work", for_each={"result_of": "list"}), tree="t")
        await agent.succeed(*await agent.orders(), result=b"7")

        async def failed() -> bool:
            return await state_of(core, receipt.ids[1]) == State.FAILED

        await eventually(failed)
        await core.actions.revive([receipt.ids[1]], None, None)
        await eventually(failed)
        assert await agrees(core, receipt.tree)


async def test_a_cancelling_that_its_server_did_not_finish_is_finished_by_another(dsn, monkeypatch):
    monkeypatch.setattr(tree_actions, "LEFT_S", 0.0)
    async with engine(dsn) as core:
        receipt = await submit(core, *(function(name=f"t{n}") for n in range(5)), tree="t")

        async def dies(tree: int) -> bool:
            raise ConnectionResetError("the server is gone")

        with monkeypatch.context() as patch:
            patch.setattr(core.trees, "_cancel_once", dies)
            with pytest.raises(ConnectionResetError):
                await core.trees.cancel(receipt.tree or 0)
        assert await left(core, receipt.tree) == [5]
        async with engine(dsn, holder="other") as other:
            assert await other.trees.run_once() == 1
            assert await other.trees.run_once() == 0
        assert await tree_state(core, receipt.tree) == "cancelled"


async def test_a_large_tree_is_cancelled_whole_while_it_runs(dsn, monkeypatch):
    monkeypatch.setattr(tree_actions, "CHUNK", 50)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=4).join()
        tasks = [function(name=f"leaf{i}") for i in range(300)]
        tasks += [function(name=f"join{i}", after=[f"leaf{j}" for j in range(i, 300, 10)]) for i in range(10)]
        receipt = await submit(core, *tasks, tree="t")
        orders = await agent.orders(4)
        await core.trees.cancel(receipt.tree or 0)
        for order in orders:
            await agent.fail(order)
        view = await tree_view(core, receipt.tree or 0, None)
        assert (view.state, view.left) == ("cancelled", 0)
        assert sum(level.cancelled for level in view.levels) == 310
        assert await agrees(core, receipt.tree)
