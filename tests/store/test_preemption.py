"""Room for urgent tasks on a full fleet, lent by long ones and given back to them (E9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headway.control import preemption
from headway.control.core import Core
from headway.domain.lifecycle import Outcome, State
from headway.errors import Conflict
from headway.store.queries import query
from headway.wire.exchange import Control, Notice, Order
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import tenant
from tests.support.waiting import eventually

WHOLE = {"cpus": 2, "memory": "1GiB"}  # all the CPU of a scripted node, a part of its memory
LONG = {"execution_cap": "20h", "resources": WHOLE}
URGENT = {"category": "urgent", "resources": WHOLE, "execution_cap": "2s"}


async def begin(core: Core, agent: ScriptedAgent, **fields: Any) -> Order:
    await submit(core, function(**fields))
    [order] = await agent.orders()
    await agent.start(order)
    return order


async def next_of(agent: ScriptedAgent) -> tuple[list[Order], list[Control]]:
    """The next orders and controls, acknowledged."""
    async with asyncio.timeout(60):
        while True:
            reply = await agent.say(wait_s=2.0)
            if reply.orders or reply.controls:
                await agent.say(received=[(order.id, order.attempt) for order in reply.orders])
                return reply.orders, reply.controls


async def gather(agent: ScriptedAgent, *, orders: int = 0, controls: int = 0) -> tuple[list[Order], list[Control]]:
    got: tuple[list[Order], list[Control]] = ([], [])
    while len(got[0]) < orders or len(got[1]) < controls:
        new = await next_of(agent)
        got[0].extend(new[0])
        got[1].extend(new[1])
    return got


async def confirm(agent: ScriptedAgent, control: Control, kind: str) -> None:
    await agent.say(notices=[Notice(control.id, control.attempt, kind, control.number)])


async def test_a_long_task_is_frozen_for_an_urgent_one_and_goes_on_after_it(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        [urgent] = (await submit(core, function(**URGENT))).ids
        [order], [control] = await gather(agent, orders=1, controls=1)
        assert order.id == urgent
        assert (control.id, control.word) == (long.id, "pause")
        await confirm(agent, control, "paused")
        assert await state_of(core, long.id) == State.PAUSED
        with pytest.raises(Conflict, match="more urgent"):
            await core.steering.resume(long.id, None)
        await agent.succeed(order)
        _, [control] = await gather(agent, controls=1)
        assert (control.id, control.word) == (long.id, "resume")
        await confirm(agent, control, "resumed")
        await agent.succeed(long)
        assert await state_of(core, long.id) == State.SUCCEEDED
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select requeues, attempt from task_history where id = $1", long.id)
            kinds = [r["kind"] for r in await connection.fetch("select kind from event where $1 = any (tasks) order by seq", long.id)]
        assert tuple(row) == (0, 1)
        assert kinds == ["task.preempted", "task.paused", "task.resumed", "task.succeeded"]


async def test_that_a_task_made_room_is_forgotten_when_it_has_gone_on_and_ended(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        await submit(core, function(**URGENT))
        [order], [control] = await gather(agent, orders=1, controls=1)
        await confirm(agent, control, "paused")
        await agent.succeed(order)
        _, [control] = await gather(agent, controls=1)
        await confirm(agent, control, "resumed")
        await agent.succeed(long)
        await core.archivist.run_once()
        async with core.database.cold() as connection:
            assert await connection.fetch("select task from preemption") == []


async def test_the_order_comes_together_with_the_word_to_stop_for_it(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        [urgent] = (await submit(core, function(**URGENT))).ids
        orders, controls = await next_of(agent)
        if not orders:  # a control may come first; an order without room would be given back, and nobody stops twice in a row
            orders, _ = await next_of(agent)
        assert ([order.id for order in orders], [control.id for control in controls]) == ([urgent], [long.id])


async def test_without_memory_beside_it_the_long_task_is_queued_again_and_uses_no_attempt(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        all_memory = {"cpus": 2, "memory": "12GiB"}
        long = await begin(core, agent, execution_cap="20h", resources=all_memory)
        [urgent] = (await submit(core, function(category="urgent", resources=all_memory))).ids
        [order], [control] = await gather(agent, orders=1, controls=1)
        assert order.id == urgent
        assert (control.id, control.word, float(control.argument) > 0) == (long.id, "yield", True)
        await confirm(agent, control, "yielding")
        await agent.fail(long, Outcome.PRE_EMPTED)
        assert await state_of(core, long.id) == State.READY
        await agent.succeed(order)
        [again] = await agent.orders()
        assert (again.id, again.attempt) == (long.id, 2)
        await agent.succeed(again)
        assert await state_of(core, long.id) == State.SUCCEEDED


async def test_who_forbids_it_and_who_is_urgent_is_not_stopped(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        half = {"cpus": 1, "memory": "1GiB"}
        await begin(core, agent, execution_cap="20h", resources=half, preemptible=False)
        await begin(core, agent, execution_cap="20h", resources=half, category="urgent")
        [urgent] = (await submit(core, function(category="urgent", resources=half))).ids

        async def is_late() -> bool:
            return bool(core.planner.late(core.clock.now(), 10))

        await eventually(is_late)
        await core.preemption.run_once()
        assert not (await agent.say()).controls
        assert await state_of(core, urgent) == State.READY


async def test_a_tenant_above_its_part_stops_its_own_task_and_no_other(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        other, _ = await core.access.add_tenant("other")
        small = {"cpus": 0.5, "memory": "64MiB"}
        [foreign] = (await submit(core, function(execution_cap="20h", resources=small), tenant=other)).ids
        own = (await submit(core, *(function(execution_cap="10h", resources=small) for _ in range(3)))).ids
        orders: list[Order] = []
        while len(orders) < 4:
            orders += await agent.orders()
        for order in orders:
            await agent.start(order)
        [urgent] = (await submit(core, function(category="urgent", resources=small, execution_cap="2s"))).ids
        [order], [control] = await gather(agent, orders=1, controls=1)
        assert order.id == urgent
        assert control.id in own
        assert control.id != foreign


async def test_one_pause_serves_urgent_tasks_one_after_another(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        ids = set((await submit(core, *(function(**URGENT) for _ in range(3)))).ids)
        [order], [control] = await gather(agent, orders=1, controls=1)
        await confirm(agent, control, "paused")
        for left in (2, 1, 0):
            ids.remove(order.id)
            await agent.succeed(order)
            if left:
                [order], controls = await gather(agent, orders=1)
                assert not controls
        _, [control] = await gather(agent, controls=1)
        assert (control.id, control.word, ids) == (long.id, "resume", set())


async def test_another_server_gives_the_room_back_when_the_one_that_lent_it_is_gone(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        await submit(core, function(**URGENT))
        [order], [control] = await gather(agent, orders=1, controls=1)
        await confirm(agent, control, "paused")
    async with engine(dsn, holder="another") as other:
        agent.core = other
        await agent.succeed(order)
        _, [control] = await gather(agent, controls=1)
        assert (control.id, control.word) == (long.id, "resume")


async def test_a_person_who_pauses_a_task_that_made_room_keeps_it_paused(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        await submit(core, function(**URGENT))
        [order], [control] = await gather(agent, orders=1, controls=1)
        await confirm(agent, control, "paused")
        assert await core.steering.pause(long.id, None) is None
        await agent.succeed(order)

        async def given_back() -> bool:
            async with core.database.cold() as connection:
                return bool(await connection.fetchval("select true from preemption where resumed_at is not null"))

        await eventually(given_back)
        assert not (await agent.say()).controls
        await core.steering.resume(long.id, None)
        _, [control] = await gather(agent, controls=1)
        assert control.word == "resume"


async def test_a_person_who_pauses_a_task_that_is_about_to_go_on_keeps_it_paused(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        await submit(core, function(**URGENT))
        [order], [control] = await gather(agent, orders=1, controls=1)
        await confirm(agent, control, "paused")
        await agent.succeed(order)
        _, [going_on] = await gather(agent, controls=1)
        assert await core.steering.pause(long.id, None) is not None  # its node has not said that it goes on
        _, [*_, again] = await gather(agent, controls=1)
        assert again.word == "pause"
        await confirm(agent, going_on, "resumed")
        await confirm(agent, again, "paused")
        assert await state_of(core, long.id) == State.PAUSED


async def test_a_task_that_made_room_on_a_node_that_was_lost_is_resumed_on_the_next_one(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        await submit(core, function(**URGENT))
        _, [control] = await gather(agent, orders=1, controls=1)
        await confirm(agent, control, "paused")
        monkeypatch.setattr(core.preemption, "_forget", lambda: asyncio.sleep(0))  # it has not come to that yet
        again = await ScriptedAgent(core).join()
        [order] = await again.orders()
        await again.succeed(order)
        [order] = await again.orders()
        await again.start(order)
        assert order.id == long.id
        await core.steering.pause(long.id, None)
        _, [control] = await gather(again, controls=1)
        await confirm(again, control, "paused")
        await core.steering.resume(long.id, None)
        _, [control] = await gather(again, controls=1)
        assert control.word == "resume"


async def test_when_the_node_is_lost_both_run_elsewhere(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        long = await begin(core, agent, **LONG)
        [urgent] = (await submit(core, function(**URGENT))).ids
        _, [control] = await gather(agent, orders=1, controls=1)
        await confirm(agent, control, "paused")
        again = await ScriptedAgent(core).join()
        [order] = await again.orders()
        assert order.id == urgent
        await again.succeed(order)
        [order] = await again.orders()
        assert order.id == long.id
        await again.succeed(order)
        assert await state_of(core, long.id) == State.SUCCEEDED


async def test_a_frozen_task_goes_on_as_soon_as_others_leave_room_for_it(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        half = {"cpus": 1, "memory": "1GiB"}
        long = await begin(core, agent, execution_cap="20h", resources=half)
        beside = await begin(core, agent, execution_cap="10h", resources=half, preemptible=False)
        await submit(core, function(category="urgent", resources=half, execution_cap="5h"))
        [urgent], [control] = await gather(agent, orders=1, controls=1)
        assert (control.id, control.word) == (long.id, "pause")
        await confirm(agent, control, "paused")
        await agent.start(urgent)
        await agent.succeed(beside)
        _, [control] = await gather(agent, controls=1)
        assert (control.id, control.word) == (long.id, "resume"), "the urgent one still runs, in the room of the third"
        await confirm(agent, control, "resumed")
        assert [await state_of(core, task) for task in (long.id, urgent.id)] == [State.RUNNING, State.RUNNING]


async def test_all_nodes_are_looked_at_in_turn(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "MOST_NODES", 1)
    async with engine(dsn) as core:
        for name in ("one", "two"):
            await begin(core, await ScriptedAgent(core, name).join(), preemptible=False, **LONG)
        agent = await ScriptedAgent(core, "three").join()
        long = await begin(core, agent, **LONG)
        [urgent] = (await submit(core, function(**URGENT))).ids
        [order], [control] = await gather(agent, orders=1, controls=1)
        assert (order.id, control.id) == (urgent, long.id)


async def test_who_stops_only_its_own_tasks_finds_them_among_longer_ones_of_others(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "MOST_CANDIDATES", 1)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        other, _ = await core.access.add_tenant("other")
        small = {"cpus": 0.5, "memory": "64MiB"}
        await submit(core, function(execution_cap="20h", resources=small), tenant=other)
        own = (await submit(core, *(function(execution_cap="10h", resources=small) for _ in range(3)))).ids
        orders: list[Order] = []
        while len(orders) < 4:
            orders += await agent.orders()
        await agent.start(*orders)
        [urgent] = (await submit(core, function(category="urgent", resources=small, execution_cap="2s"))).ids
        [order], [control] = await gather(agent, orders=1, controls=1)
        assert order.id == urgent
        assert control.id in own


async def test_a_burst_of_urgent_tasks_is_late_all_together_as_far_as_the_quota_goes(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await begin(core, agent, execution_cap="20h", resources=WHOLE, preemptible=False)
        bounded = await tenant(core, "bounded", max_running=3)
        free = set((await submit(core, *(function(**URGENT) for _ in range(5)))).ids)
        held = (await submit(core, *(function(**URGENT) for _ in range(5)), tenant=bounded)).ids

        async def late() -> bool:
            found = {key[2] for _, key in core.planner.late(core.clock.now(), 20)}
            return found == free | set(held[:3])

        await eventually(late)


async def test_a_tenant_above_an_equal_part_stops_a_larger_one_though_no_smaller_one_has_urgent_tasks(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        small, most = {"cpus": 0.1, "memory": "64MiB"}, {"cpus": 1.3, "memory": "1GiB"}
        long = {"execution_cap": "20h", "preemptible": False}
        [large] = (await submit(core, function(execution_cap="20h", resources=most))).ids
        middle = await tenant(core, "middle")
        await submit(core, function(resources={"cpus": 0.5, "memory": "64MiB"}, **long), tenant=middle)
        for number in range(2):  # an equal part of 2 cpus is a half
            await submit(core, function(resources=small, **long), tenant=await tenant(core, f"small-{number}"))
        orders: list[Order] = []
        while len(orders) < 4:
            orders += await agent.orders()
        await agent.start(*orders)
        urgent = {"cpus": 0.2, "memory": "64MiB"}
        [task] = (await submit(core, function(category="urgent", resources=urgent, execution_cap="2s"), tenant=middle)).ids
        [order], [control] = await gather(agent, orders=1, controls=1)
        assert (order.id, control.id, control.word) == (task, large, "pause")


async def test_the_room_on_a_node_that_is_lost_or_removed_is_lent_to_nobody(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        [task] = (await submit(core, function(at="2099-01-01T00:00:00Z"))).ids
        async with core.database.cold() as connection:
            shape = await connection.fetchval("update task set state = 2 where id = $1 returning shape", task)
            for change in ("update node set state = 1", "delete from node"):
                await connection.execute(change)
                assert await connection.fetchrow(query("preemption.lend"), task, agent.id, shape) is None
