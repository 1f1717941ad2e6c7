"""Schedules on a real database: firing once, policies, what people do to them (D1 D2 D3)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from typing import Any

import msgspec
import pytest

from headway.domain.lifecycle import State
from headway.domain.schedule import Scheduled
from headway.domain.spec import TaskSpec
from headway.domain.task import Category
from headway.errors import Conflict, InvalidInput, LimitExceeded, NotFound, StaleEpoch, UnsatisfiableResources
from headway.policy.firing import Fate, Kind
from tests.support.engine import ScriptedAgent, engine, function, state_of
from tests.support.scheduling import HOUR, apply, due_without_start, fates, fetch, firings, has_fired, make_due
from tests.support.waiting import eventually


async def test_a_schedule_fires_at_once_and_its_task_is_periodic(dsn):
    async with engine(dsn) as core:
        assert await apply(core, schedule=20, task=function(input=[7], labels={"a": "b"})) == "created"
        (row,) = await has_fired(core, 1)
        (task,) = await fetch(core, "select * from task where id = $1", row["run"])
        assert (Fate(row["state"]), Kind(row["kind"])) == (Fate.STARTED, Kind.CALENDAR)
        assert task["category"] == Category.PERIODIC
        assert task["start_by"] - task["eligible_at"] == datetime.timedelta(seconds=20)  # the interval is shorter than 60 s
        assert task["input"] == b"[7]"
        assert msgspec.json.decode(task["labels"]) == {"a": "b", "schedule": "s", "firing": row["at"].isoformat()}
        (schedule,) = await fetch(core, "select * from schedule")
        assert schedule["next_at"] - row["at"] == datetime.timedelta(seconds=20)


async def test_the_tolerance_of_a_rare_schedule_is_its_category_s(dsn):
    async with engine(dsn) as core:
        await apply(core)
        (row,) = await has_fired(core, 1)
        (task,) = await fetch(core, "select start_by - eligible_at as tolerance from task where id = $1", row["run"])
        assert task["tolerance"] == datetime.timedelta(seconds=60)


async def test_a_schedule_of_a_tree_makes_a_tree_each_time(dsn):
    async with engine(dsn) as core:
        tasks = [function(name="a"), function(name="b", after=["a"])]
        await apply(core, tasks=tasks)
        (row,) = await has_fired(core, 1)
        (tree,) = await fetch(core, "select * from tree")
        assert (tree["id"], tree["name"], tree["levels"]) == (row["run"], "s", [1, 1])
        states = await fetch(core, "select name, state from task where tree = $1 order by id", tree["id"])
        assert [tuple(r) for r in states] == [("a", State.READY), ("b", State.BLOCKED)]


async def test_applying_again_changes_nothing_and_applying_another_changes(dsn):
    async with engine(dsn) as core:
        assert await apply(core, schedule="daily") == "created"
        assert await apply(core, schedule="daily") == "unchanged"
        before = await fetch(core, "select next_at, anchor from schedule")
        assert await apply(core, schedule="daily", task=function(input=1)) == "changed"
        assert await fetch(core, "select next_at, anchor from schedule") == before  # another task keeps the rhythm
        assert await apply(core, schedule="weekly", task=function(input=1)) == "changed"
        assert await fetch(core, "select next_at, anchor from schedule") != before


async def test_once_means_once(dsn):
    async with engine(dsn) as core:
        await apply(core, schedule=0)
        await has_fired(core, 1)
        (row,) = await fetch(core, "select next_at, due_at from schedule")
        assert (row["next_at"], row["due_at"]) == (None, None)


async def test_a_schedule_that_would_never_fire_is_refused(dsn):
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match="start: it lies in the past"):
            await apply(core, schedule=0, start="2020-01-01T00:00:00Z")
        with pytest.raises(InvalidInput, match="end: it lies in the past"):
            await apply(core, schedule="daily", end="2020-01-01T00:00:00Z")
        assert await fetch(core, "select 1 from schedule") == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"schedule": "dayly"}, "schedule"),
        ({"timezone": "Europe/Berlinn"}, "timezone"),
        ({"overlap": "skipp"}, "overlap"),
        ({"task": {**function(), "idempotency_key": "k"}}, "idempotency_key"),
        ({"task": {**function(), "at": 4_000_000_000}}, "at"),
        ({"task": {**function(), "after": ["123456789"]}}, "after"),
        ({"task": {"command": []}}, "command"),
        ({"jitter": "2d"}, "jitter"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_stored(dsn, fields, field):
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput) as caught:
            await apply(core, **fields)
        assert caught.value.field == field
        assert await fetch(core, "select 1 from schedule") == []


async def test_what_no_node_could_run_is_refused_when_it_is_applied(dsn):
    async with engine(dsn) as core:
        await ScriptedAgent(core).join()
        await core.fleet.refresh()
        with pytest.raises(UnsatisfiableResources):
            await apply(core, task=function(resources={"cpus": 64}))


async def test_many_are_applied_all_or_none(dsn):
    async with engine(dsn) as core:
        good = Scheduled(3600, name="good", task=msgspec.convert(function(), TaskSpec))
        bad = Scheduled("dayly", name="bad", task=msgspec.convert(function(), TaskSpec))
        with pytest.raises(InvalidInput, match="schedule bad: "):
            await core.schedules.apply(1, [good, bad])
        assert await fetch(core, "select 1 from schedule") == []


async def test_skip_leaves_a_firing_out_while_a_run_is_going(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await apply(core)
        (first,) = await has_fired(core, 1)
        order = (await agent.orders())[0]
        await make_due(core)
        await has_fired(core, 2)
        assert sorted(await fates(core)) == [Fate.STARTED, Fate.SKIPPED]
        await agent.succeed(order)
        await make_due(core)
        await has_fired(core, 3)
        assert (await fates(core)).count(Fate.STARTED) == 2
        assert await state_of(core, first["run"]) == State.SUCCEEDED


async def test_queue_starts_the_next_run_when_the_one_before_has_ended(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await apply(core, overlap="queue")
        await has_fired(core, 1)
        order = (await agent.orders())[0]
        await make_due(core)
        await has_fired(core, 2)
        await make_due(core)
        await has_fired(core, 3)
        assert sorted(await fates(core)) == [Fate.WAITING, Fate.WAITING, Fate.STARTED]
        for _ in range(2):
            await agent.succeed(order)
            order = (await agent.orders())[0]
        assert await fates(core) == [Fate.STARTED] * 3
        assert len(await fetch(core, "select 1 from task")) == 1


async def test_replace_cancels_the_run_and_takes_its_place(dsn):
    async with engine(dsn) as core:
        await apply(core, overlap="replace", tasks=[function(name="a"), function(name="b", after=["a"])])
        (first,) = await has_fired(core, 1)
        await make_due(core)

        async def replaced() -> bool:
            return await fates(core) == [Fate.STARTED] * 2

        await eventually(replaced)
        ended = await fetch(core, "select state from task_history where tree = $1", first["run"])
        assert [r["state"] for r in ended] == [State.CANCELLED] * 2
        assert len(await fetch(core, "select 1 from task")) == 2


async def test_allow_runs_both(dsn):
    async with engine(dsn) as core:
        await apply(core, overlap="allow")
        await has_fired(core, 1)
        await make_due(core)
        await has_fired(core, 2)
        assert await fates(core) == [Fate.STARTED] * 2


@pytest.mark.parametrize(("misfire", "started", "missed"), [("skip", 0, [Fate.MISSED]), ("one", 1, []), ("all", 5, [])])
async def test_missed_firings_run_as_the_policy_says(dsn, misfire, started, missed):
    async with engine(dsn) as core:
        start = datetime.datetime.now(datetime.UTC) + HOUR
        await apply(core, start=start.isoformat(), misfire=misfire, overlap="allow")
        async with core.database.cold() as connection:
            spec = msgspec.json.decode(await connection.fetchval("select spec from schedule"))
            first = start - 5.5 * HOUR
            spec["start"] = first.isoformat()
            text = msgspec.json.encode(spec).decode()
            await connection.execute("update schedule set spec = $1, next_at = $2, due_at = $2", text, first)
        core.bus.scheduled()
        rows = await has_fired(core, max(started, 1))
        assert [Fate(r["state"]) for r in rows] == [Fate.STARTED] * started + missed
        assert sum(r["missed"] for r in rows) + len(rows) == 5
        (schedule,) = await fetch(core, "select next_at from schedule")
        assert schedule["next_at"] > datetime.datetime.now(datetime.UTC)


async def test_a_paused_schedule_does_not_fire_and_resumes_from_now(dsn):
    async with engine(dsn) as core:
        await apply(core, start=(datetime.datetime.now(datetime.UTC) + HOUR).isoformat(), misfire="all")
        await core.schedules.pause(1, "s")
        await make_due(core)
        await core.firing.run_once()
        assert await firings(core) == []
        await core.schedules.resume(1, "s")
        (row,) = await fetch(core, "select next_at, paused_at from schedule")
        assert row["paused_at"] is None
        assert row["next_at"] > datetime.datetime.now(datetime.UTC)
        assert await firings(core) == []


async def test_trigger_runs_it_now_even_while_it_is_paused_and_busy(dsn):
    async with engine(dsn) as core:
        await apply(core, schedule="annually")
        await core.schedules.pause(1, "s")
        runs = {(await core.schedules.trigger(1, "s")).run for _ in range(3)}
        assert len(runs) == 3
        assert {r["id"] for r in await fetch(core, "select id from task")} == runs
        assert {Kind(r["kind"]) for r in await firings(core)} == {Kind.TRIGGER}


async def test_a_triggered_run_counts_as_going(dsn):
    async with engine(dsn) as core:
        await apply(core, start=(datetime.datetime.now(datetime.UTC) + HOUR).isoformat())
        await core.schedules.trigger(1, "s")
        await due_without_start(core)
        await has_fired(core, 2)
        assert sorted(await fates(core)) == [Fate.STARTED, Fate.SKIPPED]


async def test_backfill_runs_each_moment_of_the_range_once_one_after_another(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await apply(core, schedule="daily", timezone="Europe/Berlin")
        since = datetime.datetime(2026, 3, 28, tzinfo=datetime.UTC)
        until = datetime.datetime(2026, 3, 31, tzinfo=datetime.UTC)
        made = await core.schedules.backfill(1, "s", since, until, "queue")
        assert [at.isoformat() for at in made] == [
            "2026-03-28T23:00:00+00:00",
            "2026-03-29T22:00:00+00:00",
            "2026-03-30T22:00:00+00:00",
        ]
        assert await core.schedules.backfill(1, "s", since, until, "queue") == []
        for _ in made:
            orders = await agent.orders()
            assert len(await fetch(core, "select 1 from task")) == 1
            await agent.succeed(*orders)
        assert await fates(core) == [Fate.STARTED] * 3


async def test_backfill_with_allow_runs_them_at_the_same_time(dsn):
    async with engine(dsn) as core:
        await apply(core, schedule="daily")
        since, until = (datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (1, 21))
        await core.schedules.backfill(1, "s", since, until, "allow")

        async def all_run() -> bool:
            return len(await fetch(core, "select 1 from task")) == 20

        await eventually(all_run)


async def test_a_backfill_under_way_can_be_stopped_and_asked_for_again(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await apply(core, schedule="daily")
        since, until = (datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (1, 6))
        assert len(await core.schedules.backfill(1, "s", since, until, "queue")) == 5
        orders = await agent.orders()  # the first is under way
        given_up = await core.schedules.stop_backfill(1, "s")
        assert [at.day for at in given_up] == [2, 3, 4, 5]
        assert await fates(core) == [Fate.STARTED] + [Fate.SKIPPED] * 4
        assert {row["note"] for row in await firings(core)} == {None, "the backfill was stopped"}
        await agent.succeed(*orders)
        assert await core.schedules.stop_backfill(1, "s") == []
        assert len(await core.schedules.backfill(1, "s", since, until, "queue")) == 4
        with pytest.raises(NotFound):
            await core.schedules.stop_backfill(1, "t")


async def test_a_backfill_is_bounded_and_lies_in_the_past(dsn):
    async with engine(dsn) as core:
        await apply(core, schedule=1, start="2020-01-01T00:00:00Z")
        past = datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)
        with pytest.raises(InvalidInput, match="more than 10000"):
            await core.schedules.backfill(1, "s", past, past + 30 * HOUR, "queue")
        with pytest.raises(InvalidInput, match="future"):
            await core.schedules.backfill(1, "s", past, datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC), "queue")
        with pytest.raises(InvalidInput, match="before since"):
            await core.schedules.backfill(1, "s", past, past - HOUR, "queue")


async def test_deleting_takes_the_firings_along_and_leaves_the_runs(dsn):
    async with engine(dsn) as core:
        await apply(core)
        await has_fired(core, 1)
        await core.schedules.delete(1, "s")
        assert await fetch(core, "select 1 from firing") == []
        assert len(await fetch(core, "select 1 from task")) == 1
        with pytest.raises(NotFound):
            await core.schedules.delete(1, "s")


async def test_schedules_of_tenants_are_apart(dsn):
    async with engine(dsn) as core:
        other, _ = await core.access.add_tenant("other")
        await apply(core)
        assert await apply(core, tenant=other) == "created"
        with pytest.raises(NotFound):
            await core.schedules.pause(other + 1, "s")
        await core.schedules.delete(other, "s")
        assert len(await fetch(core, "select 1 from schedule")) == 1


async def test_three_servers_fire_five_hundred_schedules_once(dsn):
    async with engine(dsn, holder="one") as core, engine(dsn, holder="two"), engine(dsn, holder="three"):
        start = (datetime.datetime.now(datetime.UTC) + HOUR).isoformat()
        task = msgspec.convert(function(), TaskSpec)
        await core.schedules.apply(1, [Scheduled(3600, start=start, name=f"s{n}", task=task) for n in range(500)])
        await due_without_start(core)

        async def all_fired() -> bool:
            return len(await fetch(core, "select 1 from firing")) >= 500

        await eventually(all_fired)
        counts = await fetch(core, "select count(*) as n, count(distinct id) as d from task")
        assert tuple(counts[0]) == (500, 500)


async def test_a_deposed_timekeeper_fires_nothing(dsn):
    async with engine(dsn) as core:
        await apply(core, start=(datetime.datetime.now(datetime.UTC) + HOUR).isoformat())
        async with core.database.cold() as connection:
            await connection.execute("update duty set epoch = epoch + 1, holder = 'usurper' where name = 'timekeeper'")
            await connection.execute("update schedule set next_at = now(), due_at = now()")
        with pytest.raises(StaleEpoch):
            await core.firing.run_once()
        assert await firings(core) == []
        assert await fetch(core, "select 1 from task") == []


async def test_a_transaction_that_breaks_fires_nothing_and_the_next_one_all(dsn, monkeypatch):
    """As when the server is killed between the firing's row and its tasks."""
    from headway.control import starting
    from headway.errors import Unavailable

    async with engine(dsn) as core:
        real = starting.store_batch
        broken = 0

        async def break_once(connection: Any, batch: Any) -> None:
            nonlocal broken
            await real(connection, batch)
            broken += 1
            if broken == 1:
                raise Unavailable("gone")

        monkeypatch.setattr(starting, "store_batch", break_once)
        await apply(core)
        await has_fired(core, 1)
        assert broken == 2
        assert len(await fetch(core, "select 1 from task")) == 1


