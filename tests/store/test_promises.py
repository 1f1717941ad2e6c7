"""The promise at admission (E7): the predicted start, the warning, the refusal."""

from __future__ import annotations

import msgspec
import pytest

from headway.api.tasks import _promise
from headway.control import promises
from headway.control.outlook import PlanState
from headway.control.promises import _Count
from headway.domain.queues import Queue
from headway.errors import CannotPromise
from tests.support.engine import ScriptedAgent, engine, function, submit
from tests.support.waiting import eventually

WHOLE = {"cpus": 1}  # of the node


async def drafts(core, *specs):
    return (await core.drafts.read(1, msgspec.json.encode(list(specs)), ndjson=False, key=None))[0]


async def busy(core) -> ScriptedAgent:
    """A node that finished a few tasks, runs one, and has many waiting; the planner has said so."""
    agent = await ScriptedAgent(core, cpus=1).join()
    await submit(core, *[function(resources=WHOLE) for _ in range(5_000)])
    for _ in range(3):
        await agent.succeed(*await agent.orders())
    await agent.orders()
    before = await core.outlook.read()  # it may be from the moment between two tasks, or from before it

    async def published() -> bool:
        plan = await core.outlook.read()
        return plan != before and plan.utilisation >= 0.95 and plan.drain_per_s > 0

    await eventually(published)
    return agent


async def test_on_a_full_fleet_a_task_that_asks_for_it_is_refused_when_it_could_not_start_in_time(dsn):
    async with engine(dsn) as core:
        await busy(core)
        wait = await core.promises.wait(1, await drafts(core, function()))
        assert wait is not None
        assert wait > 1.0
        with pytest.raises(CannotPromise) as refused:
            await core.promises.check(1, await drafts(core, function(delay_tolerance="10ms", on_late="refuse")))
        assert refused.value.retry_after is not None
        assert refused.value.retry_after > 1.0
        await core.promises.check(1, await drafts(core, function(delay_tolerance="10ms")))
        await core.promises.check(1, await drafts(core, function(delay_tolerance="300d", on_late="refuse")))


async def test_the_answer_says_when_it_will_probably_start_and_warns_when_that_is_too_late(dsn):
    async with engine(dsn) as core:
        await busy(core)
        asked = await drafts(core, function(delay_tolerance="10ms"))
        receipt = await core.admission.submit(1, asked)
        predicted, warning = await _promise(core, 1, asked, receipt)
        assert predicted is not None
        assert predicted.timestamp() > receipt.start_by_us / 1_000_000
        assert "after start_by" in warning


async def test_with_room_it_is_promised_at_once_and_without_nodes_nothing_is(dsn):
    async with engine(dsn) as core:
        asked = await drafts(core, function(on_late="refuse"))
        assert await core.promises.wait(1, asked) is None
        await core.promises.check(1, asked)
        await ScriptedAgent(core).join()
        assert await core.promises.wait(1, asked) == 0.0
        assert await core.promises.wait(1, await drafts(core, function(at="2099-01-01T00:00:00Z"))) is None


async def test_how_many_tasks_came_while_nothing_waited_does_not_make_a_bulk_late(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1).join()
        await submit(core, *[function(resources=WHOLE) for _ in range(3)])

        async def idle_again() -> bool:
            plan = await core.outlook.read()
            if plan.utilisation == 0 and 1 in plan.tenants and plan.tenants[1].rate > 0:
                return True
            reply = await agent.say(heartbeat=True)
            await agent.say(received=[(order.id, order.attempt) for order in reply.orders])
            await agent.succeed(*reply.orders)
            return False

        await eventually(idle_again)
        bulk = await drafts(core, *[function(resources=WHOLE, on_late="refuse", delay_tolerance="1s") for _ in range(3_000)])
        assert await core.promises.wait(1, bulk) is None, "nobody knows how fast they would be served"
        await core.promises.check(1, bulk)


