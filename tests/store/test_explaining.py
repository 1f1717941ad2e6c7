"""Why a task does not run, what would start it, and when it will: a real core on a real database (E8)."""

from __future__ import annotations

import datetime

import pytest

from headway.domain.lifecycle import Outcome, State
from headway.domain.queues import Queue, hours_of
from headway.domain.resources import Resources
from headway.policy.room import Kept
from headway.store.queries import query
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import LONG, explained, tenant
from tests.support.waiting import eventually


async def test_a_waiting_task_is_explained_in_the_planners_words_with_an_estimate(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, "small", cpus=0.5).join()
        held = (await submit(core, function(**LONG))).ids[0]
        [order] = await agent.orders()
        ids = (await submit(core, *[function(**LONG)] * 3)).ids
        core.planner.conditions.pressure.drain_per_s = 2.0
        core.outlook.rates[1] = 2.0
        await core.planner.run_once()
        await core.outlook.run_once()
        found = await explained(core, ids[-1])
        assert found.reasons[0].code == "room"
        assert "node small is full: cpus" in found.reasons[0].text
        assert found.order is not None
        assert found.order.ahead == 2
        assert found.estimate is not None
        assert found.estimate.low < found.estimate.at < found.estimate.high
        assert (await explained(core, held)).state == "leased"
        await agent.succeed(order)
        done = await explained(core, held)
        assert done.state == "succeeded"
        assert "waiting for room" in done.spent


async def test_a_task_whose_rooms_are_rare_counts_as_before_one_that_must_start_earlier(dsn):
    async with engine(dsn) as core:
        sizes = ({"cpus": 0.5}, {"cpus": 1})
        small, large = (await submit(core, *(function(resources=size, delay_tolerance=f"{60 + n}s") for n, size in enumerate(sizes)))).ids
        async with core.database.cold() as connection:
            asked, other = [(await connection.fetch(query("read.one"), [task], None))[0] for task in (small, large)]
            of_small = (1, asked["start_by"], asked["cap_ms"], small, 10)
            plain = {row["shape"]: row["count"] for row in await connection.fetch(query("explain.ahead"), *of_small, [], [])}
            early = [other["shape"]], [30.0]
            rare = {row["shape"]: row["count"] for row in await connection.fetch(query("explain.ahead"), *of_small, *early)}
        assert plain == {asked["shape"]: 0, other["shape"]: 0}
        assert rare == {asked["shape"]: 0, other["shape"]: 1}
        await ScriptedAgent(core, "tiny", cpus=0.25).join()

        async def is_told() -> bool:
            told = (await core.outlook.read()).tenants.get(1)
            return told is not None and told.asks == {asked["shape"]: 1, other["shape"]: 1}

        await eventually(is_told)


async def test_on_a_full_fleet_the_estimate_is_the_end_of_what_runs_there_and_so_is_the_promise(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1).join()
        history = "insert into run_sample (work, task, tenant, seconds, name) select 1, n, 1, 100, 'long' from generate_series(1, 200) n"
        async with core.database.cold() as connection:
            await connection.execute(history)
        [runs] = (await submit(core, function(name="long", resources={"cpus": 1}, execution_cap="1h"))).ids
        await agent.orders()
        assert await state_of(core, runs) == State.LEASED

        async def is_full() -> bool:
            return (await core.outlook.read()).utilisation >= 0.95

        await eventually(is_full)
        [task] = (await submit(core, function(resources={"cpus": 1}, delay_tolerance="1d"))).ids
        found = (await explained(core, task)).estimate
        assert found is not None
        assert 30 < (found.at - core.clock.now()).total_seconds() < 110
        asked = (await core.drafts.read(1, b'[{"function": "m:f", "resources": {"cpus": 1}}]', ndjson=False, key=None))[0]
        promised = await core.promises.wait(1, asked)
        assert promised is not None
        assert promised > 30


async def test_blocked_and_scheduled_tasks_say_for_what_and_until_when(dsn):
    async with engine(dsn) as core:
        ids = (await submit(core, function(name="first", **LONG), function(name="second", after=["first"]))).ids
        assert f"waits for task {ids[0]} (first), which is ready" in (await explained(core, ids[1])).summary
        later = (await submit(core, function(at=4_000_000_000))).ids[0]
        reason, beside = (await explained(core, later)).reasons
        assert (reason.code, beside.code) == ("scheduled", "no_node"), "what will keep it then is said too"
        assert reason.until is not None
        assert reason.until.timestamp() == 4_000_000_000


async def test_a_task_no_node_has_a_label_for_says_so(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function(resources={"labels": {"gpu": "a100"}}))).ids[0]
        assert (await explained(core, task)).reasons[0].code == "no_node"
        await ScriptedAgent(core, "plain").join()
        await core.planner.run_once()
        found = await explained(core, task)
        assert found.reasons[0].code == "impossible"
        assert "node plain has no label gpu=a100" in found.summary
        assert found.estimate is None