async def test_a_schedule_that_cannot_fire_is_stopped_and_does_not_hold_up_the_others(dsn):
    async with engine(dsn) as core:
        start = (datetime.datetime.now(datetime.UTC) + HOUR).isoformat()
        for name in ("bad", "good"):
            await apply(core, name, start=start)
        await fetch(core, "update schedule set body = '{\"task\": 7}' where name = 'bad'")
        await due_without_start(core)
        await has_fired(core, 1, "good")

        async def stopped() -> Any:
            return await fetch(core, "select problem from schedule where name = 'bad' and paused_at is not null")

        assert "could not fire" in (await eventually(stopped))[0]["problem"]
        told = await fetch(core, "select data from event where kind = 'alert.schedule_stopped'")
        assert [msgspec.json.decode(row["data"])["schedule"] for row in told] == ["bad"], told


@pytest.mark.parametrize("paused", [False, True])
async def test_what_cannot_fire_is_given_up_once_though_a_person_asked_for_it(dsn, paused):
    async with engine(dsn) as core:
        now = datetime.datetime.now(datetime.UTC)
        await apply(core, "bad", start=(now - 3 * HOUR).isoformat())
        await fetch(core, "update schedule set body = '{\"task\": 7}', paused_at = case when $1 then clock_timestamp() end", paused)
        assert len(await core.schedules.backfill(1, "bad", now - 3 * HOUR, now - HOUR, "allow")) == 2

        async def given_up() -> bool:
            return Fate.WAITING not in await fates(core, "bad")

        await eventually(given_up)
        assert await fates(core, "bad") == [Fate.SKIPPED, Fate.SKIPPED]
        assert all("could not fire" in row["note"] for row in await firings(core, "bad"))
        assert len(await fetch(core, "select 1 from event where kind = 'alert.schedule_stopped'")) == (not paused)
        assert await core.firing.run_once() > 0  # nothing is left to be tried again and again


