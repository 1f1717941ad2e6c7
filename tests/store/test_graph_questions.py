"""The graph can be asked: what is before a task, what is behind it, its levels, what decides its end (B2)."""

from __future__ import annotations

from typing import Any

from headway.store.queries import query
from tests.store.test_tree_levels import diamond
from tests.support.engine import ScriptedAgent, engine, function, submit


async def ask(core: Any, name: str, *values: Any) -> list[tuple[Any, ...]]:
    async with core.database.cold() as connection:
        return [tuple(row) for row in await connection.fetch(query(f"graph.{name}"), *values)]


async def test_upstream_and_downstream_go_as_far_as_asked_and_name_each_task_once(dsn):
    async with engine(dsn) as core:
        receipt = await submit(core, *diamond(), tree="d")
        top, one, two, bottom = receipt.ids
        assert [(row[0], row[1]) for row in await ask(core, "upstream", bottom, 1, 100, 1)] == [(one, 1), (two, 1)]
        assert [(row[0], row[1]) for row in await ask(core, "upstream", bottom, 9, 100, 1)] == [(one, 1), (two, 1), (top, 2)]
        assert [(row[0], row[1]) for row in await ask(core, "downstream", top, 9, 100, 1)] == [(one, 1), (two, 1), (bottom, 2)]
        assert len(await ask(core, "downstream", top, 9, 2, 1)) == 2
        assert await ask(core, "downstream", top, 9, 100, 2) == []  # another tenant


async def test_the_critical_path_goes_back_over_what_kept_each_waiting_longest(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit(core, *diamond(), function(name="aside"), tree="d")
        first = {order.id: order for order in await agent.orders(2)}
        await agent.say(finished=[timed(first[receipt.ids[0]], 1), timed(first[receipt.ids[4]], 1)])
        sides = {order.id: order for order in await agent.orders(2)}
        await agent.say(finished=[timed(sides[receipt.ids[1]], 50)])
        await agent.say(finished=[timed(sides[receipt.ids[2]], 10)])
        [last] = await agent.orders()
        path = [row[0] for row in await ask(core, "critical_path", receipt.tree, 100)]
        assert path == [receipt.ids[0], receipt.ids[1], receipt.ids[3]]
        await agent.succeed(last)
        assert len(await ask(core, "critical_path", receipt.tree, 2)) == 2


def timed(order: Any, after_s: int) -> Any:
    """A finish so many seconds after a common moment."""
    from headway.wire.exchange import Finished

    base = 1_750_000_000_000
    return Finished(order.id, order.attempt, 0, base + after_s * 1000 - 500, base + after_s * 1000)


async def test_the_edges_of_a_tree_come_in_pages(dsn):
    async with engine(dsn) as core:
        receipt = await submit(core, *diamond(), tree="d")
        first = await ask(core, "edges", receipt.tree, 0, 0, 3)
        rest = await ask(core, "edges", receipt.tree, first[-1][0], first[-1][1], 3)
        top, one, two, bottom = receipt.ids
        assert [row[:2] for row in (*first, *rest)] == [(top, one), (top, two), (one, bottom), (two, bottom)]