async def test_a_task_that_failed_says_how_until_when_it_waits_and_what_would_start_it_now(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, "small").join()
        [task] = (await submit(core, function(attempts=3, retry={"interval": "1h", "jitter": 0}))).ids
        [order] = await agent.orders()
        await agent.fail(order, message="no such file\nand more")
        found = await explained(core, task)
        [reason] = found.reasons
        assert reason.code == "retry"
        assert reason.text == (
            "attempt 1 failed on node small (ValueError: no such file), and the next attempt waits for its time: 1 of 3 attempts are used"
        )
        assert reason.remedy == f"headway change {task} --set at=now"
        assert reason.until is not None
        assert found.estimate is not None
        assert found.estimate.low == reason.until
        await core.changing.change(task, None, {"at": "now"})
        assert [order.attempt for order in await agent.orders()] == [2]


async def test_a_task_that_asked_to_be_tried_later_says_so(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, "small").join()
        [task] = (await submit(core, function(retry={"interval": "1h"}))).ids
        [order] = await agent.orders()
        await agent.fail(order, Outcome.TRY_LATER)
        [reason] = (await explained(core, task)).reasons
        assert reason.code == "retry"
        assert "attempt 1 asked to be tried again later (exit 75) on node small" in reason.text


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.NODE_LOST, "attempt 1 was lost with its node small"),
        (Outcome.PRE_EMPTED, "attempt 1 made room for a more urgent task on node small"),
        (Outcome.REQUEUED, "attempt 1 saved its state and asked to go on (exit 85) on node small"),
    ],
)
async def test_a_task_that_runs_again_says_what_became_of_its_last_attempt(dsn, outcome, words):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, "small", cpus=0.5).join()
        [task] = (await submit(core, function(**LONG))).ids
        [order] = await agent.orders()
        await submit(core, function())  # is next
        await agent.fail(order, outcome)
        await agent.orders()
        found = await explained(core, task)
        assert found.state == "ready"
        assert found.reasons[0].code == "room"
        assert found.earlier == words


async def test_a_task_that_saved_its_state_says_from_when_it_goes_on(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function())).ids
        async with core.database.cold() as connection:
            await connection.execute(
                "insert into checkpoint (task, kind, sequence, attempt, tenant, hash) values ($1, 0, 1, 1, 1, '\\x00')", task
            )
            saved = await connection.fetchval("select saved_at from checkpoint")
        assert (await explained(core, task)).checkpoint_at == saved


async def test_a_limit_on_waiting_is_told_with_what_happens_then(dsn):
    async with engine(dsn) as core:
        ends, stays, free = (await submit(core, function(max_wait="1h"), function(max_wait="2h", on_max_wait="keep"), function())).ids
        limit = (await explained(core, ends)).limit
        assert limit is not None
        assert (limit.then, limit.warned) == ("expire", False)
        assert 3_500 < (limit.at - core.clock.now()).total_seconds() <= 3_600
        kept = (await explained(core, stays)).limit
        assert kept is not None
        assert kept.then == "keep"
        assert (await explained(core, free)).limit is None