async def test_a_schedule_that_was_stored_nested_too_deeply_is_told_so_and_stopped(dsn):
    async with engine(dsn) as core:
        await apply(core, start="2099-01-01T00:00:00Z")
        await fetch(core, "update schedule set body = $1", '{"task":{"function":"m:f","input":' + "[" * 2000 + "]" * 2000 + "}}")
        with pytest.raises(InvalidInput, match="the schedule 's' is nested too deeply"):
            await core.schedules.trigger(1, "s")
        await due_without_start(core)

        async def stopped() -> Any:
            return await fetch(core, "select problem from schedule where paused_at is not null")

        assert "nested too deeply" in (await eventually(stopped))[0]["problem"]


async def test_jitter_delays_each_firing_by_less_than_its_length(dsn):
    async with engine(dsn) as core:
        await apply(core, schedule="hourly", jitter="30m")
        (row,) = await fetch(core, "select due_at - next_at as late from schedule")
        assert datetime.timedelta(0) <= row["late"] < datetime.timedelta(minutes=30)


async def test_a_task_learns_for_which_moment_it_runs(dsn):
    async with engine(dsn) as core:
        await apply(core, task=function(input={"day": "${firing}", "other": "${firings}"}))
        (row,) = await has_fired(core, 1)
        (task,) = await fetch(core, "select input from task")
        assert msgspec.json.decode(task["input"]) == {"day": row["at"].isoformat(), "other": "${firings}"}


