"""Is the simulator right? `python bench/calibrate.py [--minutes 8] [--load 0.85] [--cpus 2] [--mean 4] [--seeds 1,2,3]`.

A throw-away `headway up` and a second agent, each with a few cpus, get tasks that hold a place and stand still while they are frozen:
three tenants, three categories, tiers basic and regular, at uneven moments. Then the same tasks, as they came and as long as each held its
place (from its lease to its end, without the time it was frozen), are replayed by the simulator on the same fleet, with the times from
coming to a lease and from an end to the next lease as they were measured. Printed are the quantiles of waiting of both over all seeds,
with the error that so many tasks leave (the real ones drawn again and again), and how often a task began within the interval that
`explain` had given. `--replay FILE...` compares recordings that were kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, pstdev, quantiles
from typing import Any

import msgspec

from headway.bench import bodies
from headway.bench.instance import Instance, end, environment, throw_away
from headway.embedded.privileges import in_child
from headway.policy.order import Group
from headway.simulate.load import recorded
from headway.simulate.loans import Run
from headway.simulate.outcome import Fleet
from headway.simulate.world import World
from headway.wire.http import Http

TENANTS = 3
KINDS = (("urgent", 0.2, 2.0), ("periodic", 0.4, 60.0), ("delayable", 1.0, 600.0))  # cumulative part, longest tolerance
TIERS = (("basic", 0.7, 0.5), ("regular", 1.0, 1.0))  # cumulative part, cpus
MEAN_CPUS = 0.65
QUANTILES = (0.5, 0.75, 0.9, 0.95)
PATIENT = {"HEADWAY_FENCE_S": "60", "HEADWAY_LOST_S": "70"}  # a busy machine may stand still for a while
LOOK_AFTER_S = 1.0  # a task that waits so long is asked about

_TIMES = "select id, eligible_at, start_by, leased_at, started_at, ended_at, node from headway.task_anywhere where id = any ($1::bigint[])"
_STOPPED = "select distinct unnest(tasks) as task from headway.event where kind = 'task.preempted'"


@dataclass
class Sent:
    """One task: what was asked for, and what explain said about it while it waited."""

    id: int
    tenant: int
    kind: str
    tier: str
    seconds: float
    said: dict[str, Any] | None = None


@dataclass
class Recording:
    tasks: list[dict[str, Any]] = field(default_factory=list)  # as `headway ls --json` shows them
    waits: list[float] = field(default_factory=list)
    come_s: float = 0.0  # from coming to a lease, where there is room
    starts: list[float] = field(default_factory=list)  # of each task, from its lease to its first instruction
    turns: list[float] = field(default_factory=list)  # from an end to the lease that may have taken its place
    stopped: int = 0  # tasks that made room for urgent ones
    asked: list[dict[str, Any]] = field(default_factory=list)  # what explain said, and when it began

    @property
    def turn_s(self) -> float:
        """From an end to the lease that takes its place, at the median: what took much longer waited for something else."""
        return median(self.turns or [0.0])

    @property
    def within(self) -> int:
        return sum(one["low_s"] <= one["began_s"] <= one["high_s"] for one in self.asked)


async def record(*, minutes: float, load: float, cpus: float, mean_s: float, seed: int = 1) -> Recording:
    """Run the load on two real agents."""
    words = ["--name", "one", "--cpus", str(cpus), "--memory", "16GiB", "--disk", "1000GiB"]
    async with throw_away(*words, **PATIENT) as instance, second_agent(instance, words):
        await instance.first_task()
        await both(instance)
        await instance.make_tenants()
        sent = await submit(instance, minutes=minutes, per_s=load * 2 * cpus / (MEAN_CPUS * mean_s), mean_s=mean_s, seed=seed)
        ids = [one.id for one in sent]
        question = "select count(*) from headway.task where id = any ($1::bigint[])"
        for _ in range(600):
            if not await instance.connection.fetchval(question, ids):
                break
            await asyncio.sleep(0.5)
        rows = {row["id"]: row for row in await instance.connection.fetch(_TIMES, ids)}
        stopped = {row["task"] for row in await instance.connection.fetch(_STOPPED)}
        return evaluate(sent, rows, stopped)


@contextlib.asynccontextmanager
async def second_agent(instance: Instance, words: list[str]) -> AsyncIterator[None]:
    folder = instance.folder.parent / "two"
    folder.mkdir()
    settings = {
        "HEADWAY_URL": instance.url,
        "HEADWAY_TOKEN": (instance.folder / "agent-token").read_text().strip(),
        "HEADWAY_DATA": str(folder),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headway.cli.main", "agent", *words[:1], "two", *words[2:], "--work-dir", str(folder / "work")),
        *("--log-level", "warning"),
        cwd=folder, env={**environment(str(folder)), **PATIENT, **settings}, preexec_fn=in_child(None, signal.SIGTERM),
    )  # fmt: skip
    try:
        yield
    finally:
        await end(process)


async def both(instance: Instance) -> None:
    """Wait for the second node, and run enough at once for every runner to be there."""
    for _ in range(600):
        if sum(node["state"] == "up" for node in await instance.call("GET", "/v1/nodes")) == 2:
            break
        await asyncio.sleep(0.1)
    made = [await instance.call("POST", "/v1/tasks", {"function": bodies.WORK, "input": [1.0]}) for _ in range(16)]
    for one in made:
        await instance.call("GET", f"/v1/tasks/{one['id']}?wait=60")


async def submit(instance: Instance, *, minutes: float, per_s: float, mean_s: float, seed: int) -> list[Sent]:
    """Tasks at uneven moments; who still waits after a second is asked about."""
    luck = random.Random(seed)
    clients = [Http(instance.url, token=token) for token in instance.tenant_tokens[:TENANTS]]
    sent: list[Sent] = []
    began, at = asyncio.get_running_loop().time(), 0.0
    async with asyncio.TaskGroup() as group:
        while (at := at + luck.expovariate(per_s)) < minutes * 60:
            kind, _, tolerance = next(one for one in KINDS if luck.random() < one[1] or one is KINDS[-1])
            tier = next(name for name, part, _ in TIERS if luck.random() < part or name == TIERS[-1][0])
            tenant = luck.choice((0, 0, 0, 1, 1, 2))
            seconds = min(max(luck.expovariate(1 / mean_s), 0.2), 5 * mean_s)
            body = {
                "function": bodies.WORK, "input": [seconds], "category": kind, "resources": {"tier": tier},
                "delay_tolerance": tolerance if kind == "urgent" else luck.uniform(10.0, tolerance),
            }  # fmt: skip
            await asyncio.sleep(max(0.0, began + at - asyncio.get_running_loop().time()))
            answer = await clients[tenant].request("POST", "/v1/tasks", body=msgspec.json.encode(body))
            if answer.status >= 300:
                raise SystemExit(f"a task was refused: {answer.body[:300]!r}")
            one = Sent(int(msgspec.json.decode(answer.body)["id"]), tenant, kind, tier, seconds)
            sent.append(one)
            group.create_task(ask(clients[tenant], one))
    for client in clients:
        await client.close()
    return sent


async def ask(client: Http, one: Sent) -> None:
    await asyncio.sleep(LOOK_AFTER_S)
    answer = await client.request("GET", f"/v1/tasks/{one.id}/explain")
    found = msgspec.json.decode(answer.body)
    if found.get("state") == "ready" and found.get("estimate"):
        one.said = {**found, "said_at": datetime.datetime.now(datetime.UTC)}


def evaluate(sent: list[Sent], rows: dict[int, Any], stopped: set[int]) -> Recording:
    """Who was frozen meanwhile worked as long as it was asked to, and as others of that length took beside it."""
    found = Recording(stopped=len(stopped))
    beside = median((rows[o.id]["ended_at"] - rows[o.id]["started_at"]).total_seconds() - o.seconds for o in sent if o.id not in stopped)
    ends = sorted((row["ended_at"], row["node"]) for row in rows.values() if row["ended_at"])
    for one in sent:
        row = rows[one.id]
        ended = row["ended_at"] if one.id not in stopped else row["started_at"] + datetime.timedelta(seconds=one.seconds + beside)
        found.tasks.append(
            {"tenant": str(one.tenant), "category": one.kind, "resources": {"tier": one.tier},
             "eligible_at": row["eligible_at"].isoformat(), "start_by": row["start_by"].isoformat(),
             "started_at": row["leased_at"].isoformat(), "ended_at": ended.isoformat()}
        )  # fmt: skip
        found.waits.append((row["started_at"] - row["eligible_at"]).total_seconds())
        found.starts.append((row["started_at"] - row["leased_at"]).total_seconds())
        before = [at for at, node in ends if node == row["node"] and at <= row["leased_at"]]
        if (row["leased_at"] - row["eligible_at"]).total_seconds() > 1.0 and before:
            found.turns.append((row["leased_at"] - before[-1]).total_seconds())
        if one.said is not None:
            found.asked.append(told(one.said, row["started_at"], row["start_by"]))
    found.come_s = quantiles([(row["leased_at"] - row["eligible_at"]).total_seconds() for row in rows.values()], n=10)[0]
    return found


def told(said: dict[str, Any], began: datetime.datetime, start_by: datetime.datetime) -> dict[str, Any]:
    """In seconds from the moment of the answer."""
    since = said["said_at"]
    moments = {
        name: datetime.datetime.fromisoformat(said["estimate"][word]) for name, word in (("low_s", "low"), ("high_s", "high"))
    }
    moments |= {"began_s": began, "start_by_s": start_by}
    return {
        "reasons": [reason["code"] for reason in said["reasons"]],
        "order": said.get("order"),
        **{name: (moment - since).total_seconds() for name, moment in moments.items()},
    }


class Replayed(World):
    """How long each task waited, exactly."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__("headway", fleet)
        self.waits: dict[int, float] = {}  # by its number in the order of coming

    def _begin(self, task: int, node: int, group: Group) -> Run:
        run = super()._begin(task, node, group)
        self.waits.setdefault(task, run.began - run.one.at)
        return run