async def test_a_tenant_with_tasks_that_wait_is_promised_what_it_is_served_with_meanwhile(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1).join()
        await submit(core, *[function(resources=WHOLE) for _ in range(5_000)])
        served = 0.0
        while not served:
            before = await core.outlook.read()
            await agent.succeed(*await agent.orders())

            async def said(before: PlanState = before) -> PlanState | None:
                plan = await core.outlook.read()
                return plan if plan != before else None

            plan = await eventually(said)
            served = plan.tenants[1].served if 1 in plan.tenants else 0.0
        wait = await core.promises.wait(1, await drafts(core, function(resources=WHOLE)))
        assert wait is not None
        assert wait > 0


async def test_a_count_goes_on_by_what_is_stored_and_what_starts_until_the_next_one(dsn, monkeypatch):
    monkeypatch.setattr(promises, "COUNT_S", 3600.0)  # a busy machine would count again
    async with engine(dsn) as core:
        await busy(core)
        asked = await drafts(core, *[function() for _ in range(1_000)])
        first = await core.promises.wait(1, asked[:1])
        core.promises.stored(1, asked)
        assert await core.promises.wait(1, asked[:1]) > first
        assert await core.promises.wait(1, asked) > await core.promises.wait(1, asked[:1])


async def test_what_a_closed_queue_its_time_or_others_hold_back_delays_no_other_task(dsn, monkeypatch):
    monkeypatch.setattr(promises, "COUNT_S", 0.0)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1).join()
        await core.queues.add(Queue("shut", paused=True))
        await submit(core, *[function(resources=WHOLE, queue="shut", delay_tolerance=0) for _ in range(5_000)])

        async def is_known() -> bool:
            plan = await core.outlook.read()
            return bool(plan.closed) and 1 in plan.tenants and plan.tenants[1].rate > 0 and plan.utilisation == 0

        for _ in range(3):
            await submit(core, function(resources=WHOLE))
            orders = await agent.orders()
            await core.outlook.run_once()  # while one runs: between two looks of its own all three may have come and gone
            await agent.succeed(*orders)
        await eventually(is_known)
        strict = await drafts(core, function(resources=WHOLE, delay_tolerance="1s", on_late="refuse"))
        await core.promises.check(1, strict)
        assert await core.promises.wait(1, strict) == 0.0
        state = (await core.outlook.read()).tenants[1]
        assert (state.waiting, state.served) == (0, 0.0)
        monkeypatch.setattr(promises, "COUNT_S", 3600.0)
        held_back = await drafts(
            core, function(queue="shut"), function(at=4_000_000_000), function(name="a"), function(name="b", after="a")
        )
        before = core.promises._counts[1].tasks
        core.promises.stored(1, held_back)
        assert core.promises._counts[1].tasks == before + 1


def test_a_count_never_falls_below_nothing():
    count = _Count(at=10.0, tasks=100, used=10.0)
    assert [count.now(at, per_s=10.0) for at in (10.0, 12.0, 100.0)] == [100, 80, 0]


async def test_at_its_quota_a_tenant_is_promised_the_end_of_its_own_and_behind_a_closed_queue_its_hours(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        async with core.database.cold() as connection:
            await connection.execute("update tenant set subscription = '{\"max_running\": 1}'::jsonb, changed_at = clock_timestamp()")
        await core.tenants.refresh()
        await submit(core, function(resources=WHOLE, execution_cap="100s"))
        await agent.orders()

        async def said() -> bool:
            state = (await core.outlook.read()).tenants.get(1)
            return state is not None and state.at_quota

        await eventually(said)
        wait = await core.promises.wait(1, await drafts(core, function(resources=WHOLE)))
        assert wait is not None
        assert 1 < wait < 100, "half of unknown runs up to 100 s"
        await core.queues.add(Queue("shut", paused=True))
        assert await core.promises.wait(1, await drafts(core, function(queue="shut"))) is None


async def test_tenants_that_submit_are_counted_by_one_question(dsn):
    async with engine(dsn) as core:
        await ScriptedAgent(core).join()
        asked = await drafts(core, function())
        tenants = [(await core.access.add_tenant(f"t{n}"))[0] for n in range(20)]
        for tenant in tenants:
            await core.promises.wait(tenant, asked)
        for count in core.promises._counts.values():
            count.at -= promises.COUNT_S + 1.0
        await core.promises.wait(tenants[0], asked)
        assert len({core.promises._counts[tenant].at for tenant in tenants}) == 1