async def test_a_firing_above_the_tenant_s_limit_is_skipped_with_the_reason(dsn):
    async with engine(dsn) as core:
        body = '{"isolation": "none", "rate_per_hour": 1, "burst": 1}'
        await fetch(core, "update tenant set subscription = $1, changed_at = clock_timestamp() where id = 1", body)
        await core.tenants.refresh()
        await apply(core, overlap="allow")
        await has_fired(core, 1)
        await make_due(core)
        await has_fired(core, 2)
        assert sorted(await fates(core)) == [Fate.STARTED, Fate.SKIPPED]
        assert "subscription allows" in next(row["note"] for row in await firings(core) if row["note"])
        with pytest.raises(LimitExceeded):
            await core.schedules.trigger(1, "s")
        assert len(await fetch(core, "select 1 from task")) == 1


async def refused_once(core: Any, monkeypatch: pytest.MonkeyPatch, refusal: str) -> list[Any]:
    """PostgreSQL refuses to store the first firing, of a tenant that may have three tasks now. What there was to store, each time."""
    from headway.control import starting

    real, tries = starting.store_batch, []

    async def store(connection: Any, batch: Any) -> None:
        await real(connection, batch)
        tries.append(batch)
        if len(tries) == 1:
            await connection.execute(f"do $$ begin raise exception 'by the test' using errcode = '{refusal}'; end $$")

    monkeypatch.setattr(starting, "store_batch", store)
    body = '{"isolation": "none", "rate_per_hour": 1, "burst": 3}'
    await fetch(core, "update tenant set subscription = $1, changed_at = clock_timestamp() where id = 1", body)
    await core.tenants.refresh()
    return tries


