"""`for_each`: a task becomes many while its tree runs, once, and ends with their results (C1)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from headway.api.tree_views import tree_view
from headway.control.core import Core
from headway.control.taken import Taken
from headway.domain.lifecycle import Outcome, State
from headway.errors import InvalidInput
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually


async def result_of(core: Core, task: int) -> Any:
    async with core.database.cold() as connection:
        data = await connection.fetchval("select result from task_history where id = $1", task)
    return msgspec.json.decode(data) if data else None


async def names(core: Core, ids: list[int]) -> list[str]:
    async with core.database.cold() as connection:
        rows = await connection.fetch("select id, name from task_anywhere where id = any ($1::bigint[])", ids)
    return sorted(row["name"] for row in rows)


async def test_a_list_becomes_a_task_for_each_item_and_the_results_a_list(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(
            core, function(name="resize", for_each=[64, 256, {"w": 3}]), function(name="publish", after=["resize"]), tree="photos"
        )
        orders = await agent.orders(3)
        assert [msgspec.json.decode(order.input) for order in orders] == [64, 256, {"w": 3}]
        assert await names(core, [order.id for order in orders]) == ["resize[0]", "resize[1]", "resize[2]"]
        view = await tree_view(core, receipt.tree or 0, None)
        assert [(one.total, one.left) for one in view.levels] == [(4, 4), (1, 1)]
        for order in orders:
            await agent.succeed(order, result=b"%d" % order.id)
        [last] = await agent.orders()
        assert last.id == receipt.ids[1]
        assert await result_of(core, receipt.ids[0]) == [order.id for order in orders]
        await agent.succeed(last)
        view = await tree_view(core, receipt.tree or 0, None)
        assert (view.state, view.left, view.total) == ("succeeded", 0, 5)


async def test_the_result_of_a_dependency_decides_how_many_there_are(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(
            core, function(name="list"), function(name="work", for_each={"result_of": "list"}), function(after=["work"]), tree="t"
        )
        await agent.succeed(*await agent.orders(), result=b'["a", "b"]')
        orders = await agent.orders(2)
        assert [order.input for order in orders] == [b'"a"', b'"b"']
        await agent.succeed(*orders)
        assert [order.id for order in await agent.orders()] == receipt.ids[2:]


async def test_an_empty_list_ends_well_at_once(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, function(name="none", for_each=[]), function(after=["none"]), tree="t")
        assert [order.id for order in await agent.orders()] == receipt.ids[1:]
        assert await result_of(core, receipt.ids[0]) == []


async def test_a_result_that_is_no_list_fails_the_task_and_skips_what_waits_for_it(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(
            core, function(name="list"), function(name="work", for_each={"result_of": "list"}), function(after=["work"]), tree="t"
        )
        await agent.succeed(*await agent.orders(), result=b'{"no": "list"}')
        await eventually(lambda: ended(core, receipt.ids[2], State.SKIPPED))
        assert await state_of(core, receipt.ids[1]) == State.FAILED
        assert (await tree_view(core, receipt.tree or 0, None)).state == "failed"


async def ended(core: Core, task: int, state: State) -> bool:
    return await state_of(core, task) == state


async def test_an_item_that_fails_fails_the_whole_once_the_others_have_ended(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(
            core,
            function(name="work", for_each=[1, 2]),
            function(name="publish", after=["work"]),
            function(name="alarm", after=[{"task": "work", "when": "failed"}]),
            function(name="tidy", after=[{"task": "work", "when": "done"}]),
            tree="t",
        )
        one, two = await agent.orders(2)
        await agent.fail(one)
        assert await state_of(core, receipt.ids[0]) == State.BLOCKED  # nobody tidies up while an item is at work
        await agent.succeed(two)
        orders = await agent.orders(2)
        assert sorted(order.id for order in orders) == receipt.ids[2:]
        assert [await state_of(core, task) for task in receipt.ids[:2]] == [State.SKIPPED, State.SKIPPED]
        await agent.succeed(*orders)
        assert (await tree_view(core, receipt.tree or 0, None)).state == "failed"


async def test_items_that_were_cancelled_are_no_failure_of_the_whole(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(
            core, function(name="work", for_each=[1]), function(name="alarm", after=[{"task": "work", "when": "failed"}]), tree="t"
        )
        [order] = await agent.orders()
        await core.actions.cancel([order.id])
        await agent.fail(order, Outcome.CANCELLED)
        await eventually(lambda: ended(core, receipt.ids[0], State.SKIPPED))
        assert await state_of(core, receipt.ids[1]) == State.SKIPPED


async def test_an_item_sent_again_while_others_run_is_waited_for(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(core, function(name="work", for_each=[1, 2]), function(name="last", after=["work"]), tree="t")
        one, two = await agent.orders(2)
        await agent.fail(one)
        assert await core.actions.revive([one.id], None, None) == [one.id]
        [again] = await agent.orders()
        await agent.succeed(again, result=b"1")
        await agent.succeed(two, result=b"2")
        [last] = await agent.orders()
        assert last.id == receipt.ids[1]
        assert await result_of(core, receipt.ids[0]) == [1, 2]


@pytest.mark.parametrize("last", ["upstream", "item"])
async def test_a_list_that_a_failure_began_goes_on_though_what_failed_is_sent_again_and_succeeds(dsn, last):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(
            core, function(name="work"), function(name="mend", for_each=[1], after=[{"task": "work", "when": "failed"}]), tree="t"
        )
        work, mend = receipt.ids
        await agent.fail(*await agent.orders())
        [item] = await agent.orders()
        assert await core.actions.revive([work], None, None) == [work]
        [again] = await agent.orders()
        for order in (item, again) if last == "upstream" else (again, item):
            assert await state_of(core, mend) == State.BLOCKED
            await agent.succeed(order, result=b"1")
        await eventually(lambda: ended(core, mend, State.SUCCEEDED))
        assert await result_of(core, mend) == [1]


async def test_the_item_goes_where_the_task_says(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        spec = {
            "command": ["resize", "${item.w}"],
            "env": {"N": "${index}"},
            "input": {"file": "a-${item.w}.png", "all": "${item}"},
            "for_each": [{"w": 64}, {"w": "x; rm"}],
        }
        await submit(core, spec)
        orders = await agent.orders(2)
        known = await core.definitions.load(order.definition for order in orders)
        assert [known[order.definition].definition.command for order in orders] == [("resize", "64"), ("resize", "x; rm")]
        assert [known[order.definition].definition.env for order in orders] == [{"N": "0"}, {"N": "1"}]
        assert msgspec.json.decode(orders[0].input) == {"file": "a-64.png", "all": {"w": 64}}


async def test_an_item_never_becomes_part_of_a_shell_line(dsn):
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match="shell"):
            await submit(core, {"command": "echo ${item}", "for_each": [1]})


async def test_two_servers_and_repeated_turns_expand_once(dsn):
    async with engine(dsn, holder="a") as core, engine(dsn, holder="b") as other:
        agent = await ScriptedAgent(core, cpus=8).join()
        await submit(other, function(name="work", for_each=[1, 2, 3]))

        async def turn(one: Core) -> None:
            async with one.database.hot() as connection, connection.transaction():
                await one.timekeeper.expander.next(connection, Taken(one.allowances))

        await asyncio.gather(*(turn(one) for one in (core, other) * 4))
        orders = await agent.orders(3)
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(*) from task_anywhere") == 4
        await agent.succeed(*orders)
        await asyncio.gather(*(turn(one) for one in (core, other) * 4))


async def test_an_expansion_that_dies_before_its_commit_is_done_again_whole(dsn):
    async with engine(dsn) as core:
        core.timekeeper.leader.leads = lambda duty: False  # type: ignore[method-assign]
        await submit(core, function(name="work", for_each=[1, 2, 3]))
        async with core.database.hot() as connection:
            transaction = connection.transaction()
            await transaction.start()
            assert await core.timekeeper.expander.next(connection, Taken(core.allowances)) is not None
            await transaction.rollback()
            assert await connection.fetchval("select count(*) from task") == 1
            async with connection.transaction():
                await core.timekeeper.expander.next(connection, Taken(core.allowances))
            assert await connection.fetchval("select count(*) from task") == 4


async def test_a_cancelled_task_is_not_expanded(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, function(name="first"), function(name="work", for_each={"result_of": "first"}), tree="t")
        await core.actions.cancel([receipt.ids[1]])
        await agent.succeed(*await agent.orders(), result=b"[1, 2]")
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(*) from task") == 0
        assert (await tree_view(core, receipt.tree or 0, None)).state == "cancelled"
