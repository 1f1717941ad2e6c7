"""A tenant is removed: what goes at once, what is cancelled, what stays (A7 J5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.control import removing
from headway.control.access import Caller
from headway.control.audit import Entry
from headway.control.core import Core
from headway.control.webhooks import Owner
from headway.domain.lifecycle import Outcome, State
from headway.domain.schedule import Scheduled
from headway.domain.spec import TaskSpec
from headway.domain.tenant import SubscriptionSpec
from headway.errors import Conflict, Forbidden, NotFound, Unauthorized
from headway.wire.exchange import Order
from headway.wire.views.tenants import RemovedTenantView
from tests.support.engine import ScriptedAgent, cut_off, done, end_loops, engine, function, listening, state_of, submit
from tests.support.waiting import eventually


async def tenant(core: Core, name: str = "acme") -> int:
    number = await core.administration.create_tenant(name, SubscriptionSpec(isolation="none"), await entry(core))
    await core.access.add(f"token-{name}", "tenant", tenant=number)
    return number


async def entry(core: Core) -> Entry:
    return await core.audit.begin(Caller("admin", 1, "default", everywhere=True), "tenants.delete", "acme")


async def remove(core: Core, name: str = "acme", *, cancel: bool = False) -> RemovedTenantView:
    return await core.removing.remove(name, await entry(core), cancel=cancel)


async def rows(core: Core, statement: str, *values: Any) -> list[Any]:
    async with core.database.cold() as connection:
        found: list[Any] = await connection.fetch(statement, *values)
        return found


async def test_all_a_tenant_has_goes_with_it_and_what_another_has_stays(dsn, tmp_path):
    async with engine(dsn, secrets_key=str(tmp_path / "key")) as core:
        numbers = [await tenant(core, name) for name in ("acme", "other")]
        for number in numbers:
            await core.secrets.put(number, "password", "value")
            await core.webhooks.add(Owner(number, admin=False), name="hook", url="https://example.com/", events=[])
            task = msgspec.convert(function(), TaskSpec)
            await core.schedules.apply(number, [Scheduled(3600, start="2099-01-01T00:00:00Z", name="nightly", task=task)])
        gone = await remove(core)
        assert (gone.keys, gone.schedules, gone.webhooks, gone.secrets, gone.cancelling) == (1, 1, 1, 1, 0)
        for table in ("secret", "webhook", "schedule"):
            assert [row["tenant"] for row in await rows(core, f"select tenant from {table}")] == [numbers[1]], table
        with pytest.raises(Unauthorized):
            await core.access.caller("Bearer token-acme")
        assert (await core.access.caller("Bearer token-other")).tenant == numbers[1]
        with pytest.raises(NotFound):
            await core.administration.tenant_id("acme")
        with pytest.raises(NotFound):
            await remove(core)


async def test_who_changes_a_tenant_in_the_moment_it_is_removed_does_not_open_it_again(dsn):
    async with engine(dsn) as core:
        number = await tenant(core)
        await remove(core)
        with pytest.raises(NotFound, match="removed"):
            await core.administration.set_subscription(number, SubscriptionSpec(suspended=False), await entry(core))
        with pytest.raises(Forbidden):
            await submit(core, function(), tenant=number)


async def test_a_tenant_with_live_tasks_is_not_removed_and_nothing_of_it_changes(dsn):
    async with engine(dsn) as core:
        number = await tenant(core)
        await submit(core, function(), function(at="2099-01-01T00:00:00Z"), tenant=number)
        with pytest.raises(Conflict, match="2 waiting"):
            await remove(core)
        assert (await core.access.caller("Bearer token-acme")).tenant == number
        await submit(core, function(), tenant=number)


async def test_what_waits_and_what_runs_is_cancelled_and_history_keeps_the_name(dsn):
    async with engine(dsn) as core:
        number = await tenant(core)
        agent = await ScriptedAgent(core).join()
        running = (await submit(core, function(), tenant=number)).ids[0]
        (order,) = await agent.orders()
        await agent.start(order)
        later, blocked = (await submit(core, function(name="a", at="2099-01-01T00:00:00Z"), function(after=["a"]), tenant=number)).ids
        assert (await remove(core, cancel=True)).cancelling == 3
        for task in (later, blocked):
            await eventually(lambda task=task: is_in(core, task, State.CANCELLED))

        async def told() -> bool:
            return [one.id for one in (await agent.say(wait_s=0.1)).cancels] == [running]

        await eventually(told)
        await agent.fail(order, Outcome.CANCELLED)
        await eventually(lambda: is_in(core, running, State.CANCELLED))
        shown = await rows(core, "select w.name from task_history h join tenant w on w.id = h.tenant where h.id = $1", running)
        assert [row["name"] for row in shown] == ["acme"]


async def test_another_server_hears_of_it(dsn):
    async with engine(dsn, holder="one") as one, engine(dsn, holder="two") as two:
        await eventually(lambda: listening(one, 2))
        number = await tenant(one)
        await eventually(lambda: number in two.tenants.subscriptions)
        await remove(one)
        await eventually(lambda: number in two.tenants.removed)
        with pytest.raises(Forbidden):
            await submit(two, function(), tenant=number)


async def test_what_a_server_took_in_before_it_had_heard_is_cancelled(dsn):
    async with engine(dsn) as core:
        number = await tenant(core)
        await remove(core)
        core.allowances.limited.pop(number)  # as on a server that has not heard
        (late,) = (await submit(core, function(), tenant=number)).ids
        core.bus.tenants()
        await eventually(lambda: is_in(core, late, State.CANCELLED))


async def test_a_server_that_dies_right_after_a_removal_leaves_the_rest_to_another(dsn):
    async with engine(dsn, holder="one", duty_lease_s=1.0, lost_s=120.0) as one:
        number = await tenant(one)
        agent = await ScriptedAgent(one).join()
        (held,) = (await submit(one, function(), tenant=number)).ids
        [order] = await agent.orders()
        (waiting,) = (await submit(one, function(at=4_000_000_000), tenant=number)).ids
        await end_loops(one)
        await remove(one, cancel=True)
        assert await state_of(one, waiting) == State.SCHEDULED
        await cut_off(one)
        async with engine(dsn, holder="two", duty_lease_s=1.0, lost_s=120.0) as two:
            agent.core = two
            await eventually(lambda: told_to_cancel(agent, order))
            await eventually(lambda: is_in(two, waiting, State.CANCELLED))
            await agent.say(finished=[done(order, outcome=Outcome.CANCELLED)])
            assert await state_of(two, held) == State.CANCELLED
            with pytest.raises(Forbidden):
                await submit(two, function(), tenant=number)


async def told_to_cancel(agent: ScriptedAgent, order: Order) -> bool:
    told = await agent.say(heartbeat=True, held=[(order.id, order.attempt)], wait_s=1.0)
    return order.id in [cancel.id for cancel in told.cancels]


async def test_a_dead_letter_of_a_removed_tenant_is_not_sent_again_and_goes_with_its_history(dsn, monkeypatch):
    async with engine(dsn) as core:
        number = await tenant(core)
        agent = await ScriptedAgent(core).join()
        (dead,) = (await submit(core, function(), tenant=number)).ids
        await agent.fail((await agent.orders())[0])
        await remove(core)
        with pytest.raises(Conflict, match="was removed"):
            await core.actions.revive([dead], None, None)
        monkeypatch.setattr(removing, "HEARD_S", 0.0)
        await core.removing.run_once()
        assert await state_of(core, dead) == State.FAILED
        core.removing.retention_days = -1  # all of it is old
        await core.removing.run_once()
        assert await state_of(core, dead) == State.CANCELLED
        await core.removing.run_once()
        assert [row["swept_at"] is None for row in await rows(core, "select swept_at from tenant where id = $1", number)] == [False]


async def test_the_name_of_a_removed_tenant_is_not_given_to_another(dsn):
    async with engine(dsn) as core:
        await tenant(core)
        await remove(core)
        with pytest.raises(Conflict, match="there was a tenant 'acme'"):
            await core.administration.create_tenant("acme", SubscriptionSpec(), await entry(core))


async def test_the_tenant_administrators_work_as_cannot_be_removed(dsn):
    async with engine(dsn) as core:
        with pytest.raises(Conflict, match="cannot be removed"):
            await remove(core, "default")


async def is_in(core: Core, task: int, state: State) -> bool:
    return await state_of(core, task) == state
