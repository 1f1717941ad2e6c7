"""Lists of tasks: every filter, pages over the three homes of a task, and what a tenant is not shown (B4 J1 A7)."""

from __future__ import annotations

import pytest

from headway.domain.lifecycle import State
from headway.domain.task import Category
from headway.errors import InvalidInput
from headway.store.listing import Filter, page
from headway.store.queries import query
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit

FAR = "2099-01-01T00:00:00Z"


async def listed(core, **wanted: object) -> list[int]:
    async with core.database.cold() as connection:
        return [row["id"] for row in await page(connection, Filter(**wanted))]


async def names(core, **wanted: object) -> set[str]:
    async with core.database.cold() as connection:
        return {row["name"] or row["definition_name"] for row in await page(connection, Filter(**wanted))}


@pytest.fixture
async def core(dsn):
    """One task in each home, and some more in the hot table.

    `done` succeeded and `broken` failed on node-1, `dropped` was cancelled, `later` waits for its time and `blocked` for `later`.
    """
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await submit(core, function(name="done", labels={"team": "red", "stage": "1"}, delay_tolerance=0))
        await agent.succeed(*await agent.orders())
        await submit(core, {"command": ["convert", "100%_of.png"], "name": "broken", "labels": {"team": "blue"}})
        await agent.fail((await agent.orders())[0], message="disk on fire")
        dropped = await submit(core, function(name="dropped", labels={"team": "red"}, at=FAR))
        await core.actions.cancel(dropped.ids)
        await submit(
            core, function(name="later", at=FAR, labels={"team": "red", "stage": "2"}), function(name="blocked", after=["later"])
        )
        yield core


async def test_without_a_filter_everything_is_listed_newest_first(core):
    ids = await listed(core)
    assert ids == sorted(ids, reverse=True)
    assert await names(core) == {"done", "broken", "dropped", "later", "blocked"}


async def test_states_choose_over_all_homes(core):
    expected = {
        (State.SUCCEEDED,): {"done"},
        (State.FAILED,): {"broken"},
        (State.CANCELLED,): {"dropped"},
        (State.SCHEDULED,): {"later"},
        (State.BLOCKED, State.FAILED, State.SUCCEEDED): {"blocked", "broken", "done"},
        (State.RUNNING,): set(),
        (): set(),
    }
    assert {states: await names(core, states=[int(state) for state in states]) for states in expected} == expected


async def test_a_name_is_matched_whole_and_only_a_star_stands_for_anything(core):
    expected = {
        "done": {"done"},
        "d*": {"done", "dropped"},
        "*o*e*": {"done", "broken", "blocked", "dropped"},
        "*": {"done", "broken", "dropped", "later", "blocked"},
        "Done": set(),
        "don": set(),
        "d%": set(),
        "d_ne": set(),
        "": set(),
    }
    assert {pattern: await names(core, name=pattern) for pattern in expected} == expected


async def test_a_task_without_a_name_of_its_own_is_found_by_its_definitions(core):
    nameless = (await submit(core, function())).ids
    assert await listed(core, name="*nothing") == nameless


async def test_all_given_labels_must_fit(core):
    assert await names(core, labels={"team": "red"}) == {"done", "dropped", "later"}
    assert await names(core, labels={"team": "red", "stage": "2"}) == {"later"}
    assert await names(core, labels={"team": "blue"}) == {"broken"}
    for nobody in ({"team": "re"}, {"stage": "red"}, {"nobody": ""}, {"team": "red", "stage": "3"}):
        assert await names(core, labels=nobody) == set()


async def test_a_node_chooses_what_it_ran_and_what_it_holds(core):
    node = next(iter(core.fleet.nodes))
    other = await ScriptedAgent(core, "other", labels={"gpu": "x"}).join()
    held = (await submit(core, function(name="held", resources={"labels": {"gpu": "x"}}))).ids
    await other.orders()
    assert await names(core, node=node) == {"done", "broken"}
    assert await listed(core, node=other.id) == held
    assert await listed(core, node=9999) == []


async def test_text_is_searched_in_name_command_labels_and_error(core):
    expected = {
        "BROK": {"broken"},  # its name
        "convert": {"broken"},  # its command
        "disk on FIRE": {"broken"},  # its error
        "blue": {"broken"},  # a label
        "cancelled before": {"dropped"},
        "100%_of": {"broken"},
        "%": {"broken"},  # itself, not anything
        "1__%": set(),
        "\\": set(),
    }
    assert {text: await names(core, text=text) for text in expected} == expected


async def test_bounds_of_time_are_bounds_of_ids_the_lower_included_the_upper_not(core):
    ids = await listed(core)
    assert await listed(core, after_id=ids[2]) == ids[:3]
    assert await listed(core, below_id=ids[2]) == ids[3:]
    assert await listed(core, after_id=ids[3], below_id=ids[1]) == ids[2:4]
    assert await listed(core, after_id=ids[1], below_id=ids[1]) == []


async def test_a_tree_lists_its_own_tasks_in_every_home(core):
    agent = await ScriptedAgent(core).join()
    receipt = await submit(core, function(name="leaf"), function(name="root", after=["leaf"]), tree="t")
    await agent.succeed(*await agent.orders())
    assert await listed(core, tree=receipt.tree) == receipt.ids[::-1]
    assert await listed(core, tree=receipt.tree, states=[int(State.SUCCEEDED)]) == receipt.ids[:1]


