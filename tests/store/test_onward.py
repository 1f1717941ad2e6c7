"""What waited for a task that ended is leased by the transaction that releases it, when nobody is passed (C5 L2)."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from headway.control.onward import Onward
from headway.domain.lifecycle import State
from headway.errors import Unavailable
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually


def chain(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [function(name=str(n), after=[str(n - 1)] if n else [], **fields) for n in range(count)]


@pytest.fixture
async def core(dsn):
    async with engine(dsn) as core:
        yield core


async def test_the_next_link_is_leased_by_the_commit_that_ends_the_one_before(core, monkeypatch):
    lease, leased = Onward.lease, set[int]()

    async def seen(self, connection, effects):
        ready = {key[2] for _, _, key in effects.ready}
        await lease(self, connection, effects)
        leased.update(ready - {key[2] for _, _, key in effects.ready})

    monkeypatch.setattr(Onward, "lease", seen)
    agent = await ScriptedAgent(core).join()
    ids = (await submit(core, *chain(12, resources={"cpus": 0.5}))).ids
    (order,) = await agent.orders()
    for following in ids[1:]:
        await agent.succeed(order)
        (order,) = await agent.orders()
        assert (order.id, order.attempt) == (following, 1)
    await agent.succeed(order)
    assert leased, "now and then the planner is about to look for tasks itself; but not always"
    assert leased <= set(ids[1:])


async def test_the_room_of_the_one_before_serves_the_next_link(core):
    small, large = await ScriptedAgent(core, "small", cpus=0.5).join(), await ScriptedAgent(core, "large", cpus=4.0).join()
    _, second = (await submit(core, *chain(2, resources={"cpus": 0.5}))).ids
    (order,) = await small.orders()
    await small.succeed(order)
    assert (await small.orders())[0].id == second, "packed where the least is left"
    assert (await large.say(wait_s=0.0)).orders == []


async def test_what_is_released_does_not_pass_what_waits(core):
    agent = await ScriptedAgent(core, cpus=1.0).join()
    _, second = (await submit(core, *chain(2, resources={"cpus": 0.5}))).ids
    (order,) = await agent.orders()
    (large,) = (await submit(core, function(resources={"cpus": 1.0}))).ids
    await eventually(lambda: _waits(core))
    await agent.succeed(order)
    assert await state_of(core, large) != State.READY or await state_of(core, second) == State.READY
    got = (await agent.orders())[0]
    assert got.id == large


async def _waits(core) -> bool:
    return not core.planner.board.empty


async def test_a_release_that_is_tried_again_leases_once_and_takes_its_room_once(core, monkeypatch):
    agent = await ScriptedAgent(core, cpus=1.0).join()
    (_, second, third) = (await submit(core, *chain(3, resources={"cpus": 0.5}))).ids
    (order,) = await agent.orders()
    lease, tries = Onward.lease, []

    async def then_deadlock(self, connection, effects):
        await lease(self, connection, effects)
        tries.append(1)
        if len(tries) == 1:
            raise asyncpg.DeadlockDetectedError("deadlock detected")

    monkeypatch.setattr(Onward, "lease", then_deadlock)
    await agent.succeed(order)
    (order,) = await agent.orders()
    assert (order.id, order.attempt, len(tries)) == (second, 1, 2)
    await agent.succeed(order)
    (order,) = await agent.orders()
    assert (order.id, order.attempt) == (third, 1)
    await agent.succeed(order)
    both = (await submit(core, *[function(resources={"cpus": 0.5}) for _ in range(2)])).ids
    assert {order.id for order in await agent.orders(2)} == set(both), "the node is empty again"


async def test_an_end_that_was_not_committed_leases_nothing(core, monkeypatch):
    agent = await ScriptedAgent(core).join()
    (_, second) = (await submit(core, *chain(2, resources={"cpus": 0.5}))).ids
    (order,) = await agent.orders()
    lease = Onward.lease

    async def then_away(self, connection, effects):
        await lease(self, connection, effects)
        raise Unavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(Onward, "lease", then_away)
        with pytest.raises(Unavailable):
            await agent.succeed(order)
    assert await state_of(core, second) == State.BLOCKED
    await agent.succeed(order)
    (order,) = await agent.orders()
    assert (order.id, order.attempt) == (second, 1)
