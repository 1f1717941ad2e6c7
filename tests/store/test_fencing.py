"""Fences: what comes late, twice, from another node or from a leader that is deposed changes nothing (F1 F2 I1 I2)."""

from __future__ import annotations

import asyncio

import pytest

from headway.control.leader import DUTIES, Leader
from headway.domain.lifecycle import State
from headway.errors import StaleEpoch
from headway.store.queries import query
from headway.wire.exchange import Output, Progress
from tests.support.engine import ScriptedAgent, engine, function, listening, state_of, submit
from tests.support.waiting import eventually


async def test_a_repeated_finish_changes_nothing(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        order = (await agent.orders())[0]
        await agent.succeed(order, result=b"1")
        await agent.succeed(order, result=b"2")
        await agent.fail(order)
        async with core.database.cold() as connection:
            assert await connection.fetchval("select result from task_history where id = $1", task) == b"1"
            assert await connection.fetchval("select count(*) from dead_letter") == 0


async def test_a_report_of_an_older_attempt_changes_nothing(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(attempts=2, retry={"interval": 0}))).ids[0]
        first = (await agent.orders())[0]
        await agent.fail(first)
        second = (await agent.orders())[0]
        assert (first.attempt, second.attempt) == (1, 2)
        await agent.succeed(first, result=b"late")
        assert await state_of(core, task) == State.LEASED
        await agent.succeed(second, result=b"2")
        async with core.database.cold() as connection:
            assert await connection.fetchval("select result from task_history where id = $1", task) == b"2"


async def test_a_boot_that_was_replaced_is_not_told_that_it_lives_because_the_new_one_does(dsn):
    async with engine(dsn) as core:
        old, new = await ScriptedAgent(core).join(), await ScriptedAgent(core).join()
        beats = (core.heartbeats.beat(agent.id, agent.boot, "", 0) for agent in (old, new))  # stored together
        assert await asyncio.gather(*beats) == [None, False]


async def test_a_report_of_another_node_changes_nothing(dsn):
    async with engine(dsn) as core:
        owner = await ScriptedAgent(core, "owner").join()
        task = (await submit(core, function(attempts=1))).ids[0]
        order = (await owner.orders())[0]
        thief = await ScriptedAgent(core, "thief").join()
        ref = (order.id, order.attempt)
        await thief.start(order)
        await thief.fail(order)
        await thief.say(returned=[ref], output=[Output(*ref, 1, 1, 1, b"forged")], progress=[Progress(*ref, 1.0, 2.0, "forged")])
        await thief.succeed(order, result=b"forged")
        assert await state_of(core, task) == State.LEASED
        await owner.succeed(order, result=b"true")
        async with core.database.cold() as connection:
            assert await connection.fetchval("select result from task_history where id = $1", task) == b"true"
            assert await connection.fetchval("select (select count(*) from output) + (select count(*) from progress)") == 0


@pytest.fixture
def no_beats(monkeypatch):
    """A server whose leases were ended by the test does not take them again before anybody else can."""
    monkeypatch.setattr("headway.control.core.BEAT_S", 600.0)


LONG_S = 3000.0  # no lease runs out here by itself


async def test_a_deposed_leader_writes_nothing(dsn, no_beats):
    async with engine(dsn, duty_lease_s=LONG_S) as core:
        agent = await ScriptedAgent(core).join()
        old = core.leader.epoch("planner")
        async with core.database.cold() as connection:
            await connection.execute("update duty set expires_at = '-infinity'")
            usurper = Leader(core.database, "usurper", LONG_S)
            await eventually(lambda: _takes(usurper, {"planner"}))
            task = (await submit(core, function())).ids[0]
            shape = await connection.fetchval("select shape from task where id = $1", task)

            async def lease(epoch: int | None) -> list[int]:
                rows = await connection.fetch(query("task.lease"), [task], [agent.id], epoch, [shape], [agent.id])
                return [row["id"] for row in rows]

            assert await lease(old) == []
            assert await lease(usurper.epoch("planner")) == [task], "it was the epoch, and nothing else"
        core.leader.epochs["timekeeper"] = old
        with pytest.raises(StaleEpoch):
            await core.database.transact(lambda c: core.leader.fence(c, "timekeeper"))


