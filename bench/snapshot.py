"""Throughput while one connection holds a snapshot open: `python bench/snapshot.py [--seconds 60]`.

A dump or an analyst keeps every row that was alive when it began. Under full load the dead entries pile up in front of the order
in which the planner reads. One run, three phases in a row on the same instance: free, held, free again; since the speed of a
machine drifts, the phase with the snapshot is compared with the mean of its neighbours. Exit code 1 when less than 80 % is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import msgspec

from headway.bench import companions, durability
from headway.bench.figures import three_digits
from headway.bench.instance import Instance, throw_away
from headway.bench.ledger import Backlog, Ids
from headway.bench.load import Plan, Sent
from headway.bench.scenarios import BULK, warm_up
from headway.bench.sustained import feed

BAR = 0.8
SETTLE = 0.2  # of each phase is not counted: it belongs to the change between two


async def measure(seconds: float) -> dict[str, float]:
    async with throw_away() as instance:
        await durability.require(instance.connection)
        await instance.first_task()
        await instance.make_tenants()
        await warm_up(instance)
        plan = Plan(instance.url, instance.tenant_tokens, "mixed", per_request=BULK, connections=4)
        async with companions.generator(plan) as generator:
            backlog = await instance.ledger.backlog()
            generator.say("go")
            free = [await phase(instance, backlog, generator, seconds / 2)]
            async with snapshot(instance):
                held = await phase(instance, backlog, generator, seconds)
            free.append(await phase(instance, backlog, generator, seconds / 2))
            generator.finish()
            sent = await generator.answer(Sent)
        ids = Ids(sent.first_id, sent.last_id, sent.tasks)
        await instance.ledger.all_finished(ids)
        await instance.ledger.require_success(ids, "noop")
        before, after = [await finishes_per_s(instance, ids, began, seconds / 2) for began in free]
        during = await finishes_per_s(instance, ids, held, seconds)
    return {
        "before_per_s": three_digits(before), "held_per_s": three_digits(during), "after_per_s": three_digits(after),
        "left": round(during / (before + after) * 2, 3), "tasks": sent.tasks,
    }  # fmt: skip


async def phase(instance: Instance, backlog: Backlog, generator: companions.Companion, seconds: float) -> datetime:
    """So long under a backlog that never runs out; returns when that began."""
    generator.say("resume")  # the phase before may have ended in a pause
    began = await instance.ledger.now()
    await feed(backlog, generator, seconds=seconds)
    return began


async def finishes_per_s(instance: Instance, ids: Ids, began: datetime, seconds: float) -> float:
    """Finishes a second in a phase, its beginning left out."""
    settled, counted = began + timedelta(seconds=seconds * SETTLE), seconds * (1 - SETTLE)
    return (await instance.ledger.finishes_by_parts(ids, settled, part_s=counted, parts=1))[0] / counted


@contextlib.asynccontextmanager
async def snapshot(instance: Instance) -> AsyncIterator[None]:
    """A transaction that goes on seeing what there was; proves at its end that it did."""
    folder = await instance.connection.fetchval("select current_setting('unix_socket_directories')")
    user = await instance.connection.fetchval("select current_user")
    analyst = await asyncpg.connect(
        user=user, host=folder, database="postgres", server_settings={"idle_in_transaction_session_timeout": "0"}
    )
    try:
        await analyst.execute("begin isolation level repeatable read")
        newest = await analyst.fetchval("select max(id) from headway.task_history")
        yield
        if await analyst.fetchval("select max(id) from headway.task_history") != newest:
            raise SystemExit("the snapshot was not held")
    finally:
        await analyst.close()


def main() -> int:
    options = argparse.ArgumentParser(description="Throughput while a snapshot is held open.")
    options.add_argument("--seconds", type=float, default=60.0, help="how long it is held (60)")
    found = asyncio.run(measure(options.parse_args().seconds))
    print(msgspec.json.encode(found).decode())
    return 0 if found["left"] >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