async def test_a_task_whose_time_comes_while_its_queue_is_closed_waits_for_that_too(dsn):
    async with engine(dsn) as core:
        await ScriptedAgent(core).join()
        now = core.clock.now()
        opens = (now + datetime.timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
        await core.queues.add(Queue("later", hours=(hours_of(f"{opens:%H:%M}-{opens + datetime.timedelta(hours=1):%H:%M}"),)))
        [task] = (await submit(core, function(queue="later", at=(now + datetime.timedelta(hours=1)).timestamp()))).ids
        found = await explained(core, task)
        assert [reason.code for reason in found.reasons] == ["scheduled", "queue"]
        assert "queue later is outside its hours then" in found.reasons[1].text
        assert found.estimate is not None
        assert found.estimate.low == opens
        await core.queues.change("later", paused=True)
        found = await explained(core, task)
        assert "queue later is paused" in found.reasons[1].text
        assert found.estimate is None


async def test_a_task_whose_time_comes_soon_on_a_full_fleet_is_not_said_to_start_on_time(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=1).join()
        async with core.database.cold() as connection:
            await connection.execute(
                "insert into run_sample (work, task, tenant, seconds, name) select 1, n, 1, 1000, 'long' from generate_series(1, 200) n"
            )
        await submit(core, function(name="long", resources={"cpus": 1}, execution_cap="1h"))
        await agent.orders()
        [task] = (await submit(core, function(at=core.clock.now().timestamp() + 30, resources={"cpus": 1}))).ids
        found = (await explained(core, task)).estimate
        assert found is not None
        assert (found.at - core.clock.now()).total_seconds() > 300


async def test_of_an_expired_task_it_is_said_how_long_it_waited(dsn):
    async with engine(dsn) as core:
        [task] = (await submit(core, function(max_wait="200ms"))).ids

        async def is_over() -> bool:
            return await state_of(core, task) == State.EXPIRED

        await eventually(is_over)
        found = await explained(core, task)
        assert found.spent["waiting for room"] >= 0.2
        assert "waiting for room" in found.summary


async def test_tasks_that_their_queue_holds_back_go_before_nobody(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=0.5).join()
        await submit(core, function(**LONG))
        await agent.orders()
        await core.queues.add(Queue("shut", paused=True))
        await submit(core, *[function(queue="shut", delay_tolerance="1m") for _ in range(20)])
        first, second = (await submit(core, function(delay_tolerance="10m"), function(delay_tolerance="20m"))).ids
        for task, ahead in ((first, 0), (second, 1)):
            found = await explained(core, task)
            assert found.order is not None
            assert found.order.ahead == ahead


async def test_a_tenant_is_told_of_other_tenants_tasks_without_their_numbers(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, "small", cpus=2).join()
        other = await tenant(core, "other", isolation="none")
        [theirs] = (await submit(core, function(resources={"cpus": 2}, **LONG), tenant=other)).ids
        await agent.orders()
        [mine] = (await submit(core, function(at=4_000_000_000))).ids
        async with core.database.cold() as connection:
            await connection.execute(
                "update task set state = 5, node = $2, attempt = 1, leased_at = now(), started_at = now() where id = $1", mine, agent.id
            )
            await connection.execute(
                "insert into preemption (task, attempt, node, mode, beneficiary) values ($1, 1, $2, 'freeze', $3)", mine, agent.id, theirs
            )
        assert (await explained(core, mine)).summary == f"it was stopped to make room for task {theirs}"
        assert (await explained(core, mine, 1)).summary == "it was stopped to make room for a more urgent task"
        [waits] = (await submit(core, function(resources={"cpus": 1}, **LONG))).ids
        room = core.planner.rooms[agent.id]
        for kept_for, words in ((theirs, "another task"), (mine, f"task {mine}")):
            room.kept = Kept(Resources(cpus_milli=2000), kept_for)
            assert f"node small is being kept free for task {kept_for}" in (await explained(core, waits)).summary
            assert f"node small is being kept free for {words}" in (await explained(core, waits, 1)).summary


async def test_a_task_on_a_node_that_stopped_answering_is_not_said_to_run(dsn):
    async with engine(dsn, fence_s=0.3) as core:
        agent = await ScriptedAgent(core, "big-1").join()
        task = (await submit(core, function())).ids[0]
        await agent.start(*await agent.orders())
        await agent.say(heartbeat=True)

        async def silence():
            return (found := await explained(core, task)).reasons and found

        found = await eventually(silence)
        assert [reason.code for reason in found.reasons] == ["silent_node"]
        assert found.summary.startswith("node big-1 has not answered for ")
        assert found.reasons[0].remedy == "it answers again, or is lost after 300 s and another runs the task"


async def test_a_task_that_waits_to_run_again_tells_how_long_it_ran(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(attempts=2, retry={"interval": 1000}))).ids[0]
        await agent.fail((await agent.orders())[0])
        async with core.database.cold() as connection:
            await connection.execute("update attempt set started_at = ended_at - interval '30 seconds' where task = $1", task)
        found = await explained(core, task)
        assert (found.state, found.spent["in earlier attempts"]) == ("scheduled", 30.0)


async def test_a_task_that_was_handed_out_is_said_to_be_on_its_way_to_that_node(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, "node-7").join()
        [task] = (await submit(core, function())).ids
        await agent.orders()
        assert (await explained(core, task)).summary == "it was handed to node-7 and begins there as soon as it can"


async def test_a_server_that_does_not_plan_any_more_explains_by_what_is_stored(dsn):
    async with engine(dsn, holder="one") as one, engine(dsn, holder="two") as two:
        await one.queues.change("delayable", paused=True)
        await two.queues.refresh()  # it would lease the second task otherwise
        agent = await ScriptedAgent(one, cpus=0.5).join()
        await submit(one, function(category="urgent"))
        [order] = await agent.orders()
        await eventually(lambda: one.planner.rooms.get(agent.id) is not None and one.planner.rooms[agent.id].held == 1)
        await one.leader.hand_on()
        assert "planner" in await two.leader.renew()
        agent.core = two
        await agent.succeed(order)
        [waiting] = (await submit(two, function())).ids

        async def has_room() -> bool:
            return [reason.code for reason in (await explained(one, waiting)).reasons] == ["queue"]

        await eventually(has_room, seconds=60)