TWO = [{"function": "m:f", "name": name} for name in "ab"]


@pytest.mark.parametrize("refusal", ["40P01", "22000"], ids=["a deadlock", "a fault that may be of one of many"])
async def test_a_firing_that_is_stored_again_takes_its_tokens_once(dsn, monkeypatch, refusal):
    async with engine(dsn) as core:
        tries = await refused_once(core, monkeypatch, refusal)
        await apply(core, tasks=TWO)
        await has_fired(core, 1)
        assert (await fates(core), len(tries)) == ([Fate.STARTED], 2)


async def test_a_trigger_that_is_stored_again_takes_its_tokens_once(dsn, monkeypatch):
    async with engine(dsn) as core:
        tries = await refused_once(core, monkeypatch, "40P01")
        await apply(core, tasks=TWO, start="2099-01-01T00:00:00Z")
        await core.schedules.trigger(1, "s")
        assert (len(tries), len(await fetch(core, "select 1 from task"))) == (2, 2)


async def test_many_triggers_of_a_limited_tenant_keep_nobody_from_the_connections(dsn, monkeypatch):
    monkeypatch.setattr("headway.store.database.LOAN_S", 1.0)
    async with engine(dsn) as core, contextlib.AsyncExitStack() as opened:
        agent = await ScriptedAgent(core).join()
        body = '{"isolation": "none", "rate_per_hour": 36000, "burst": 100}'
        await fetch(core, "update tenant set subscription = $1, changed_at = clock_timestamp() where id = 1", body)
        await core.tenants.refresh()
        for n in range(12):
            await apply(core, f"s{n}", start="2089-01-01T00:00:00Z")
        for _ in range(core.database._hot._size):  # all of them are open, as on a server that was busy
            await opened.enter_async_context(core.database.hot())
        await opened.aclose()
        started = asyncio.gather(*(core.schedules.trigger(1, f"s{n}") for n in range(12)))
        await asyncio.sleep(0)
        assert (await agent.say(heartbeat=True)).renewed
        assert len({start.run for start in await started}) == 12


