"""What tenants and their limits cost end to end: the same tasks of one tenant, of a hundred, and of a hundred with limits, turn by turn.

    python bench/tenants.py [--tasks 20000] [--rounds 4]

Each of the last has a rate, a burst, quotas of running and waiting tasks, cpus and memory, and a weight: all wide enough to refuse
nothing, so that the difference is what keeping to them costs. One throw-away instance, all sides in turn; the CPU time of all its
processes counts, since the clock of a shared machine drifts.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import sys
from typing import Any

from headway.bench import companions, processes
from headway.bench.instance import Instance, throw_away
from headway.bench.ledger import Ids
from headway.bench.load import Plan, Sent

TENANTS = 100
LIMITS = {
    "rate_per_hour": 3_600_000_000, "burst": 1_000_000, "max_running": 100_000, "max_waiting": 10_000_000, "max_cpus": 100_000,
    "max_memory": "1000TiB", "weight": 2,
}  # fmt: skip


async def make_tenants(instance: Instance, **subscription: Any) -> list[str]:
    run, tokens = secrets.token_hex(3), []
    for at in range(TENANTS):
        name = f"bench-{run}-{at}"
        await instance.call("POST", "/v1/tenants", {"name": name, "isolation": "none", **subscription})
        tokens.append((await instance.call("POST", "/v1/keys", {"tenant": name, "role": "tenant"}))["token"])
    return tokens


async def measure(instance: Instance, tokens: list[str], tasks: int) -> tuple[float, float]:
    """Tasks a second, and CPU microseconds a task."""
    plan = Plan(instance.url, tokens, "ready", per_request=100, connections=4, tasks=tasks)
    async with companions.generator(plan) as generator:
        before = processes.cpu_seconds(instance.roots)
        generator.say("go")
        sent = await generator.answer(Sent)
    ids = Ids(sent.first_id, sent.last_id, sent.tasks)
    ended = await instance.ledger.all_finished(ids)
    used = processes.cpu_seconds(instance.roots) - before
    await instance.ledger.require_success(ids, "noop")
    return sent.tasks / (ended - sent.began), used / sent.tasks * 1e6


async def run(options: Any) -> None:
    async with throw_away() as instance:
        await instance.first_task()
        sides = {"one tenant": [instance.token], "a hundred": await make_tenants(instance)}
        sides["with limits"] = await make_tenants(instance, **LIMITS)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for tokens in sides.values():
            await measure(instance, tokens, 100 * len(tokens))  # definitions and runners are there
        for number in range(options.rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                found[name].append(await measure(instance, sides[name], options.tasks))
                print(f"{name:>12} {found[name][-1][0]:8.0f} tasks/s {found[name][-1][1]:7.1f} µs CPU a task", flush=True)
    rates, cpus = ({name: statistics.median(one[i] for one in found[name]) for name in sides} for i in (0, 1))
    for name in sides:
        print(f"median of {name}: rate {rates[name] / rates['one tenant']:.0%}, CPU {cpus['one tenant'] / cpus[name]:.0%} of one tenant's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=4)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
