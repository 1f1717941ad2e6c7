"""What is measured. Each scenario takes an instance and a size, and returns figures under the names of the report.

A clock runs from before the first byte of the first request until SQL says that the last task is final.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.bench import companions, floor, processes
from headway.bench.figures import percentile, rate, three_digits
from headway.bench.instance import Instance
from headway.bench.ledger import Ids, WrongCount
from headway.bench.listen import Heard
from headway.bench.load import Plan, Sent

BULK = 500  # tasks in a request
READ_BACK = 50  # results read by HTTP; all of them are checked by SQL
CLIENTS = 64
PACE_S = 0.02  # 50 tasks a second
SETTLE_S = 6.0  # longer than autovacuum naps: what the warm-up left behind is swept before the idle window begins


@dataclass(frozen=True)
class Size:
    """How long everything takes."""

    submit_s: float
    single_s: float
    latency_s: float
    spawn_rounds: int
    idle_s: float
    depths: tuple[int, ...]
    drain_tasks: int


QUICK = Size(2.0, 2.0, 4.0, 2, 20.0, (10_000,), 30_000)
FULL = Size(12.0, 8.0, 20.0, 5, 20.0, (10_000, 1_000_000), 50_000)


async def warm_up(instance: Instance) -> None:
    """One small bulk of each tenant: definitions are stored, runners are up and have imported the function."""
    await _complete(instance, _plan(instance, kind="mixed", per_request=12, tasks=12 * len(instance.tenant_tokens)))


async def idle(instance: Instance, size: Size) -> dict[str, Any]:
    """CPU (percent of one core) and memory of everything, with warm runners and nothing to do."""
    if not instance.roots:
        return {}
    await asyncio.sleep(SETTLE_S)
    before, began = processes.cpu_seconds(instance.roots), time.monotonic()
    await asyncio.sleep(size.idle_s)
    used = processes.cpu_seconds(instance.roots) - before
    return {
        "idle_cpu_percent": round(100 * used / (time.monotonic() - began), 2),
        "idle_pss_mb": round(processes.pss_bytes(instance.roots) / 1e6, 1),
    }


async def latency(instance: Instance, size: Size) -> dict[str, Any]:
    """From before the request leaves the client until the function runs, at 50 tasks a second on an idle system."""
    plan = Plan(instance.url, [instance.token], "clock", connections=4, seconds=size.latency_s, every_s=PACE_S)
    sent, ids, _ = await _complete(instance, plan)
    await instance.ledger.require_success(ids, "now")
    began = await instance.ledger.results(ids)
    waits = [(int(began[int(task)]) - stamp) / 1e6 for task, stamp in sent.stamps.items()]
    found = {f"p{percent}": round(percentile(waits, percent), 2) for percent in (50, 95, 99)}
    return {"latency_ms": found, "latency_samples": len(waits)}


async def submit_single(instance: Instance, size: Size) -> dict[str, Any]:
    """64 clients, each with one task at a time, until all are done."""
    plan = _plan(instance, kind="single", per_request=1, connections=CLIENTS, seconds=size.single_s)
    sent, ids, ended = await _complete(instance, plan)
    await _require_noops(instance, ids, sent)
    return {
        "submit_single_per_s": three_digits(sent.tasks / (ended - sent.began)),
        "submit_single_acknowledged_per_s": three_digits(sent.tasks / (sent.acknowledged - sent.began)),
    }


async def executables(instance: Instance, size: Size) -> dict[str, Any]:
    """/bin/true beside the machine's own spawn floor, turn by turn, so that both see the same machine."""
    floors: list[float] = []
    tasks, seconds = 0, 0.0
    for _ in range(size.spawn_rounds):
        floors.append(await asyncio.to_thread(floor.spawns_per_s, 1.0))
        count = max(BULK, round(floors[-1] / BULK) * BULK)
        plan = Plan(instance.url, [instance.token], "executables", per_request=BULK, tasks=count)
        sent, ids, ended = await _complete(instance, plan)
        await instance.ledger.require_success(ids, "true")
        tasks += sent.tasks
        seconds += ended - sent.began
    return {
        "executables_per_s": three_digits(tasks / seconds),
        "spawn_floor_per_s": three_digits(sum(floors) / len(floors)),
    }


