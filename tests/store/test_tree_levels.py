"""The counters of a tree's levels: right in every transaction, after repeats and failures, and barriers when asked (C2)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api.tree_views import tree_view
from headway.control import levels
from headway.control.admission import Receipt
from headway.control.core import Core
from headway.domain.lifecycle import Outcome, State
from headway.errors import HeadwayError
from tests.support.engine import ScriptedAgent, done, engine, function, state_of, submit


async def left(core: Core, tree: int | None) -> list[int]:
    assert tree is not None
    return [level.left for level in (await tree_view(core, tree, None)).levels]


async def tree_state(core: Core, tree: int | None) -> str:
    assert tree is not None
    return (await tree_view(core, tree, None)).state


_FOUND = """
select t.id, t.level from tree_part p join task_anywhere t on t.id between p.first and p.last and t.level = p.level where p.tree = $1
"""


async def agrees(core: Core, tree: int | None) -> bool:
    """The counters say what counting the rows says, and its tasks are found by its runs of ids, each once and no others."""
    async with core.database.cold() as connection:
        rows = await connection.fetch("select level, state, count(*) as n from task_anywhere where tree = $1 group by 1, 2", tree)
        there = await connection.fetch("select id, level from task_anywhere where tree = $1", tree)
        found = await connection.fetch(_FOUND, tree)
    assert sorted(found) == sorted(there)
    view = await tree_view(core, tree or 0, None)
    counted: dict[int, dict[str, int]] = {}
    for row in rows:
        word = State(row["state"]).word if State(row["state"]).final else "left"
        level = counted.setdefault(row["level"], {})
        level[word] = level.get(word, 0) + row["n"]
    return all(
        {"left": one.left, "succeeded": one.succeeded, "failed": one.failed, "cancelled": one.cancelled,
         "skipped": one.skipped + one.spared, "expired": one.expired}
        == {word: counted[one.level].get(word, 0) for word in ("left", "succeeded", "failed", "cancelled", "skipped", "expired")}
        for one in view.levels
    )  # fmt: skip


async def submit_strict(core: Core, *specs: dict[str, Any]) -> Receipt:
    drafts, _ = await core.drafts.read(1, msgspec.json.encode(list(specs)), ndjson=False, key=None)
    return await core.admission.submit(1, drafts, tree="t", strict=True)


def diamond(**fields: Any) -> list[dict[str, Any]]:
    return [
        function(name="top", **fields),
        function(name="left", after=["top"]),
        function(name="right", after=["top"]),
        function(name="bottom", after=["left", "right"]),
    ]


async def test_each_finish_counts_its_level_once_however_often_it_is_reported(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=4).join()
        receipt = await submit(core, *diamond(), tree="d")
        assert await left(core, receipt.tree) == [1, 2, 1]
        [top] = await agent.orders()
        await agent.say(finished=[done(top), done(top)])
        await agent.succeed(top)
        assert await left(core, receipt.tree) == [0, 2, 1]
        sides = await agent.orders(2)
        await agent.succeed(*sides)
        await agent.succeed(*sides)
        assert await left(core, receipt.tree) == [0, 0, 1]
        await agent.succeed(*await agent.orders())
        assert await left(core, receipt.tree) == [0, 0, 0]
        assert await tree_state(core, receipt.tree) == "succeeded"
        assert await agrees(core, receipt.tree)


async def test_a_transaction_that_is_rolled_back_counts_nothing(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, *diamond(), tree="d")
        [top] = await agent.orders()

        async def crash(*_: object) -> None:
            raise ValueError("the server dies before the commit")

        core.desk.database.transact, kept = crash, core.desk.database.transact  # type: ignore[method-assign, assignment]
        with pytest.raises(HeadwayError, match="dies"):
            await agent.succeed(top)
        core.desk.database.transact = kept  # type: ignore[method-assign]
        assert await left(core, receipt.tree) == [1, 2, 1]
        await agent.succeed(top)
        assert await left(core, receipt.tree) == [0, 2, 1]


async def test_what_is_skipped_behind_a_failure_is_counted_and_the_tree_fails(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, *diamond(), tree="d")
        await agent.fail((await agent.orders())[0])
        view = await tree_view(core, receipt.tree or 0, None)
        assert [(one.failed, one.skipped, one.left) for one in view.levels] == [(1, 0, 0), (0, 2, 0), (0, 1, 0)]
        assert view.state == "failed"
        assert await agrees(core, receipt.tree)


async def test_a_dead_letter_that_is_sent_again_or_purged_moves_the_counter_with_it(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, function(name="one"), function(name="two"), tree="d")
        for order in await agent.orders(2):
            await agent.fail(order)
        assert await tree_state(core, receipt.tree) == "failed"
        await core.actions.revive(receipt.ids[:1], None, None)
        assert await left(core, receipt.tree) == [1]
        await core.actions.purge(receipt.ids[1:], None)
        assert await agrees(core, receipt.tree)
        await agent.succeed(*await agent.orders())
        assert await tree_state(core, receipt.tree) == "cancelled"
        assert await agrees(core, receipt.tree)


async def test_a_task_for_failures_that_is_not_needed_leaves_the_tree_succeeded(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(
            core,
            function(name="work"),
            function(name="repair", after=[{"task": "work", "when": "failed"}]),
            function(name="report repair", after=["repair"]),
            tree="t",
        )
        await agent.succeed(*await agent.orders())
        assert await state_of(core, receipt.ids[2]) == State.SKIPPED
        view = await tree_view(core, receipt.tree or 0, None)
        assert view.state == "succeeded"
        assert [one.spared for one in view.levels] == [0, 1, 1]


async def test_a_task_skipped_because_of_one_outside_the_tree_makes_the_tree_fail(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        other = await submit(core, function(name="other"))
        receipt = await submit(core, function(name="mine", after=[other.ids[0]]), tree="t")
        await agent.fail((await agent.orders())[0])
        assert await tree_state(core, receipt.tree) == "failed"


async def test_a_lost_node_counts_its_tasks_only_when_they_have_no_run_left(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(core, function(name="one", retry={"node_losses": 1}), tree="t")
        [order] = await agent.orders()
        await agent.say(finished=[done(order, outcome=Outcome.NODE_LOST)])
        assert await left(core, receipt.tree) == [1]
        [order] = await agent.orders()
        await agent.say(finished=[done(order, outcome=Outcome.NODE_LOST)])
        assert await left(core, receipt.tree) == [0]
        assert await agrees(core, receipt.tree)


async def test_a_strict_level_starts_when_the_one_below_has_ended_and_not_before(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        tasks = [
            function(name="fast"),
            function(name="slow"),
            function(name="behind fast", after=["fast"]),
            function(name="behind slow", after=["slow"]),
            function(name="root", after=["behind fast", "behind slow"]),
        ]
        receipt = await submit_strict(core, *tasks)
        fast, slow = await agent.orders(2)
        await agent.succeed(fast)
        assert await state_of(core, receipt.ids[2]) == State.BLOCKED
        await agent.succeed(slow)
        assert {order.id for order in await agent.orders(2)} == set(receipt.ids[2:4])
        assert await left(core, receipt.tree) == [0, 2, 1]


async def test_a_strict_level_that_was_skipped_whole_does_not_open_the_next_too_early(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        receipt = await submit_strict(
            core,
            function(name="bad"),
            function(name="slow"),
            function(name="middle", after=["bad", "slow"]),
            function(name="last", after=[{"task": "middle", "when": "done"}]),
        )
        bad, slow = sorted(await agent.orders(2), key=lambda order: order.id)
        await agent.fail(bad)
        assert await state_of(core, receipt.ids[2]) == State.SKIPPED
        assert await state_of(core, receipt.ids[3]) == State.BLOCKED
        assert await left(core, receipt.tree) == [1, 0, 1]
        await agent.succeed(slow)
        assert [order.id for order in await agent.orders()] == [receipt.ids[3]]
        assert await agrees(core, receipt.tree)


async def test_a_large_strict_level_is_released_in_chunks(dsn, monkeypatch):
    monkeypatch.setattr(levels, "CHUNK", 7)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=64).join()
        tasks = [function(name="first"), *(function(name=f"t{i}", after=["first"]) for i in range(30))]
        receipt = await submit_strict(core, *tasks)
        await agent.succeed(*await agent.orders())
        got = await agent.orders(30)
        await agent.succeed(*got)
        assert await tree_state(core, receipt.tree) == "succeeded"
        async with core.database.cold() as connection:
            while await connection.fetchval("select exists (select 1 from pending_level)"):
                await core.timekeeper.run_once()
