"""Subtasks of a running task: under its fence, once under each key, waited for without holding anything (C4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api.tree_views import tree_view
from headway.control.subtasks import Parent
from headway.domain.lifecycle import Outcome, State
from headway.errors import Conflict, IdempotencyConflict, Unauthorized
from headway.wire import task_token
from tests.store.test_tree_levels import agrees
from tests.support.engine import ScriptedAgent, done, engine, function, state_of, submit


@pytest.fixture
async def core(dsn):
    async with engine(dsn) as core:
        yield core


async def children(core, order, *specs: dict[str, Any]) -> list[int]:
    """Submit as the running attempt would."""
    drafts, _ = await core.drafts.read(1, msgspec.json.encode(list(specs)), ndjson=False, key=None)
    return (await core.admission.submit(1, drafts, parent=Parent(order.id, order.attempt))).ids


async def parent_on(core, **fields: Any):
    agent = await ScriptedAgent(core, cpus=0.5).join()
    await submit(core, function(**fields))
    return agent, (await agent.orders())[0]


async def suspend(agent, order, *waits: int) -> None:
    await agent.say(finished=[done(order, outcome=Outcome.SUSPENDED, waits=list(waits))])


async def test_a_parent_that_waits_is_blocked_holds_no_room_and_runs_again_when_the_last_subtask_ended(core):
    agent, parent = await parent_on(core)
    one, two = await children(core, parent, function(idempotency_key="1"), function(idempotency_key="2"))
    await suspend(agent, parent, one, two)
    assert await state_of(core, parent.id) == State.BLOCKED
    first = (await agent.orders())[0]  # half a cpu holds one task at a time: the parent holds none of it
    await agent.succeed(first)
    second = (await agent.orders())[0]
    assert {first.id, second.id} == {one, two}
    assert await state_of(core, parent.id) == State.BLOCKED
    await agent.fail(second)
    again = (await agent.orders())[0]
    assert (again.id, again.attempt) == (parent.id, 2)
    await agent.succeed(again)
    async with core.database.cold() as connection:
        row = await connection.fetchrow("select state, failures, requeues from task_history where id = $1", parent.id)
    assert tuple(row) == (State.SUCCEEDED, 0, 1)


async def test_a_parent_whose_subtasks_have_all_ended_is_ready_at_once(core):
    agent, parent = await parent_on(core)
    agent2 = await ScriptedAgent(core, "node-2").join()
    (one,) = await children(core, parent, function())
    await agent2.succeed(*await agent2.orders())
    assert await state_of(core, one) == State.SUCCEEDED
    await suspend(agent, parent, one)
    [again] = await agent.orders()
    assert again.id == parent.id


async def test_a_report_of_waiting_that_is_repeated_changes_nothing(core):
    agent, parent = await parent_on(core)
    (one,) = await children(core, parent, function())
    await suspend(agent, parent, one)
    await suspend(agent, parent, one)
    async with core.database.cold() as connection:
        assert await connection.fetchval("select blocked_on from task where id = $1", parent.id) == 1
    child = (await agent.orders())[0]
    await agent.succeed(child)
    again = (await agent.orders())[0]
    await suspend(agent, parent, one)  # a late one, of the older attempt
    assert await state_of(core, parent.id) == State.LEASED
    assert again.attempt == 2


async def test_a_parent_waits_only_for_its_own_subtasks(core):
    agent, parent = await parent_on(core)
    stranger = (await submit(core, function(at="2099-01-01T00:00:00Z"))).ids[0]
    await suspend(agent, parent, stranger, 12345)
    assert (await agent.orders())[0].id == parent.id


async def test_the_same_key_gives_the_same_subtask_in_every_attempt(core):
    agent, parent = await parent_on(core, attempts=3)
    spec = function(idempotency_key="part/1", input=[1])
    (one,) = await children(core, parent, spec)
    assert await children(core, parent, spec) == [one]
    await suspend(agent, parent, one)
    child = (await agent.orders())[0]
    await agent.succeed(child)
    again = (await agent.orders())[0]
    assert await children(core, again, spec) == [one]
    with pytest.raises(IdempotencyConflict, match="another subtask under the key"):
        await children(core, again, function(idempotency_key="part/1", input=[2]))
    other = await submit(core, function(idempotency_key="part/1"))  # the keys of a parent are its own
    assert other.ids != [one]


async def test_a_parent_that_failed_submits_those_subtasks_anew_that_did_not_succeed(core):
    agent, parent = await parent_on(core, attempts=2, retry={"interval": 0.01})
    good, bad = function(idempotency_key="good"), function(idempotency_key="bad")
    first = await children(core, parent, good, bad)
    await suspend(agent, parent, *first)
    for _ in range(2):
        order = (await agent.orders())[0]
        await (agent.succeed(order) if order.id == first[0] else agent.fail(order))
    again = (await agent.orders())[0]
    assert await children(core, again, good, bad) == first  # it waited, it did not fail: the failure is its to see
    await agent.fail(again)
    third = (await agent.orders())[0]
    second = await children(core, third, good, bad)
    assert second[0] == first[0]
    assert second[1] != first[1]
    assert await children(core, third, good, bad) == second


async def test_an_attempt_that_has_ended_submits_nothing_more(core):
    agent, parent = await parent_on(core, attempts=2, retry={"interval": 0.01})
    await agent.fail(parent)
    with pytest.raises(Conflict, match="has ended"):
        await children(core, parent, function())
    again = (await agent.orders())[0]
    with pytest.raises(Conflict, match="attempt 1"):
        await children(core, parent, function())
    assert len(await children(core, again, function())) == 1


async def test_cancelling_a_parent_cancels_its_subtasks_and_theirs(core):
    agent, parent = await parent_on(core)
    (child,) = await children(core, parent, function())
    await suspend(agent, parent, child)
    order = (await agent.orders())[0]
    (grandchild,) = await children(core, order, function())
    await core.actions.cancel([parent.id])
    assert await state_of(core, parent.id) == State.CANCELLED
    assert await state_of(core, grandchild) == State.CANCELLED
    with pytest.raises(Conflict, match="being cancelled"):
        await children(core, order, function())
    await agent.fail(order, Outcome.CANCELLED)
    assert await state_of(core, child) == State.CANCELLED


async def test_subtasks_belong_to_the_tree_of_their_parent(core):
    agent = await ScriptedAgent(core).join()
    receipt = await submit(core, function(name="leaf"), function(name="root", after=["leaf"]), tree="nightly")
    leaf = (await agent.orders())[0]
    await children(core, leaf, function(), function())
    async with core.database.cold() as connection:
        rows = await connection.fetch("select level, count(*) from task where tree = $1 group by level order by level", receipt.tree)
        assert [tuple(row) for row in rows] == [(0, 3), (1, 1)]
        totals = await connection.fetch("select total from tree_level where tree = $1 order by level", receipt.tree)
    assert [row["total"] for row in totals] == [3, 1]


async def test_a_parent_whose_subtask_waits_for_it_in_turn_fails_instead_of_waiting_for_ever(core):
    agent, parent = await parent_on(core)
    (child,) = await children(core, parent, function(after=[{"task": parent.id, "when": "done"}]))
    await suspend(agent, parent, child)
    async with core.database.cold() as connection:
        error = await connection.fetchval("select error from dead_letter where id = $1", parent.id)
    assert "waits for this task" in error
    assert (await agent.orders())[0].id == child


async def test_a_parent_that_waits_more_than_a_thousand_times_fails(core):
    agent, parent = await parent_on(core)
    async with core.database.cold() as connection:
        await connection.execute("update task set requeues = 1000 where id = $1", parent.id)
    (child,) = await children(core, parent, function())
    await suspend(agent, parent, child)
    assert await state_of(core, parent.id) == State.FAILED


async def test_the_token_of_an_attempt_lives_and_dies_with_it(core):
    agent, parent = await parent_on(core, attempts=2, retry={"interval": 0.01})
    async with core.database.cold() as connection:
        key = await connection.fetchval("select task_key from node where id = $1", agent.id)
    token = task_token.make(key, parent.id, parent.attempt)
    caller = await core.access.caller(f"Bearer {token}")
    assert (caller.role, caller.tenant, caller.task, caller.attempt) == ("task", 1, parent.id, 1)
    forged = [task_token.make(bytes(32), parent.id, 1), task_token.make(key, parent.id, 2), f"{token}0", "hwt_", "hwt_1_2", "hwt_x_1_y"]
    for wrong in forged:
        with pytest.raises(Unauthorized):
            await core.access.caller(f"Bearer {wrong}")
    await agent.fail(parent)
    with pytest.raises(Unauthorized, match="has ended"):
        await core.access.caller(f"Bearer {token}")


async def test_of_subtasks_that_wait_for_each_other_only_those_are_replaced_that_did_not_succeed(core):
    agent, parent = await parent_on(core, attempts=2, retry={"interval": 0.01})
    specs = [
        function(name="a", idempotency_key="a"),
        function(name="b", idempotency_key="b", after=["a"]),
        function(name="c", idempotency_key="c", after=["b"]),
    ]
    first = await children(core, parent, *specs)
    await suspend(agent, parent, *first)
    await agent.succeed((await agent.orders())[0])
    await agent.fail((await agent.orders())[0])
    await agent.fail((await agent.orders())[0])  # the parent, which saw it
    again = (await agent.orders())[0]
    second = await children(core, again, *specs)
    assert second[0] == first[0]
    assert not set(second[1:]) & set(first)
    await suspend(agent, again, *second)
    for expected in (*second[1:], parent.id):
        order = (await agent.orders())[0]
        assert order.id == expected
        await agent.succeed(order)
    assert await state_of(core, parent.id) == State.SUCCEEDED


async def test_a_subtask_sent_again_while_its_parent_runs_does_not_end_the_waiting_for_another(core):
    agent, parent = await parent_on(core)
    (one,) = await children(core, parent, function(idempotency_key="1"))
    await suspend(agent, parent, one)
    await agent.fail(*await agent.orders())
    (again,) = await agent.orders()
    assert await core.actions.revive([one], None, None) == [one]  # while nobody waits for it
    (two,) = await children(core, again, function(idempotency_key="2"))
    await suspend(agent, again, two)
    (first,) = await agent.orders()
    await agent.succeed(first)
    assert await state_of(core, parent.id) == State.BLOCKED
    (second,) = await agent.orders()
    await agent.succeed(second)
    assert {first.id, second.id} == {one, two}
    assert (await agent.orders())[0].id == parent.id


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "with its tree"])
@pytest.mark.parametrize("last", ["upstream", "subtask"])
async def test_what_a_failure_began_goes_on_though_what_failed_is_sent_again_and_succeeds(core, last, whole):
    agent = await ScriptedAgent(core, cpus=8).join()
    handling = function(name="handler", after=[{"task": "work", "when": "failed"}])
    receipt = await submit(core, function(name="work"), handling, tree="t")
    failing, handler = receipt.ids
    await agent.fail(*await agent.orders())
    [parent] = await agent.orders()
    (child,) = await children(core, parent, function())
    await suspend(agent, parent, child)
    [subtask] = await agent.orders()
    if whole:
        assert await core.trees.retry(receipt.tree, 1) == 1
    else:
        assert await core.actions.revive([failing], None, None) == [failing]
    [again] = await agent.orders()
    for order in (subtask, again) if last == "upstream" else (again, subtask):
        assert await state_of(core, handler) == State.BLOCKED
        await agent.succeed(order)
    [on] = await agent.orders()
    assert (on.id, on.attempt) == (handler, 2)
    await agent.succeed(on)
    assert await state_of(core, handler) == State.SUCCEEDED
    assert await agrees(core, receipt.tree)


async def test_nonsense_that_a_task_says_it_waits_for_changes_nothing(core):
    agent, parent = await parent_on(core)
    await suspend(agent, parent, -1, 0, 2**63, 2**64 - 1, parent.id)
    assert (await agent.orders())[0].id == parent.id


async def test_subtasks_that_are_refused_leave_neither_keys_nor_counts_behind(core):
    agent = await ScriptedAgent(core, cpus=0.5).join()
    failed = (await submit(core, function())).ids[0]
    await agent.fail((await agent.orders())[0])
    tree = (await submit(core, function(attempts=2), tree="one")).tree
    parent = (await agent.orders())[0]
    good, known = function(idempotency_key="good"), function(idempotency_key="known", input=[1])
    (one,) = await children(core, parent, known)
    with pytest.raises(Conflict, match="has failed"):
        await children(core, parent, good, function(idempotency_key="late", after=[str(failed)]))
    with pytest.raises(IdempotencyConflict, match="another subtask under the key"):
        await children(core, parent, good, function(idempotency_key="known", input=[2]))
    assert await agrees(core, tree)
    async with core.database.cold() as connection:
        assert [row["child"] for row in await connection.fetch("select child from subtask where parent = $1", parent.id)] == [one]
    (two,) = await children(core, parent, good)
    assert await state_of(core, two) == State.READY
    await suspend(agent, parent, one, two)
    for _ in range(2):
        await agent.succeed(*await agent.orders())
    await agent.succeed(*await agent.orders())
    assert (await tree_view(core, tree, None)).state == "succeeded"