def replay(found: Recording, *, cpus: float) -> list[float]:
    """The same tasks in simulated time; how long each waited."""
    world = Replayed(Fleet(2, cpus, 16.0, tick_s=0.005, turn_s=found.turn_s, look_s=0.5))
    came = recorded([msgspec.json.encode(found.tasks).decode()])
    world.run(one._replace(at=one.at + found.come_s) for one in came)
    print(f"{len(came)} tasks, {found.stopped} made room for urgent ones (simulated: {world.outcome.stopped})", end="; ")
    print(f"to a lease {found.come_s * 1000:.0f} ms, to the start {fmean(found.starts) * 1000:.0f}, end to lease {found.turn_s * 1000:.0f}")
    order = sorted(range(len(came)), key=lambda at: found.tasks[at]["eligible_at"])
    return [world.waits[number] + found.come_s + found.starts[at] for number, at in enumerate(order, 1)]


def compare(real: list[float], simulated: list[float]) -> list[tuple[str, float, float]]:
    rows = [("mean", fmean(real), fmean(simulated))]
    for part in QUANTILES:
        rows.append((f"p{part * 100:g}", *(sorted(waits)[int(part * (len(waits) - 1))] for waits in (real, simulated))))
    return rows


def errors(real: list[float], luck: random.Random) -> list[float]:
    """How far the mean and each quantile lie from what they are, as a part of it: the real waits drawn with return, 200 times."""
    draws = [[row[1] for row in compare(again, again)] for again in (luck.choices(real, k=len(real)) for _ in range(200))]
    return [pstdev(column) / max(fmean(column), 1e-3) for column in zip(*draws, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--cpus", type=float, default=2.0)
    parser.add_argument("--mean", type=float, default=4.0)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--keep", type=Path, help="write what was recorded into this folder")
    parser.add_argument("--replay", type=Path, nargs="*", help="compare these recordings")
    asked = parser.parse_args()
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    recordings = [msgspec.json.decode(path.read_bytes(), type=Recording) for path in asked.replay or ()]
    for seed in map(int, asked.seeds.split(",") if not recordings else ()):
        found = asyncio.run(record(minutes=asked.minutes, load=asked.load, cpus=asked.cpus, mean_s=asked.mean, seed=seed))
        recordings.append(found)
        if asked.keep:
            (asked.keep / f"recording-{seed}.json").write_bytes(msgspec.json.encode(found))
    real = [wait for found in recordings for wait in found.waits]
    simulated = [wait for found in recordings for wait in replay(found, cpus=asked.cpus)]
    for (name, ours, theirs), error in zip(compare(real, simulated), errors(real, random.Random(1)), strict=True):
        off = theirs / max(ours, 1e-3) - 1
        print(f"{name:5} real {ours:8.2f} s   simulated {theirs:8.2f} s   {off:+.0%} (error of the real one {error:.0%})")
    answers = [one for found in recordings for one in found.asked]
    if answers:
        within = sum(found.within for found in recordings)
        print(f"explain: {within} of {len(answers)} began within the interval ({within / len(answers):.0%})")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