async def test_categories_are_told_apart(core):
    assert await names(core, category=int(Category.URGENT)) == {"done"}
    assert await names(core, category=int(Category.DELAYABLE)) == {"broken", "dropped", "later", "blocked"}
    assert await names(core, category=int(Category.PERIODIC)) == set()


async def test_filters_are_joined_by_and(core):
    assert await names(core, labels={"team": "red"}, states=[int(State.SUCCEEDED), int(State.SCHEDULED)], name="*e*") == {
        "done",
        "later",
    }
    assert await names(core, labels={"team": "red"}, text="fire") == set()


async def _spread(core, agent: ScriptedAgent, count: int) -> list[int]:
    """Tasks of which a third succeeded, a third failed and a third waits, one after another."""
    specs = [function(at=FAR) if n % 3 == 2 else function() for n in range(count)]
    ids = (await submit(core, *specs)).ids
    orders = {order.id: order for order in await agent.orders(len(range(count)) - count // 3)}
    await agent.succeed(*(orders[task] for task in ids[0::3]))
    for task in ids[1::3]:
        await agent.fail(orders[task])
    return ids


@pytest.mark.parametrize("limit", [1, 4, 7, 100])
async def test_pages_cover_all_homes_without_gaps_or_repeats(dsn, limit):
    async with engine(dsn) as core:
        ids = await _spread(core, await ScriptedAgent(core, cpus=20).join(), 30)
        seen: list[int] = []
        while found := await listed(core, limit=limit, before=seen[-1] if seen else None):
            assert len(found) <= limit
            seen += found
        assert seen == ids[::-1]


async def test_tasks_that_come_and_end_between_two_pages_neither_shift_nor_repeat_what_is_listed(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=20).join()
        ids = await _spread(core, agent, 24)
        seen: list[int] = []
        while found := await listed(core, limit=5, before=seen[-1] if seen else None):
            seen += found
            await submit(core, function(at=FAR), function(at=FAR))
            waiting = [task for task in ids if await state_of(core, task) == State.SCHEDULED]
            await core.actions.cancel(waiting[:2])
            await core.actions.purge(await core.actions.dead_ids(None, ids=ids[1:8], fingerprint=None, name=None), None)
        assert seen == ids[::-1]


# What a tenant sees


@pytest.fixture
async def two(dsn):
    """A dead letter, a finished and a waiting task of the default tenant, and another tenant who wants to see them."""
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        other, _ = await core.access.add_tenant("other")
        ids = await _spread(core, agent, 3)
        yield core, ids, other


async def test_another_tenants_tasks_are_not_found_by_id_in_any_home(two):
    core, ids, other = two
    async with core.database.cold() as connection:
        for name in ("read.one", "read.final"):
            mine = {row["id"] for row in await connection.fetch(query(name), ids, 1)}
            assert mine == set(ids if name == "read.one" else ids[:2])
            assert {row["id"] for row in await connection.fetch(query(name), ids, None)} == mine
            assert await connection.fetch(query(name), ids, other) == []


async def test_another_tenants_tasks_are_in_no_list(two):
    core, ids, other = two
    own = (await submit(core, function(at=FAR), tenant=other)).ids
    assert await listed(core, tenant=other) == own
    assert await listed(core, tenant=1) == ids[::-1]
    assert await listed(core) == own + ids[::-1]


async def test_another_tenants_dead_letters_are_not_chosen_grouped_revived_or_purged(two):
    core, ids, other = two
    dead = ids[1]
    for choice in ({"ids": ids}, {"ids": None}):
        assert await core.actions.dead_ids(other, **choice, fingerprint=None, name=None) == []
        assert await core.actions.dead_ids(1, **choice, fingerprint=None, name=None) == [dead]
    async with core.database.cold() as connection:
        (group,) = await connection.fetch(query("read.dead_groups"), 1, 100)
        assert await connection.fetch(query("read.dead_groups"), other, 100) == []
    by_group = {"ids": None, "fingerprint": group["fingerprint"], "name": None}
    assert await core.actions.dead_ids(other, **by_group) == []
    assert await core.actions.dead_ids(1, **by_group) == [dead]
    assert await core.actions.revive([dead], other, None) == []
    assert await core.actions.purge([dead], other) == []
    assert await state_of(core, dead) == State.FAILED


async def test_waiting_for_another_tenants_task_is_waiting_for_nothing(two):
    core, ids, other = two
    assert await core.waiting.any_final(ids, 1, 0.0) == ids[:2]
    assert await core.waiting.any_final(ids, other, 0.0) == []


async def test_another_tenants_tree_is_not_there(two):
    core, _, other = two
    tree = (await submit(core, function(name="a"), tree="t")).tree
    async with core.database.cold() as connection:
        assert await connection.fetchrow(query("tree.get"), tree, 1) is not None
        assert await connection.fetchrow(query("tree.get"), tree, other) is None


async def test_another_tenants_task_can_neither_be_waited_for_nor_marked(two):
    core, ids, other = two
    with pytest.raises(InvalidInput, match="there is no task"):
        await submit(core, function(after=[str(ids[2])]), tenant=other)
    async with core.database.cold() as connection:
        assert not await connection.fetchval("select bool_or(has_dependants) from task")
