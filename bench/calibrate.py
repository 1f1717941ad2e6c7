"""Is the simulator right? `python bench/calibrate.py [--minutes 4] [--load 0.85] [--cpus 2] [--mean 4]`.

A throw-away `headway up` and a second agent, each with a few cpus, get tasks that sleep: three tenants, three categories, tiers basic and
regular, at uneven moments. Then the same tasks, as they came and as long as they took, are replayed by the simulator on the same fleet,
with the time from a lease to the first instruction and from an end to the next lease as it was measured. Printed are the quantiles of
waiting of both, and how often a task began within the interval that `explain` had given while it waited.
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
from statistics import median
from typing import Any

import msgspec

from headway.bench import bodies
from headway.bench.instance import Instance, end, environment, throw_away
from headway.embedded.privileges import in_child
from headway.simulate.load import recorded
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


@dataclass
class Sent:
    """One task: what was asked for, and what explain said about it while it waited."""

    id: int
    tenant: int
    kind: str
    tier: str
    said: dict[str, Any] | None = None


@dataclass
class Recording:
    tasks: list[dict[str, Any]] = field(default_factory=list)  # as `headway ls --json` shows them
    waits: list[float] = field(default_factory=list)
    start_s: float = 0.0  # from a lease to the first instruction
    turn_s: float = 0.0  # from an end to the lease that takes its place
    asked: list[dict[str, Any]] = field(default_factory=list)  # what explain said, and when it began

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
        return evaluate(sent, rows)


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
    made = [await instance.call("POST", "/v1/tasks", {"function": bodies.PAUSE, "input": [1.0]}) for _ in range(16)]
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
                "function": bodies.PAUSE, "input": [seconds], "category": kind, "resources": {"tier": tier},
                "delay_tolerance": tolerance if kind == "urgent" else luck.uniform(10.0, tolerance),
            }  # fmt: skip
            await asyncio.sleep(max(0.0, began + at - asyncio.get_running_loop().time()))
            answer = await clients[tenant].request("POST", "/v1/tasks", body=msgspec.json.encode(body))
            if answer.status >= 300:
                raise SystemExit(f"a task was refused: {answer.body[:300]!r}")
            one = Sent(int(msgspec.json.decode(answer.body)["id"]), tenant, kind, tier)
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


def evaluate(sent: list[Sent], rows: dict[int, Any]) -> Recording:
    found = Recording()
    starts, turns = [], []
    ends = sorted((row["ended_at"], row["node"]) for row in rows.values() if row["ended_at"])
    for one in sent:
        row = rows[one.id]
        found.tasks.append(
            {"tenant": str(one.tenant), "category": one.kind, "resources": {"tier": one.tier},
             **{name: row[name].isoformat() for name in ("eligible_at", "start_by", "started_at", "ended_at")}}
        )  # fmt: skip
        found.waits.append((row["started_at"] - row["eligible_at"]).total_seconds())
        starts.append((row["started_at"] - row["leased_at"]).total_seconds())
        before = [at for at, node in ends if node == row["node"] and at <= row["leased_at"]]
        if (row["leased_at"] - row["eligible_at"]).total_seconds() > 1.0 and before:
            turns.append((row["leased_at"] - before[-1]).total_seconds())
        if one.said is not None:
            found.asked.append(told(one.said, row["started_at"], row["start_by"]))
    found.start_s, found.turn_s = median(starts), median(turns) if turns else 0.0
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


def replay(found: Recording, *, cpus: float) -> list[float]:
    """The same tasks in simulated time; how long each waited."""
    fleet = Fleet(2, cpus, 16.0, tick_s=0.05, start_s=found.start_s + found.turn_s)
    outcome = World("headway", fleet).run(recorded([msgspec.json.encode(found.tasks).decode()]))
    waits = [bucket for kind in outcome.waits.values() for bucket, count in kind.buckets.items() for _ in range(count)]
    return sorted(0.001 * 1.02**bucket for bucket in waits)


def compare(real: list[float], simulated: list[float]) -> list[tuple[str, float, float]]:
    rows = [("mean", sum(real) / len(real), sum(simulated) / len(simulated))]
    for part in QUANTILES:
        rows.append((f"p{part * 100:g}", *(sorted(waits)[int(part * (len(waits) - 1))] for waits in (real, simulated))))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--cpus", type=float, default=2.0)
    parser.add_argument("--mean", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write what was recorded there")
    asked = parser.parse_args()
    found = asyncio.run(record(minutes=asked.minutes, load=asked.load, cpus=asked.cpus, mean_s=asked.mean, seed=asked.seed))
    if asked.keep:
        asked.keep.write_bytes(msgspec.json.encode(found))
    print(f"{len(found.waits)} tasks; lease to start {found.start_s * 1000:.0f} ms, end to next lease {found.turn_s * 1000:.0f} ms")
    for name, real, simulated in compare(found.waits, replay(found, cpus=asked.cpus)):
        print(f"{name:5} real {real:8.2f} s   simulated {simulated:8.2f} s   {simulated / max(real, 1e-3) - 1:+.0%}")
    if found.asked:
        print(f"explain: {found.within} of {len(found.asked)} began within the interval ({found.within / len(found.asked):.0%})")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
