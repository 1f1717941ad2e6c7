"""Queues, peak, promotion, fairness, quotas: a real core on a real database (E2 E4 E5 E6 F5)."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from headway.control.core import Core
from headway.domain.lifecycle import State
from headway.domain.queues import Queue, Runs
from headway.errors import Conflict, InvalidInput, NotFound
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import LONG, codes, explained, nothing_comes, tenant
from tests.support.waiting import eventually

# Queues


async def test_a_paused_queue_hands_out_nothing_and_goes_on_when_resumed(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await core.queues.add(Queue("reports"))
        await core.queues.change("reports", paused=True)
        task = (await submit(core, function(queue="reports"))).ids[0]
        other = (await submit(core, function())).ids[0]
        assert [order.id for order in await agent.orders()] == [other]
        assert await nothing_comes(agent)
        assert await codes(core, task) == ["queue"]
        assert "queue reports is paused" in (await explained(core, task)).summary
        await core.queues.change("reports", paused=False)
        assert [order.id for order in await agent.orders()] == [task]


async def test_pausing_a_category_holds_its_tasks_also_on_the_short_way(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await core.queues.change("delayable", paused=True)
        await submit(core, function())
        urgent = (await submit(core, function(category="urgent"))).ids[0]
        assert [order.id for order in await agent.orders()] == [urgent]


async def test_a_queue_that_does_not_exist_is_refused_with_the_name_that_was_meant(dsn):
    async with engine(dsn) as core:
        await core.queues.add(Queue("nightly"))
        with pytest.raises(InvalidInput, match="nigthly") as caught:
            await submit(core, function(queue="nigthly"))
        assert caught.value.hint == "did you mean 'nightly'?"


async def test_a_queue_made_on_another_server_is_known_at_once(dsn):
    async with engine(dsn, holder="one") as one, engine(dsn, holder="two") as two:
        await one.queues.add(Queue("fresh"))
        await submit(two, function(queue="fresh"))
        with pytest.raises(Conflict):
            await two.queues.add(Queue("fresh"))


async def test_a_queue_outside_its_hours_says_when_it_opens(dsn):
    async with engine(dsn) as core:
        await ScriptedAgent(core).join()
        hour = (core.clock.now() + datetime.timedelta(hours=2)).hour
        from headway.domain.queues import hours_of

        await core.queues.add(Queue("later", hours=(hours_of(f"{hour}:00-{(hour + 1) % 24}:00"),)))
        task = (await submit(core, function(queue="later"))).ids[0]
        [reason] = [one for one in (await explained(core, task)).reasons if one.code == "queue"]  # and perhaps nobody has looked yet
        assert "outside its hours" in reason.text
        assert reason.until is not None
        assert reason.until.hour == hour
        assert await state_of(core, task) == State.READY


async def test_predefined_queues_and_named_ones_in_use_stay(dsn):
    async with engine(dsn) as core:
        await core.queues.add(Queue("used"))
        await core.queues.add(Queue("unused"))
        await submit(core, function(queue="used"))
        with pytest.raises(Conflict):
            await core.queues.remove("used")
        with pytest.raises(InvalidInput):
            await core.queues.remove("urgent")
        with pytest.raises(NotFound):
            await core.queues.remove("never-made")
        await core.queues.remove("unused")
        assert "unused" not in core.queues.by_name


async def test_views_show_depth_age_and_what_is_due_and_a_tenant_only_its_own(dsn):
    async with engine(dsn) as core:
        mine = await tenant(core, "mine")
        await submit(core, function(**LONG), function(**LONG), function(delay_tolerance=1), tenant=mine)
        await submit(core, function(at=4_000_000_000), tenant=mine)
        await submit(core, function(category="urgent"))
        views = {view.name: view for view in (await core.queue_views.look(mine))[0]}
        assert (views["delayable"].ready, views["delayable"].scheduled) == (2, 1)
        assert (views["urgent"].ready, views["urgent"].due) == (1, 1), "what is due is shown where it is served"
        everything = {view.name: view for view in (await core.queue_views.look(None))[0]}
        assert everything["urgent"].ready == 2
        assert everything["delayable"].oldest_ready_s is not None
        other = await tenant(core, "other")
        await submit(core, function(delay_tolerance=1), tenant=other)
        views = {view.name: view for view in (await core.queue_views.look(other))[0]}
        assert (views["delayable"].ready, views["delayable"].oldest_ready_s) == (0, None)
        assert views["urgent"].oldest_ready_s is not None, "its age is shown with it"


# The peak


async def fill(core: Core, agent: ScriptedAgent, cpus: float, **fields: Any) -> Any:
    [order] = [
        o for _ in [await submit(core, function(resources={"cpus": cpus, "memory": 1, "disk": 1}, **fields))] for o in await agent.orders()
    ]
    await agent.start(order)
    return order


async def test_at_peak_what_can_wait_waits_while_urgent_tasks_come_and_starts_when_it_ends(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=10).join()
        big = await fill(core, agent, 8.5, category="urgent")
        task = (await submit(core, function(resources={"cpus": 1, "memory": 1, "disk": 1}, **LONG))).ids[0]
        assert await nothing_comes(agent)
        assert core.planner.conditions.pressure.peak
        assert await codes(core, task) == ["peak"]
        urgent = await fill(core, agent, 1, category="urgent")
        await agent.succeed(big, urgent)
        assert [order.id for order in await agent.orders()] == [task]
        assert not core.planner.conditions.pressure.peak


async def test_at_peak_idle_room_does_not_wait_for_nothing(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=10).join()
        await fill(core, agent, 9, **LONG)
        task = (await submit(core, function(resources={"cpus": 1, "memory": 1, "disk": 1}, **LONG))).ids[0]
        assert [order.id for order in await agent.orders()] == [task], "nothing urgent has come: nothing to keep room for"


async def test_off_peak_only_waits_for_the_end_of_the_peak_and_never_does_not_wait_for_it(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=10).join()
        big = await fill(core, agent, 8.5, category="urgent")
        small = {"resources": {"cpus": 0.1, "memory": 1, "disk": 1}, "delay_tolerance": "1h"}
        only = (await submit(core, function(off_peak="only", **small))).ids[0]
        never = (await submit(core, function(off_peak="never", **small))).ids[0]
        assert [order.id for order in await agent.orders()] == [never]
        assert "off-peak only" in (await explained(core, only)).summary or await codes(core, only) == ["queue"]
        await agent.succeed(big)
        assert [order.id for order in await agent.orders()] == [only]


async def test_what_was_put_off_at_peak_is_on_record(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=10).join()
        big = await fill(core, agent, 9, category="urgent")
        for _ in range(3):
            await submit(core, function(resources={"cpus": 1, "memory": 1, "disk": 1}, **LONG))
        # This one waits for room, not for the end of the peak.
        await submit(core, function(resources={"cpus": 2, "memory": 1, "disk": 1}, delay_tolerance="1s"))
        await core.planner.run_once()
        await core.outlook.run_once()
        await agent.succeed(big)
        await agent.orders(4)
        await core.planner.run_once()
        await core.outlook.run_once()
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select * from peak")
        assert row["held_tasks"] == 3
        assert row["held_cpus"] == 3.0
        assert row["utilisation"] >= 0.9
        assert row["ended_at"] is not None


async def test_a_peak_that_put_nothing_off_ends_on_record_too_and_one_of_a_dead_leader_is_the_next_ones(dsn):
    async with engine(dsn, holder="old") as core:
        agent = await ScriptedAgent(core, cpus=10).join()
        big = await fill(core, agent, 9, category="urgent")
        await core.planner.run_once()
        await core.outlook.run_once()
    async with engine(dsn, holder="new") as core:

        async def peaks(*, ended: bool) -> bool:
            await core.planner.run_once()
            await core.outlook.run_once()
            async with core.database.cold() as connection:
                rows = await connection.fetch("select ended_at is not null as ended, utilisation from peak")
            return [row["ended"] for row in rows] == [ended] and rows[0]["utilisation"] >= 0.9

        await eventually(lambda: peaks(ended=False))
        agent.core = core
        await agent.succeed(big)
        await eventually(lambda: peaks(ended=True))


async def test_a_new_leader_goes_on_with_the_peak_of_the_old_one(dsn):
    async with engine(dsn, holder="old") as core:
        agent = await ScriptedAgent(core, cpus=10).join()
        await fill(core, agent, 7.5, category="urgent")  # between 70 and 80 %: peak only if it was before
        core.planner.conditions.pressure.peak = True
        core.planner.conditions.missed["urgent"] = 7
        await core.outlook.run_once()
    async with engine(dsn, holder="new") as core:

        async def goes_on() -> bool:
            return core.planner.conditions.pressure.peak and core.planner.conditions.missed["urgent"] == 7

        await eventually(goes_on)


async def test_a_tenant_is_not_told_how_many_tasks_of_others_were_late(dsn):
    async with engine(dsn) as core:
        async def counted() -> bool:
            await core.planner.run_once()
            core.planner.conditions.missed["urgent"] = 7  # again: who takes over begins with what was published
            await core.outlook.run_once()
            core.queue_views.forget()
            views, _ = await core.queue_views.look(None)
            return {view.name: view.missed for view in views}["urgent"] == 7

        await eventually(counted)
        views, _ = await core.queue_views.look(2)
        assert {view.missed for view in views} == {None}


# Promotion


async def test_a_task_that_can_no_longer_wait_is_promoted_before_its_tolerance_ends_and_told(dsn, monkeypatch):
    monkeypatch.setattr("headway.policy.promotion.SHORTEST_S", 300.0)  # two seconds are less than a busy machine may stand still
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=0.1).join()
        await core.queues.add(Queue("shut", paused=True))
        await submit(core, function(resources={"cpus": 0.1}))
        await agent.orders()  # and holds it
        [held_back] = (await submit(core, function(resources={"cpus": 0.1}, delay_tolerance=110, queue="shut"))).ids
        soon = (await submit(core, function(resources={"cpus": 0.1}, delay_tolerance=120))).ids[0]
        later = (await submit(core, function(resources={"cpus": 0.1}, delay_tolerance="1h"))).ids[0]

        async def promoted() -> bool:
            await core.planner.run_once()
            await core.outlook.run_once()
            async with core.database.cold() as connection:
                return await connection.fetchval("select category from task where id = $1", soon) == 0

        await eventually(promoted)
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select start_by > clock_timestamp() as early from task where id = $1", soon)
            told = await connection.fetch("select tasks from event where kind = 'task.promoted'")
            for waits in (later, held_back):  # what cannot be started now is not said to be
                assert await connection.fetchval("select category from task where id = $1", waits) == 1
        assert row["early"]
        assert [list(one["tasks"]) for one in told] == [[soon]]
        assert core.outlook.promoted == 1


async def test_on_a_full_fleet_a_task_whose_rooms_never_come_is_due_ten_minutes_before_the_others(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=2).join()  # four places
        await submit(core, *[function(preemptible=False, **LONG)] * 6)
        held = await agent.orders(4)
        await agent.start(*held)
        await agent.succeed(held.pop())
        large = (await submit(core, function(resources={"cpus": 2}, delay_tolerance="5m"))).ids[0]

        async def promoted() -> list[int]:
            await core.planner.run_once()
            await core.outlook.run_once()
            async with core.database.cold() as connection:
                return [row["id"] for row in await connection.fetch("select id from task where category = 0")]

        await eventually(promoted)
        assert await promoted() == [large]
        core.queue_views.forget()
        views, _ = await core.queue_views.look(None)
        assert {view.name: view.due for view in views if view.due} == {"urgent": 1}


# Fairness and quotas


async def test_a_million_of_one_tenant_do_not_delay_anothers_single_task_beyond_the_next_free_place(dsn):
    async with engine(dsn) as core:
        flood, single = await tenant(core, "flood"), await tenant(core, "single")
        agent = await ScriptedAgent(core, cpus=2).join()  # four places
        await submit(core, *[function(preemptible=False, **LONG)] * 500, tenant=flood)
        held = await agent.orders(4)
        await agent.start(*held)
        task = (await submit(core, function(**LONG), tenant=single)).ids[0]
        await submit(core, *[function(category="urgent")] * 50, tenant=flood)
        await agent.succeed(held.pop())
        [order] = await agent.orders()
        assert order.id == task, "the first place that became free, though the other's urgent tasks wait"


async def test_no_room_is_kept_for_a_tenant_with_more_than_its_part_while_the_others_tasks_are_still_unread(dsn):
    async with engine(dsn) as core:
        flood, single = await tenant(core, "flood"), await tenant(core, "single")
        agent = await ScriptedAgent(core, cpus=2).join()  # four places
        await submit(core, *[function(preemptible=False, **LONG)] * 50, tenant=flood)
        await agent.start(*await agent.orders(4))
        heads = core.planner.board.heads

        async def known(tenant: int, groups: int) -> bool:
            return len([head for group, head in heads.items() if group[0] == tenant and len(head)]) == groups

        await submit(core, function(**LONG), tenant=single)
        await eventually(lambda: known(single, 1))
        await submit(core, function(category="urgent"), tenant=flood)
        await eventually(lambda: known(flood, 2))
        assert not core.planner.conditions.pressure.keep
        core.planner.changed([group for group in heads if group[0] == single])  # unread, as when it had just come
        core.planner.ready({group: [head.keys[0]] for group, head in heads.items() if group[0] == flood})
        await core.planner.run_once()
        assert not core.planner.conditions.pressure.keep


async def test_fairness_is_counted_from_the_database_so_a_new_leader_goes_on_where_the_old_one_stopped(dsn):
    async with engine(dsn, holder="old") as core:
        flood, single = await tenant(core, "flood"), await tenant(core, "single")
        agent = await ScriptedAgent(core, cpus=2).join()
        await submit(core, *[function(**LONG)] * 50, tenant=flood)
        await agent.orders(4)
        await submit(core, function(**LONG), tenant=single)
    async with engine(dsn, holder="new") as core:
        await core.planner.run_once()
        usage = core.planner.board.usage
        assert usage.tenants[flood].count == 4
        assert usage.share(flood) == pytest.approx(1.0)
        assert usage.share(single) == 0.0


async def test_weights_divide_the_fleet(dsn):
    async with engine(dsn) as core:
        heavy, light = await tenant(core, "heavy", weight=3.0), await tenant(core, "light", weight=1.0)
        agent = await ScriptedAgent(core, cpus=8).join()  # sixteen places
        await core.queues.change("delayable", paused=True)
        for one in (heavy, light):
            await submit(core, *[function(**LONG)] * 40, tenant=one)

        async def both_known() -> bool:
            return [len(head) for head in core.planner.board.heads.values()] == [40, 40]

        await eventually(both_known)
        await core.queues.change("delayable", paused=False)
        await agent.orders(16)
        usage = core.planner.board.usage
        assert (usage.tenants[heavy].count, usage.tenants[light].count) == (12, 4)


async def test_a_tenant_at_its_quota_waits_and_goes_on_when_one_of_its_tasks_ends(dsn):
    async with engine(dsn) as core:
        small = await tenant(core, "small", max_running=2)
        agent = await ScriptedAgent(core, cpus=8).join()
        ids = (await submit(core, *[function(**LONG)] * 3, tenant=small)).ids
        first = await agent.orders(2)
        assert await nothing_comes(agent)
        assert await codes(core, ids[2]) == ["quota"]
        assert "2 of 2 running tasks" in (await explained(core, ids[2])).summary
        await agent.succeed(first[0])
        assert [order.id for order in await agent.orders()] == [ids[2]]


async def test_a_raised_quota_holds_at_once(dsn):
    async with engine(dsn) as core:
        small = await tenant(core, "small", max_cpus=0.5)
        agent = await ScriptedAgent(core, cpus=8).join()
        await submit(core, function(**LONG), function(**LONG), tenant=small)
        await agent.orders(1)
        assert await nothing_comes(agent)
        async with core.database.cold() as connection:
            await connection.execute("update tenant set subscription = '{}', changed_at = clock_timestamp() where id = $1", small)
        await core.tenants.refresh()
        await agent.orders(1)


async def test_queues_with_rules_of_their_own_follow_the_peak(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=10).join()
        await core.queues.add(Queue("calm", runs=Runs.OFF_PEAK))
        big = await fill(core, agent, 9, **LONG)
        task = (await submit(core, function(queue="calm", delay_tolerance=0, resources={"cpus": 0.1}))).ids[0]
        assert await nothing_comes(agent)
        assert "runs off-peak only" in (await explained(core, task)).summary or await codes(core, task) == ["queue"]
        await agent.succeed(big)
        assert [order.id for order in await agent.orders()] == [task]
