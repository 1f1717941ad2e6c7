"""`for_each`: a task becomes many while its tree runs, once, and ends with their results (C1)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from headway.api.tree_views import tree_view
from headway.control.core import Core
from headway.control.expanding import SUSPENDED_S
from headway.control.taken import Taken
from headway.domain import fanout
from headway.domain.lifecycle import Outcome, State
from headway.errors import InvalidInput
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import tenant
from tests.support.waiting import eventually

DEEP = b"[" * 3_000 + b"]" * 3_000


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


UNREADABLE = {
    "malformed": b"[1,",
    "not UTF-8": b'["\xff"]',
    "too deep": DEEP,
    "a number beyond all": b"[1e999]",
    "half a character": b'["\\ud800"]',
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=list(UNREADABLE))
async def test_a_result_that_nobody_can_read_fails_the_task_and_holds_up_nobody(dsn, data):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(core, function(name="list"), function(for_each={"result_of": "list"}), tree="t")
        await agent.succeed(*await agent.orders(), result=data)
        others = await tenant(core, "others")
        [due] = (await submit(core, function(at=time.time() + 0.1), tenant=others)).ids
        await submit(core, function(for_each=[1, 2]), tenant=others)
        assert due in {order.id for order in await agent.orders(3, seconds=20)}
        await eventually(lambda: ended(core, receipt.ids[1], State.FAILED))


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=list(UNREADABLE))
def test_of_a_list_that_nobody_can_read_it_is_said_why(data):
    with pytest.raises(InvalidInput, match=r"for_each: the result (cannot be read|is nested too deeply)") as refused:
        fanout.items_of(data)
    assert refused.value.field == "for_each"


def test_of_a_template_that_cannot_be_filled_it_is_said_why():
    deep = b"[" * 600 + b'"${item}"' + b"]" * 600
    with pytest.raises(InvalidInput, match="for_each: the input for item 3 is nested too deeply"):
        fanout.input_of(deep, 1, 3)
    half: Any = 1
    for _ in range(950):
        half = [half]
    with pytest.raises(InvalidInput, match="nested too deeply"):
        fanout.input_of(b"[" * 90 + b'"${item}"' + b"]" * 90, half, 0)
    with pytest.raises(InvalidInput, match="for_each: the input cannot be read"):
        fanout.input_of(b'["${item}", 1e999]', 1, 0)


@pytest.mark.parametrize("form", ["one", "list", "inputs"])
@pytest.mark.parametrize(
    ("template", "why"),
    [(b"[" * 101 + b'"${item}"' + b"]" * 101, "nested too deeply, at most 100 levels"), (b'["${item}", 1e999]', "cannot be read")],
    ids=["too deep", "unreadable"],
)
async def test_an_input_that_no_item_can_be_put_into_is_refused_at_once(dsn, template, why, form):
    each = b'"command": ["true"], "for_each": [1]'
    body = {
        "one": b'{%b, "input": %b}' % (each, template),
        "list": b'[{%b, "input": %b}]' % (each, template),
        "inputs": b'{"task": {%b}, "inputs": [%b]}' % (each, template),
    }[form]
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match=why) as refused:
            await core.drafts.read(1, body, ndjson=False, key=None)
        assert refused.value.field == "input"
        await core.drafts.read(1, body.replace(b"${item}", b"no item"), ndjson=False, key=None)


async def test_a_list_that_fails_in_a_way_nobody_foresaw_waits_and_holds_up_nobody(dsn, monkeypatch, capsys):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        expander = core.timekeeper.expander
        kinds, tries = expander._kinds, []

        async def failing(tenant, template, items):
            if items == ["bad"]:
                tries.append(items)
                raise RuntimeError("by the test")
            return await kinds(tenant, template, items)

        monkeypatch.setattr(expander, "_kinds", failing)
        [bad] = (await submit(core, function(for_each=["bad"]))).ids
        [due] = (await submit(core, function(at=time.time() + 0.1))).ids
        await submit(core, function(for_each=[1, 2]))
        assert len(await agent.orders(3, seconds=20)) == 3
        assert (await state_of(core, bad), len(tries)) == (State.BLOCKED, 1)
        assert await state_of(core, due) == State.LEASED
        assert 1.0 < expander.next_look_s() <= SUSPENDED_S
        assert "for_each.failed" in capsys.readouterr().err


async def test_tasks_come_due_though_what_is_to_be_released_fails(dsn, monkeypatch):
    async def failing():
        raise RuntimeError("by the test")

    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        monkeypatch.setattr(core.timekeeper, "_release_deferred", failing)
        await submit(core, function(for_each=[1, 2]))
        [due] = (await submit(core, function(at=time.time() + 0.1))).ids
        assert [order.id for order in await agent.orders(seconds=20)] == [due]