async def end_to_end(instance: Instance, size: Size) -> dict[str, Any]:
    """Bulk submission by all tenants, three shapes, dependencies, somebody listening to the events."""
    plan = _plan(instance, kind="mixed", per_request=BULK, connections=4, seconds=size.submit_s)
    async with companions.listener(instance.url, instance.token) as listener:
        sent, ids, ended = await _complete(instance, plan)
        listener.finish()
        heard = await listener.answer(Heard)
    if not heard.events:
        raise WrongCount("the event stream stayed silent")
    await _require_noops(instance, ids, sent)
    return {
        "end_to_end_per_s": three_digits(sent.tasks / (ended - sent.began)),
        "end_to_end_tasks": sent.tasks,
        "end_to_end_s": round(ended - sent.began, 2),
        "tenants": len(instance.tenant_tokens),
        "events": heard.events,
    }


async def plain(instance: Instance, size: Size) -> dict[str, Any]:
    """Bulk submission by one tenant, of one shape, without dependencies or listeners: what peers are measured with."""
    plan = Plan(instance.url, [instance.token], "plain", per_request=BULK, connections=4, seconds=size.submit_s)
    sent, ids, ended = await _complete(instance, plan)
    await _require_noops(instance, ids, sent)
    return {"plain_per_s": three_digits(sent.tasks / (ended - sent.began)), "plain_tasks": sent.tasks}


async def drain(instance: Instance, size: Size) -> dict[str, Any]:
    """How fast a backlog shrinks while at least `depth` tasks still wait, and how fast it was submitted."""
    found: dict[str, float | None] = {"10000": None, "1000000": None}
    tasks, seconds = 0, 0.0
    for depth in size.depths:
        await instance.hold()
        plan = _plan(instance, kind="ready", per_request=BULK, connections=4, tasks=depth + size.drain_tasks)
        async with companions.generator(plan) as generator:
            generator.say("go")
            sent = await generator.answer(Sent)
        tasks += sent.tasks
        seconds += sent.acknowledged - sent.began
        ids = Ids(sent.first_id, sent.last_id, sent.tasks)
        await instance.release()
        found[str(depth)] = three_digits(await _drain_rate(instance, ids, size.drain_tasks))
        if depth < 1_000_000 or not instance.throw_away:  # the rest of a million would take a minute for no figure
            await instance.ledger.all_finished(ids)
            await _require_noops(instance, ids, sent)
    return {"drain_per_s": found, "submit_bulk_per_s": three_digits(tasks / seconds)}


ASKED_FOR = ("plain",)  # measured only when named
SCENARIOS: dict[str, Callable[[Instance, Size], Awaitable[dict[str, Any]]]] = {
    "idle": idle,
    "latency": latency,
    "submit_single": submit_single,
    "executables": executables,
    "end_to_end": end_to_end,
    "plain": plain,
    "drain": drain,  # last: it leaves a million tasks behind
}


def _plan(instance: Instance, **more: Any) -> Plan:
    return Plan(instance.url, instance.tenant_tokens or [instance.token], **more)


async def _complete(instance: Instance, plan: Plan) -> tuple[Sent, Ids, float]:
    """Send it all, wait until all is final: what was sent, its ids, and when the end was."""
    async with companions.generator(plan) as generator:
        generator.say("go")
        sent = await generator.answer(Sent)
    ids = Ids(sent.first_id, sent.last_id, sent.tasks)
    return sent, ids, await instance.ledger.all_finished(ids)


async def _drain_rate(instance: Instance, ids: Ids, count: int) -> float:
    """Finishes a second, from the first one seen until there were `count`."""
    ledger = instance.ledger
    first = await ledger.reached(ids, 1, every_s=0.02)
    last = await ledger.reached(ids, count, every_s=0.2)  # seldom, since counting is not free
    return rate(first, last)


async def _require_noops(instance: Instance, ids: Ids, sent: Sent) -> None:
    """All succeeded and all results are right by SQL; some of them are read as a client would."""
    await instance.ledger.require_success(ids, "noop")
    await instance.ledger.require_results(ids)
    for task in random.sample(sent.sample, min(READ_BACK, len(sent.sample))):
        answer = await instance.http.request("GET", f"/v1/tasks/{task}")
        view = msgspec.json.decode(answer.body)
        if view.get("result") != view["input"][0][:8]:
            raise WrongCount(f"task {task} came back with {view.get('result')!r}")
