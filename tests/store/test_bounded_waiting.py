"""max_wait on a real database (E7): the warning, the end, what depends on it, restarts."""

from __future__ import annotations

import msgspec
import pytest

from headway.domain.lifecycle import Outcome, State
from headway.errors import InvalidInput
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually

SOON = "5s"  # what shall begin in time has so long on a busy machine


async def in_state(core, task: int, state: State) -> None:
    async def check() -> bool:
        return await state_of(core, task) == state

    await eventually(check)


async def rows(core, sql: str, *values) -> list:
    async with core.database.cold() as connection:
        return await connection.fetch(sql, *values)


async def events(core, kind: str) -> list[int]:
    return [task for row in await rows(core, "select tasks from event where kind = $1 order by seq", kind) for task in row["tasks"]]


async def test_a_task_that_waits_too_long_is_warned_of_and_then_expires_and_its_dependants_are_skipped(dsn):
    async with engine(dsn) as core:
        receipt = await submit(
            core,
            function(name="late", max_wait="300ms"),
            function(name="next", after="late"),
            function(name="anyway", after=[{"task": "late", "when": "done"}]),
            function(name="patient"),
        )
        late, following, anyway, patient = receipt.ids
        await in_state(core, late, State.EXPIRED)
        assert await events(core, "task.waiting_too_long") == [late]
        assert await events(core, "task.expired") == [late]
        assert [await state_of(core, task) for task in (following, anyway, patient)] == [State.SKIPPED, State.READY, State.READY]
        (row,) = await rows(core, "select error from task_history where id = $1", late)
        assert "300.0ms" in msgspec.json.decode(row["error"])["message"]
        assert await rows(core, "select * from waiting_limit") == []
        (told,) = await rows(core, "select data from event where kind = 'task.waiting_too_long'")
        assert msgspec.json.decode(told["data"])["then"] == "expire"


async def test_one_that_asked_to_keep_waiting_is_warned_of_and_waits_on(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function(max_wait="200ms", on_max_wait="keep"))).ids[0]

        async def forgotten() -> bool:
            return not await rows(core, "select 1 from waiting_limit")

        await eventually(forgotten)
        assert await events(core, "task.waiting_too_long") == [task]
        assert await state_of(core, task) == State.READY


async def test_what_began_in_time_does_not_expire_while_it_runs(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(max_wait=SOON))).ids[0]
        (before,) = await rows(core, "select due_at from waiting_limit")
        (order,) = await agent.orders()
        await agent.start(order)

        async def looked_at() -> bool:
            return bool(await rows(core, "select 1 from waiting_limit where due_at > $1", before["due_at"]))

        await eventually(looked_at)
        await agent.succeed(order)
        assert await state_of(core, task) == State.SUCCEEDED


async def test_being_put_back_without_an_attempt_used_does_not_start_the_wait_anew(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(max_wait=SOON, retry={"interval": "1h"}))).ids[0]
        (order,) = await agent.orders()
        await agent.fail(order, Outcome.TRY_LATER)
        await in_state(core, task, State.EXPIRED)


async def test_a_blocked_task_waits_for_its_dependencies_as_long_as_it_takes(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        second = (await submit(core, function(name="a"), function(after="a", max_wait=SOON, resources={"cpus": 2}))).ids[1]
        (before,) = await rows(core, "select due_at from waiting_limit")
        (order,) = await agent.orders()

        async def looked_at() -> bool:
            return bool(await rows(core, "select 1 from waiting_limit where due_at > $1", before["due_at"]))

        await eventually(looked_at)
        assert await state_of(core, second) == State.BLOCKED
        await agent.succeed(order)
        await agent.orders()
        assert await state_of(core, second) in (State.LEASED, State.RUNNING)


async def test_a_limit_outlives_the_server_that_took_it(dsn):
    async with engine(dsn, holder="first") as core:
        task = (await submit(core, function(max_wait="500ms"))).ids[0]
    async with engine(dsn, holder="second") as core:
        await in_state(core, task, State.EXPIRED)
        assert await events(core, "task.waiting_too_long") == [task]


async def test_the_tenants_limit_counts_for_tasks_that_say_none(dsn):
    async with engine(dsn) as core:
        async with core.database.cold() as connection:
            await connection.execute("""update tenant set subscription = '{"max_wait_s": 0.2}', changed_at = clock_timestamp()""")
        await core.tenants.refresh()
        task = (await submit(core, function())).ids[0]
        await in_state(core, task, State.EXPIRED)


async def test_a_dead_letter_sent_again_has_its_limit_again(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function(max_wait="1h"))).ids[0]
        await agent.fail((await agent.orders())[0])
        await rows(core, "delete from waiting_limit")
        await core.actions.revive([task], None, {})
        assert [row["task"] for row in await rows(core, "select task from waiting_limit")] == [task]


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"max_wait": 0}, "max_wait", "out of range"),
        ({"max_wait": "soon"}, "max_wait", "not a duration"),
        ({"on_max_wait": "expired"}, "on_max_wait", "did you mean 'expire'"),
        ({"on_late": "reject"}, "on_late", "warn or refuse"),
    ],
)
async def test_wrong_words_are_refused_by_name(dsn, spec, field, says):
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match=says) as refused:
            await submit(core, function(**spec))
        assert refused.value.field == field


async def test_a_limit_can_be_changed_while_the_task_waits(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function(max_wait="1h"))).ids[0]
        await core.changing.change(task, None, {"max_wait": "2h", "on_max_wait": "keep"})
        (row,) = await rows(core, "select limit_ms, keep from waiting_limit")
        assert (row["limit_ms"], row["keep"]) == (7_200_000, True)
        await core.changing.change(task, None, {"max_wait": "200ms", "on_max_wait": "expire"})
        await in_state(core, task, State.EXPIRED)


async def test_a_limit_that_is_changed_while_it_is_looked_at_holds(dsn):
    async with engine(dsn) as core:
        task = (await submit(core, function(max_wait="1h"))).ids[0]
        async with core.database.cold() as connection, connection.transaction():
            await connection.execute("select from task where id = $1 for update", task)
            await rows(core, "update waiting_limit set due_at = now()")  # committed: the duty looks, and has to wait for us
            core.bus.scheduled()

            async def looked_at() -> bool:
                return bool(await rows(core, "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%eligible_at%'"))

            await eventually(looked_at)
            await connection.execute("update waiting_limit set limit_ms = 1")
        await in_state(core, task, State.EXPIRED)


async def test_a_tree_that_is_tried_again_has_its_limits_again(dsn):
    async with engine(dsn) as core:
        receipt = await submit(core, function(name="a", max_wait="300ms"), function(name="b", after="a", max_wait="1h"), tree="t")
        await in_state(core, receipt.ids[0], State.EXPIRED)
        async with core.database.cold() as connection, connection.transaction():
            await connection.execute("select from duty where name = 'bounded_waiting' for update")  # until we have looked, nothing expires
            await core.trees.retry(receipt.tree, None)
            found = await rows(core, "select task, limit_ms from waiting_limit order by task")
        assert [(row["task"], row["limit_ms"]) for row in found] == [(receipt.ids[0], 300), (receipt.ids[1], 3_600_000)]
        await in_state(core, receipt.ids[0], State.EXPIRED)
