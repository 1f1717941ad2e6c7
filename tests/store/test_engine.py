"""The life of a task through planner, reports, retries, dead letters, loss of nodes (E1 F1 F2 F3 F4 G2 I1 I2)."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from headway.control.sessions import FRESH_S
from headway.domain.lifecycle import Outcome, State
from headway.errors import Unavailable
from tests.support.engine import ScriptedAgent, done, engine, function, state_of, submit
from tests.support.waiting import eventually


async def test_a_task_is_leased_run_and_finished_once(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(input=[1]))).ids[0]
        order = (await agent.orders())[0]
        assert (order.id, order.attempt, order.input) == (task, 1, b"[1]")
        assert await state_of(core, task) == State.LEASED
        await agent.start(order)
        assert await state_of(core, task) == State.RUNNING
        await agent.succeed(order, result=b"42")
        assert await state_of(core, task) == State.SUCCEEDED
        async with core.database.cold() as connection:
            rows = await connection.fetch("select result, outcome from task_history where id = $1", task)
        assert [tuple(r) for r in rows] == [(b"42", Outcome.SUCCEEDED)]


async def test_an_order_is_repeated_until_it_is_acknowledged(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.sessions.REPEAT_S", 0.05)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await submit(core, function())
        first = (await agent.say(wait_s=30)).orders
        again = (await agent.say(wait_s=30)).orders
        assert [o.id for o in first] == [o.id for o in again]
        reply = await agent.say(received=[(first[0].id, first[0].attempt)])
        assert reply.orders == []


async def test_another_server_sends_the_orders_a_dead_server_planned(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        await eventually(lambda: _is(core, task, State.LEASED))
        async with engine(dsn, holder="second") as other:
            agent.core = other
            orders = (await agent.say(wait_s=30)).orders
            assert [o.id for o in orders] == [task]


async def _is(core, task: int, state: State) -> bool:
    return await state_of(core, task) == state


async def test_a_task_on_an_idle_system_is_stored_straight_onto_a_node(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await eventually(lambda: _knows(core, agent.id))
        receipt = await submit(core, function())  # the shape becomes known
        for _ in range(20):  # now and then the planner is about to look for tasks itself
            await agent.succeed(*await agent.orders())
            receipt = await submit(core, function(name="quick", labels={"a": "b"}, input=[7]))
            if receipt.state == State.LEASED:
                break
        assert receipt.state == State.LEASED
        order = (await agent.orders())[0]
        assert (order.id, order.attempt, order.name, order.input) == (receipt.ids[0], 1, "quick", b"[7]")
        assert core.planner.rooms[agent.id].held == 1
        await agent.succeed(order)
        assert await state_of(core, receipt.ids[0]) == State.SUCCEEDED
        assert core.planner.rooms[agent.id].held == 0


async def test_nobody_is_passed_by_the_short_way(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=0.6).join()
        await eventually(lambda: _knows(core, agent.id))
        await submit(core, function(), function(resources={"cpus": 0.1}))  # both shapes become known
        await agent.succeed(*await agent.orders(2))
        await submit(core, function(), function())  # one runs, one waits
        await agent.orders()
        small = await submit(core, function(resources={"cpus": 0.1}, name="small"))
        assert small.state == State.READY


async def test_the_earliest_start_by_goes_first_then_the_shorter_cap(dsn):
    async with engine(dsn) as core:
        later = function(name="later", delay_tolerance=300)
        sooner = function(name="sooner", delay_tolerance=1)
        receipt = await submit(
            core, later, sooner, resources_of_one_cpu(name="long", cap=100), resources_of_one_cpu(name="short", cap=5)
        )
        agent = await ScriptedAgent(core, cpus=0.5).join()
        names = []
        for _ in range(2):
            order = (await agent.orders())[0]
            names.append(order.name)
            await agent.succeed(order)
        assert names == ["sooner", "later"]
        big = await ScriptedAgent(core, "big", cpus=1).join()
        order = (await big.orders())[0]
        assert order.name == "short"
        assert len(receipt.ids) == 4


def resources_of_one_cpu(*, name: str, cap: float) -> dict:
    return function(name=name, resources="regular", execution_cap=cap, delay_tolerance=0)


async def test_a_node_is_never_given_more_than_fits(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=2).join()
        await submit(core, *[function(resources="regular")] * 10)
        orders = await agent.orders(2)
        await asyncio.wait_for(core.planner.run_once(), 60)
        assert len(orders) == 2
        assert (await agent.say()).orders == []


async def test_a_task_goes_to_the_node_that_has_the_label(dsn):
    async with engine(dsn) as core:
        plain = await ScriptedAgent(core, "plain").join()
        gpu = await ScriptedAgent(core, "gpu", labels={"gpu": "a100"}).join()
        wanted = (await submit(core, function(resources={"labels": {"gpu": "a100"}}))).ids[0]
        ordinary = (await submit(core, function())).ids[0]
        assert [o.id for o in await gpu.orders()] == [wanted]
        assert [o.id for o in await plain.orders()] == [ordinary]


async def test_a_failure_is_retried_after_its_interval_and_then_becomes_a_dead_letter(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(attempts=2, retry={"interval": 0.05, "jitter": 0}))).ids[0]
        await agent.fail((await agent.orders())[0], message="first")
        await agent.fail((await agent.orders())[0], message="second")
        async with core.database.cold() as connection:
            dead = await connection.fetchrow("select state, attempt, failures, error from dead_letter where id = $1", task)
            earlier = await connection.fetchrow("select attempt, outcome, error from attempt where task = $1", task)
        assert (dead["state"], dead["attempt"], dead["failures"]) == (State.FAILED, 2, 2)
        assert "second" in dead["error"]
        assert (earlier["attempt"], earlier["outcome"]) == (1, Outcome.ERROR)
        assert "first" in earlier["error"]


async def test_requeues_use_no_attempt(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(retry={"interval": 0}))).ids[0]
        for outcome in (Outcome.REQUEUED, Outcome.PRE_EMPTED, Outcome.TRY_LATER):
            await agent.fail((await agent.orders())[0], outcome)
        await agent.succeed((await agent.orders())[0])
        assert await state_of(core, task) == State.SUCCEEDED


async def test_what_was_not_begun_comes_back_without_using_an_attempt(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        order = (await agent.orders())[0]
        await agent.say(returned=[(order.id, order.attempt)])
        again = (await agent.orders())[0]
        assert (again.id, again.attempt) == (task, 2)
        await agent.succeed(again)
        async with core.database.cold() as connection:
            assert await connection.fetchval("select failures from task_history where id = $1", task) == 0


async def _knows(core, node: int) -> bool:
    return node in core.planner.rooms


async def test_a_silent_node_is_lost_and_its_task_runs_elsewhere(dsn):
    async with engine(dsn, lost_s=3.0, fence_s=1.0, heartbeat_s=0.1) as core:
        silent = await ScriptedAgent(core, "silent").join()
        task = (await submit(core, function())).ids[0]
        order = (await silent.orders())[0]
        await silent.start(order)
        await eventually(lambda: _is(core, task, State.READY))
        assert (await silent.say(heartbeat=True)).lost
        other = await ScriptedAgent(core, "other").join()
        again = (await other.orders())[0]
        assert (again.id, again.attempt) == (task, 2)
        await silent.succeed(order)
        assert await state_of(core, task) == State.LEASED
        await other.succeed(again)
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select failures, node_losses from task_history where id = $1", task)
        assert tuple(row) == (0, 1)


async def test_a_new_reaper_waits_while_a_server_that_is_cut_off_may_tell_its_agents_to_hold_on(dsn):
    async with engine(dsn, lost_s=0.4, fence_s=0.2, heartbeat_s=0.1) as core:
        cut_off = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{cut_off.sockets[0].getsockname()[1]}"
        async with core.database.cold() as connection:
            await connection.execute(
                "insert into server (boot, name, url, number, version, alone, seen_at) "
                "values ('a', $2, $1, 9, 'x', true, clock_timestamp() - interval '9 seconds')",
                url,
                socket.gethostname(),
            )
            await connection.execute("update duty set epoch = epoch + 1 where name = 'reaper'")
        core.leader.epochs["reaper"] += 1
        silent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        await silent.start(*await silent.orders())
        for _ in range(10):
            await core.reaper.run_once()
            await core.database.transact(lambda c: c.execute("select pg_sleep(0.1)"))
        assert await state_of(core, task) == State.RUNNING
        cut_off.close()  # now it is known to be dead
        await cut_off.wait_closed()
        await eventually(lambda: _is(core, task, State.READY))


async def test_a_node_that_sends_heartbeats_is_not_lost(dsn):
    async with engine(dsn, lost_s=2.0, fence_s=1.0, heartbeat_s=0.1) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        order = (await agent.orders())[0]
        end = time.monotonic() + 4.0  # twice as long as it may be silent
        while time.monotonic() < end:
            reply = await agent.say(heartbeat=True, held=[(order.id, order.attempt)], wait_s=0.1)
            assert reply.renewed or reply.hold  # a database that takes long stores it late: the node is told to hold on
            assert not reply.lost
        assert await state_of(core, task) == State.LEASED


async def test_too_many_losses_make_a_dead_letter(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function(retry={"node_losses": 1}))).ids[0]
        for _ in range(2):
            agent = await ScriptedAgent(core).join()  # a new boot of the same node: what the old one held is lost
            await agent.start(*await agent.orders())
        await ScriptedAgent(core).join()
        assert await state_of(core, task) == State.FAILED


async def test_a_held_attempt_that_nobody_knows_is_cancelled(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        reply = await agent.say(heartbeat=True, held=[(12345, 1)])
        reply = reply if reply.cancels else await agent.say(wait_s=30)
        assert [(c.id, c.attempt) for c in reply.cancels] == [(12345, 1)]


async def test_cancelling_a_waiting_task_ends_it_and_skips_what_waits_for_it(dsn):
    async with engine(dsn) as core:
        anyway = function(name="c", after=[{"task": "a", "when": "done"}])
        receipt = await submit(core, function(name="a"), function(name="b", after=["a"]), anyway)
        await core.actions.cancel([receipt.ids[0]])
        states = [await state_of(core, task) for task in receipt.ids]
        assert states == [State.CANCELLED, State.SKIPPED, State.READY]


async def test_cancelling_a_running_task_tells_its_node_and_ends_with_its_report(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(attempts=5))).ids[0]
        order = (await agent.orders())[0]
        asked = []
        for _ in range(2):
            await core.actions.cancel([task])
            async with core.database.cold() as connection:
                asked.append(await connection.fetchval("select cancel_at from task where id = $1", task))
        assert asked[0] is not None
        assert asked[0] == asked[1], "the first wish counts"
        reply = await agent.say(wait_s=30)
        assert [(c.id, c.attempt) for c in reply.cancels] == [(task, 1)]
        await agent.fail(order, Outcome.CANCELLED)
        assert await state_of(core, task) == State.CANCELLED


async def test_the_end_of_the_last_dependency_releases_its_dependants(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1).join()
        receipt = await submit(core, function(name="a"), function(name="b"), function(name="c", after=["a", "b"]))
        orders = await agent.orders(2)
        await agent.succeed(orders[0])
        assert await state_of(core, receipt.ids[2]) == State.BLOCKED
        await agent.succeed(orders[0])  # a repeat must not count twice
        assert await state_of(core, receipt.ids[2]) == State.BLOCKED
        await agent.succeed(orders[1])
        assert [o.id for o in await agent.orders()] == [receipt.ids[2]]


async def test_a_failure_skips_what_depends_on_it_all_the_way_down(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(
            core,
            function(name="a"),
            function(name="b", after=["a"]),
            function(name="c", after=["b"]),
            function(name="anyway", after=[{"task": "b", "when": "done"}]),
            function(name="rescue", after=[{"task": "a", "when": "failed"}]),
        )
        await agent.fail((await agent.orders())[0])
        states = [await state_of(core, task) for task in receipt.ids[:3]]
        assert states == [State.FAILED, State.SKIPPED, State.SKIPPED]
        assert {o.name for o in await agent.orders(2)} == {"anyway", "rescue"}


async def test_a_release_of_very_many_dependants_goes_on_in_chunks(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.settle.MANY", 50)
    monkeypatch.setattr("headway.control.settle.CHUNK", 20)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=0.5).join()
        receipt = await submit(core, function(name="root"), *[function(after=["root"]) for _ in range(130)])
        await agent.succeed(*await agent.orders())

        async def all_released() -> bool:
            async with core.database.cold() as connection:
                left = await connection.fetchval("select count(*) from task where state = 0")
                return left == 0 and await connection.fetchval("select count(*) from pending_release") == 0

        await eventually(all_released)
        assert len(receipt.ids) == 131


async def test_a_dead_letter_can_be_edited_and_sent_again(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(input=1))).ids[0]
        await agent.fail((await agent.orders())[0])
        assert await core.actions.revive([task], None, {"input": 2, "attempts": 3, "execution_cap": "5s"}) == [task]
        order = (await agent.orders())[0]
        assert (order.id, order.attempt, order.input) == (task, 2, b"2")
        interned = (await core.definitions.load([order.definition]))[order.definition]
        assert (interned.definition.attempts, interned.definition.cap_ms) == (3, 5000)
        await agent.succeed(order)
        assert await state_of(core, task) == State.SUCCEEDED


async def test_purged_dead_letters_keep_one_final_row(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        await agent.fail((await agent.orders())[0])
        assert await core.actions.purge([task], None) == [task]
        assert await state_of(core, task) == State.CANCELLED


async def test_orders_go_out_though_the_database_goes_away_right_after_they_were_leased(dsn, monkeypatch):
    async with engine(dsn) as core:
        lost, other = await ScriptedAgent(core, "lost").join(), await ScriptedAgent(core, "other").join()
        await other.say()
        async with core.database.cold() as connection:
            await connection.execute("update node set state = 1 where id = $1", lost.id)

        async def away() -> bool:
            raise Unavailable("the database is away")

        with monkeypatch.context() as patched:
            patched.setattr(core.fleet, "refresh", away)
            await submit(core, *[function(resources={"cpus": 1}) for _ in range(8)])
            got = await other.orders(2, seconds=60)
        assert [order.attempt for order in got] == [1, 1], "some of the plan was for the lost node, which is looked at then"


async def test_nodes_are_not_counted_over_and_over_when_counting_takes_long(dsn, monkeypatch):
    """While somebody holds a snapshot a count reads all that ended since; ends that come meanwhile make it worthless."""
    monkeypatch.setattr("headway.control.counting.RESTS", 1_000_000)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        count, counted = core.planner.counting._count, list[set[int]]()

        async def seen(due: set[int]) -> None:
            counted.append(set(due))
            await count(due)

        monkeypatch.setattr(core.planner.counting, "_count", seen)
        await submit(core, *[function() for _ in range(20)])
        left = 20
        while left:
            orders = await agent.orders()
            core.planner.recount({agent.id})
            await agent.succeed(*orders)
            left -= len(orders)
        assert len([due for due in counted if agent.id in due]) <= 2
        other = await ScriptedAgent(core, "other").join()

        async def known() -> bool:
            return any(other.id in due for due in counted)

        await eventually(known)


async def test_a_task_that_ends_while_a_count_waits_for_shapes_is_not_held_afterwards(dsn, monkeypatch):
    """The count has seen it, and was made before it ended: its node would lack the room until the next count of all."""
    monkeypatch.setattr("headway.control.counting.RESTS", 0)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await submit(core, function())
        orders = await agent.orders()
        load, waited = core.definitions.load_shapes, asyncio.Event()

        async def slowly(shapes):
            shapes = list(shapes)
            await load(shapes)
            if shapes and not waited.is_set():
                waited.set()
                await agent.succeed(*orders)

        monkeypatch.setattr(core.definitions, "load_shapes", slowly)
        core.planner.recount({agent.id})
        await waited.wait()
        async with core.planner._planning:  # the round with the count in it is over
            assert core.planner.rooms[agent.id].held == 0


async def test_two_servers_finish_and_release_the_same_rows_without_a_deadlock(dsn):
    async with engine(dsn) as one, engine(dsn, holder="two") as two:
        agents = [await ScriptedAgent(c, f"n{i}", cpus=20).join() for i, c in enumerate((one, two))]
        ups = [function(name=f"u{i}") for i in range(40)]
        downs = [function(after=[f"u{i}" for i in range(40)]) for _ in range(60)]
        receipt = await submit(one, *ups, *downs)
        got: dict[int, list] = {0: [], 1: []}

        async def work(i: int) -> None:
            while len(got[0]) + len(got[1]) < 100:
                reply = await agents[i].say(wait_s=0.2, heartbeat=True)
                got[i] += reply.orders
                await agents[i].say(received=[(o.id, o.attempt) for o in reply.orders], finished=[done(o) for o in reply.orders])

        async with asyncio.timeout(60):
            await asyncio.gather(work(0), work(1))
        states = [await state_of(one, task) for task in receipt.ids]
        assert set(states) == {State.SUCCEEDED}


async def test_a_node_that_went_to_another_server_hears_nothing_old_when_it_comes_back(dsn: str) -> None:
    """Its tasks were told and acknowledged there."""
    async with engine(dsn, holder="one") as one, engine(dsn, holder="two") as two:
        agent = await ScriptedAgent(one).join()
        await agent.say(heartbeat=True)
        planning, other = (one, two) if one.leader.leads("planner") else (two, one)
        agent.core = planning
        await agent.say(heartbeat=True)
        planning.sessions.by_node[agent.id].last_seen -= FRESH_S  # it was silent for so long, and talks to the other one now
        agent.core = other
        for _ in range(3):
            await submit(planning, function())
            [order] = await agent.orders()
            await agent.succeed(order)
        left = planning.sessions.by_node.get(agent.id)
        assert left is None or not left.orders
        agent.core = planning
        assert (await agent.say(heartbeat=True)).orders == []


async def test_a_node_that_was_silent_here_hears_what_was_planned_meanwhile(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await agent.say(heartbeat=True)
        core.sessions.by_node[agent.id].last_seen -= FRESH_S
        task = (await submit(core, function())).ids[0]

        async def leased() -> bool:
            return await state_of(core, task) == State.LEASED

        await eventually(leased, what="it is leased")
        assert [order.id for order in await agent.orders()] == [task]


async def test_a_node_that_was_silent_is_told_to_hold_on_when_it_comes_back_while_the_database_is_away(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise Unavailable("the database is away")

    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        assert (await agent.say(heartbeat=True)).renewed
        core.sessions.by_node[agent.id].last_seen -= FRESH_S
        with monkeypatch.context() as patched:
            patched.setattr(core.fleet, "refresh", away)
            for _ in range(2):
                assert (await agent.say(heartbeat=True)).hold
        assert (await agent.say(heartbeat=True)).renewed
        stranger = ScriptedAgent(core)
        stranger.id = agent.id
        with monkeypatch.context() as patched:
            patched.setattr(core.fleet, "refresh", away)
            with pytest.raises(Unavailable):
                await stranger.say(heartbeat=True)  # whose boot this server has never heard of


async def test_a_cancelled_task_is_told_again_to_a_node_that_was_silent(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        [order] = await agent.orders()
        await agent.start(order)
        core.sessions.by_node[agent.id].last_seen -= FRESH_S
        await core.actions.cancel([task])
        assert [(cancel.id, cancel.attempt) for cancel in (await agent.say(heartbeat=True)).cancels] == [(task, order.attempt)]
