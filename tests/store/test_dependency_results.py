"""A task that asks for them gets the results of what it waited for with its order (C3)."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.control import results
from headway.wire.exchange import Dependencies, Order
from tests.support.engine import ScriptedAgent, engine, function, submit


def carried(order: Order) -> dict[str, Any]:
    assert order.dependencies is not None
    return {name: msgspec.json.decode(raw) for name, raw in msgspec.json.decode(order.dependencies, type=Dependencies).results.items()}


async def test_results_come_by_name_to_those_who_asked_only(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        await submit(
            core,
            function(name="a"),
            function(name="b"),
            function(name="asks", after=["a", {"task": "b", "when": "done"}], with_results=True),
            function(name="does not", after=["a", {"task": "b", "when": "done"}]),
            tree="t",
        )
        a, b = sorted(await agent.orders(2), key=lambda order: order.id)
        assert a.dependencies is None
        await agent.succeed(a, result=b'{"rows": 3}')
        await agent.fail(b)
        asks, does_not = sorted(await agent.orders(2), key=lambda order: order.id)
        assert carried(asks) == {"a": {"rows": 3}, "b": None}
        assert does_not.dependencies is None


async def test_another_server_reads_the_same_results_again(dsn):
    async with engine(dsn, holder="a") as core, engine(dsn, holder="b") as other:
        agent = await ScriptedAgent(core).join()
        await submit(core, function(name="a"), function(name="asks", after=["a"], with_results=True))
        await agent.succeed(*await agent.orders(), result=b"[1]")
        [order] = await agent.orders()
        agent.core = other
        other.sessions.by_node.clear()
        [again] = (await agent.say(wait_s=30.0)).orders
        assert carried(order) == carried(again) == {"a": [1]}


async def test_a_for_each_hands_on_the_list_of_its_results(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        await submit(core, function(name="many", for_each=[1, 2]), function(name="asks", after=["many"], with_results=True))
        for number, order in enumerate(await agent.orders(2)):
            await agent.succeed(order, result=b"%d" % number)
        assert carried((await agent.orders())[0]) == {"many": [0, 1]}


async def test_results_that_are_too_much_together_are_refused_in_words(dsn, monkeypatch):
    monkeypatch.setattr(results, "MOST", 10)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await submit(core, function(name="a"), function(name="asks", after=["a"], with_results=True))
        await agent.succeed(*await agent.orders(), result=b'"' + b"x" * 50 + b'"')
        [order] = await agent.orders()
        assert "52 bytes, more than 10" in msgspec.json.decode(order.dependencies or b"", type=Dependencies).error