async def test_a_deposed_planner_stores_tasks_as_ready(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await eventually(lambda: agent.id in core.planner.rooms)
        await submit(core, function())
        await agent.succeed(*await agent.orders())
        async with core.database.cold() as connection:
            await connection.execute("update duty set epoch = epoch + 1, holder = 'usurper' where name = 'planner'")
        task = (await submit(core, function())).ids[0]
        assert await state_of(core, task) == State.READY


async def test_a_deposed_timekeeper_makes_nothing_ready(dsn, no_beats):
    async with engine(dsn, duty_lease_s=LONG_S) as core, core.database.cold() as connection:
        task = (await submit(core, function(at=4_000_000_000))).ids[0]
        old, usurper = core.leader.epoch("timekeeper"), Leader(core.database, "usurper", LONG_S)
        await connection.execute("update duty set expires_at = '-infinity'")
        await eventually(lambda: _takes(usurper, {"timekeeper"}))
        await connection.execute("update task set eligible_at = clock_timestamp() - interval '1 second'")
        assert await connection.fetch(query("task.come_due"), old, 10) == []
        due = await connection.fetch(query("task.come_due"), usurper.epoch("timekeeper"), 10)
        assert [row["id"] for row in due] == [task]


async def _takes(leader: Leader, duties: set[str]) -> bool:
    """Whether it leads these by now: it passes over those that their leader of before is just writing for."""
    await leader.renew()
    return duties <= leader.epochs.keys()


async def test_a_takeover_comes_after_a_write_of_the_old_epoch_that_is_under_way(dsn, no_beats):
    async with engine(dsn, duty_lease_s=LONG_S) as core, core.database.cold() as first, core.database.cold() as second:
        usurper = Leader(core.database, "usurper", LONG_S)
        transaction = first.transaction()
        await transaction.start()
        assert await first.fetchval(query("duty.fence"), "planner", core.leader.epoch("planner")) == 1
        await second.execute("update duty set expires_at = '-infinity'")
        await eventually(lambda: _takes(usurper, set(DUTIES) - {"planner"}))
        assert "planner" not in usurper.epochs
        await transaction.commit()
        await eventually(lambda: _takes(usurper, {"planner"}))


async def test_a_leader_renews_while_its_own_writes_are_under_way(dsn):
    async with engine(dsn) as core, core.database.cold() as connection, connection.transaction():
        epochs = dict(core.leader.epochs)
        for duty in DUTIES:
            await core.leader.fence(connection, duty)
        async with asyncio.timeout(60):
            assert await core.leader.renew() == set()
        assert core.leader.epochs == epochs


async def test_duties_handed_on_are_taken_over_without_waiting_for_the_next_beat(dsn, no_beats):
    async with engine(dsn, holder="next", duty_lease_s=LONG_S) as following:
        async with following.database.cold() as connection:
            await connection.execute("update duty set expires_at = '-infinity'")
        async with engine(dsn, holder="first", duty_lease_s=LONG_S) as first:
            await eventually(lambda: _takes(first.leader, set(DUTIES)))
            await eventually(lambda: listening(first, 2))
            assert first.leader.epoch("planner") == 2
        await eventually(lambda: _leads(following, 3))


async def _leads(core, epoch: int) -> bool:
    return all(core.leader.epoch(duty) == epoch for duty in DUTIES)


@pytest.mark.parametrize("at_once", [8, 40], ids=["by the short way", "in a round"])
@pytest.mark.parametrize("away", ["update node set state = 1 where id = $1", "delete from node where id = $1"], ids=["lost", "removed"])
async def test_a_node_that_is_lost_or_removed_is_given_nothing_by_a_planner_that_has_not_heard(dsn, away, at_once):
    async with engine(dsn) as core:
        lost, other = await ScriptedAgent(core, "lost").join(), await ScriptedAgent(core, "other").join()
        async with core.database.cold() as connection:
            await connection.execute(away, lost.id)
        ids = (await submit(core, *[function(resources={"cpus": 1}) for _ in range(at_once)])).ids
        got = []
        while len(got) < len(ids):
            orders = await other.orders()
            got += orders
            await other.succeed(*orders)
        assert {(order.id, order.attempt) for order in got} == {(task, 1) for task in ids}


async def test_a_node_that_was_heard_of_since_the_reaper_looked_is_not_lost(dsn):
    async with engine(dsn) as core, core.database.cold() as connection:
        agent = await ScriptedAgent(core).join()
        looked = await connection.fetchval("select seen_at from node")
        assert (await agent.say(heartbeat=True)).renewed
        heard = await connection.fetchval("select seen_at from node")
        for seen, lost in ((looked, []), (heard, [agent.id])):
            assert [row["id"] for row in await connection.fetch(query("node.lose"), [agent.id], [seen])] == lost
