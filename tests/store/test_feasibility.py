"""Trees that cannot keep their schedule, and the sample of runs that says so (C6 K3)."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from headway.control.core import Core
from headway.control.predictions import work_of
from headway.domain.define import define
from headway.domain.lifecycle import Outcome, State
from headway.domain.spec import TaskSpec
from headway.errors import ImpossibleTree
from headway.policy.firing import Fate
from headway.wire.exchange import Finished
from tests.support.engine import ScriptedAgent, engine, function, submit
from tests.support.scheduling import HOUR, apply, due_without_start, fetch, has_fired, make_due
from tests.support.waiting import eventually


async def test_a_run_that_cannot_be_done_in_time_fails_with_the_reason_and_an_alert(dsn):
    async with engine(dsn) as core:
        start = (datetime.datetime.now(datetime.UTC) + HOUR).isoformat()
        await apply(core, start=start, tasks=[function(name="a"), function(name="b", after=["a"])])
        await fetch(core, "update schedule set problem = 'a → b takes 2h'")
        await due_without_start(core)
        (row,) = await has_fired(core, 1)
        assert Fate(row["state"]) is Fate.IMPOSSIBLE
        states = await fetch(core, "select state, error from task_anywhere where tree = $1 order by id", row["run"])
        assert [r["state"] for r in states] == [State.FAILED, State.SKIPPED]
        assert "a → b takes 2h" in states[0]["error"]
        (alert,) = await fetch(core, "select data from event where kind = 'alert.impossible_tree'")
        assert msgspec.json.decode(alert["data"])["problem"] == "a → b takes 2h"


async def _ran(core: Core, seconds: float, *names: str, times: int = 12) -> None:
    """A history: each of these ran so often and took so long."""
    rows = []
    for name in names:
        spec = msgspec.convert(function(name=name, args=[name]), TaskSpec)
        rows += [(work_of(1, define(spec)), len(rows) + at + 1, seconds + at * 0.01, name) for at in range(times)]
    async with core.database.cold() as connection:
        await connection.executemany("insert into run_sample (work, task, tenant, seconds, name) values ($1, $2, 1, $3, $4)", rows)
    core.predictions.forget()


def _chain() -> list[dict[str, Any]]:
    return [function(name="a", args=["a"]), function(name="b", args=["b"], after=["a"]), function(name="c", args=["c"])]


async def test_a_tree_that_is_known_to_take_longer_than_its_interval_is_refused_with_the_chain(dsn):
    async with engine(dsn) as core:
        await _ran(core, 40.0, "a", "b")
        with pytest.raises(ImpossibleTree, match=r"a \(40s\) → b \(40s\) takes 1m20s .* interval is 1m") as caught:
            await apply(core, schedule=60, tasks=_chain())
        assert caught.value.extra["chain"] == ["a", "b"]
        assert await fetch(core, "select 1 from schedule") == []
        assert await apply(core, schedule=90, tasks=_chain()) == "created"
        assert await apply(core, "overlapping", schedule=60, overlap="allow", tasks=_chain()) == "created"


async def test_a_tree_that_turns_out_to_take_longer_fails_in_the_same_words_with_an_alert(dsn):
    async with engine(dsn) as core:
        await apply(core, schedule=60, tasks=_chain())
        await has_fired(core, 1)
        await fetch(core, "update schedule set checked_at = now() - interval '1 hour'")
        await _ran(core, 40.0, "a", "b")
        await core.feasibility.run_once()
        (schedule,) = await fetch(core, "select problem from schedule")
        assert "a (40s) → b (40s) takes 1m20s" in schedule["problem"]
        await fetch(core, "update schedule set running = '{}'")
        await make_due(core)
        rows = await has_fired(core, 2)
        assert Fate(rows[-1]["state"]) is Fate.IMPOSSIBLE
        failed = await fetch(core, "select error from dead_letter where tree = $1", rows[-1]["run"])
        assert all(schedule["problem"] in msgspec.json.decode(row["error"])["message"] for row in failed)
        assert len(failed) == 2  # a and c; b is skipped behind a
        assert len(await fetch(core, "select 1 from event where kind = 'alert.impossible_tree'")) == 1
        # A longer interval is the way out.
        assert await apply(core, schedule=120, tasks=_chain()) == "changed"
        assert (await fetch(core, "select problem from schedule"))[0]["problem"] is None


async def test_runs_are_sampled_from_what_ended_and_predict_the_next(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=64).join()
        spec = function(name="work", args=["x"])
        await submit(core, *(function(args=["x"], name="work", size=size) for size in range(1, 31)))
        sizes = {r["id"]: r["size"] for r in await fetch(core, "select id, size from task")}
        now = round((core.clock.now_us() - 1_000_000) / 1000)
        for order in await agent.orders(30):
            begun = now - round(sizes[order.id] * 100)
            await agent.say(finished=[Finished(order.id, order.attempt, Outcome.SUCCEEDED, started_ms=begun, ended_ms=now)])

        async def sampled() -> bool:
            await core.feasibility.sampler.run_once()
            return len(await fetch(core, "select 1 from run_sample")) == 30

        await eventually(sampled)
        core.predictions.forget()
        specs = [msgspec.convert({**spec, "size": 60.0, "attempts": 7}, TaskSpec)]
        forecast = await core.feasibility.forecast(1, specs, [await core.drafts.define(1, specs[0])])
        said = forecast.tasks["work"]
        assert said.law.value == "n"
        assert said.seconds == pytest.approx(6.0, rel=0.1)
        assert await core.feasibility.sampler.run_once() == 0  # each end is read once


async def test_where_much_ends_at_once_the_sample_has_a_little_of_each(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.predictions.RUNS", 1)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=64).join()
        await submit(core, *(function(args=["x"]) for _ in range(12)))
        orders = await agent.orders(12)
        for at in range(0, 12, 4):
            await agent.succeed(*orders[at : at + 4])

        unread = "select 1 from event e, run_sample_cursor c where e.kind = 'task.succeeded' and (e.xid, e.seq) > (c.xid, c.seq)"

        async def read_all() -> bool:
            await core.feasibility.sampler.run_once()
            return not await fetch(core, unread)

        await eventually(read_all)
        sampled = {row["task"] for row in await fetch(core, "select task from run_sample")}
        assert [sum(order.id in sampled for order in orders[at : at + 4]) for at in range(0, 12, 4)] == [1, 1, 1]