async def test_a_trigger_of_what_is_changed_meanwhile_is_told_so(dsn, monkeypatch):
    async with engine(dsn) as core:
        await apply(core, start="2099-01-01T00:00:00Z")
        take = core.allowances.take

        async def changed(tenant: int, count: int) -> Any:
            await apply(core, tasks=TWO, start="2099-01-01T00:00:00Z")
            return await take(tenant, count)

        monkeypatch.setattr(core.allowances, "take", changed)
        with pytest.raises(Conflict, match="'s' was changed"):
            await core.schedules.trigger(1, "s")
        monkeypatch.undo()
        await core.schedules.trigger(1, "s")
        assert len(await fetch(core, "select 1 from task")) == 2


async def test_a_firing_whose_turn_the_limit_puts_off_says_so_until_it_starts(dsn):
    limited = "update tenant set subscription = $1, changed_at = clock_timestamp() where id = 1"
    async with engine(dsn) as core:
        await fetch(core, limited, '{"isolation": "none", "rate_per_hour": 1, "burst": 1}')
        await core.tenants.refresh()
        agent = await ScriptedAgent(core).join()
        await apply(core, overlap="queue")
        orders = await agent.orders()
        await make_due(core)
        assert {row["note"] for row in await has_fired(core, 2)} == {None}
        await agent.succeed(*orders)

        async def note() -> str | None:
            return (await firings(core))[1]["note"]

        assert "a task is more than your subscription allows now" in await eventually(note)
        await fetch(core, limited, '{"isolation": "none"}')
        await core.tenants.refresh()
        await agent.orders()
        assert (await fates(core), await note()) == ([Fate.STARTED, Fate.STARTED], None)


async def test_a_database_that_refuses_for_its_own_reasons_stops_no_schedule(dsn, monkeypatch):
    """As when the disk is full: it is tried again, and the schedule is not to blame."""
    import asyncpg

    from headway.control import starting

    async with engine(dsn) as core:
        real, tried = starting.store_batch, 0

        async def refuse_twice(connection: Any, batch: Any) -> None:
            nonlocal tried
            tried += 1
            if tried <= 2:
                raise asyncpg.DiskFullError("no space left on device")
            await real(connection, batch)

        monkeypatch.setattr(starting, "store_batch", refuse_twice)
        await apply(core)
        await has_fired(core, 1)
        (row,) = await fetch(core, "select paused_at, problem from schedule")
        assert (row["paused_at"], row["problem"]) == (None, None)
