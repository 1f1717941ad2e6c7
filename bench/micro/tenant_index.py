"""What an index on (tenant, id) costs the hot path, and what it saves a small tenant that lists its tasks.

    python bench/micro/tenant_index.py [--tasks 60000] [--history 400000]

The variants are run in turn within one run, since the speed of a machine drifts. Figures are in docs/decisions/0025.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import time
from typing import Any

import throwaway
from store import SETUP, STEPS

from headway.domain import identity
from headway.store import partitions
from headway.store.database import Database
from headway.store.listing import Filter, page
from headway.store.migrate import migrate

VARIANTS = {
    "none": (),
    "task": ("create index by_tenant_task on task (tenant, id)",),
    "history": ("create index by_tenant_history on task_history (tenant, id)",),
}
DROP = "drop index if exists by_tenant_task; drop index if exists by_tenant_history"
BATCH, ROUNDS = 500, 3
FILL = """
    insert into task_history (id, start_by, eligible_at, ended_at, tenant, definition, shape, cap_ms, attempt, state, category,
        failures, resource_failures, node_losses, requeues, input)
    select $1::bigint + n, now(), now(), now(), case when n in (10, 20, 30) then 999 else 1 + n % 100 end,
        1, 1, 600000, 1, 6, 1, 0, 0, 0, 0, '\\x' from generate_series(1, $2::int) n
"""


async def block(connection: Any, numbers: identity.Ids, tasks: int) -> float:
    """µs a task for admit, lease and finish."""
    began = time.perf_counter()
    for _ in range(tasks // BATCH):
        ids = numbers.take(BATCH, time.time_ns() // 1_000_000)
        for step in STEPS.values():
            async with connection.transaction():
                await step(connection, ids, 100)
    return (time.perf_counter() - began) / tasks * 1e6


async def listing(database: Database) -> float:
    """Milliseconds for the first page of a tenant with three tasks among all the others."""
    async with database.cold() as connection:
        began = time.perf_counter()
        assert len(await page(connection, Filter(tenant=999))) == 3
        return (time.perf_counter() - began) * 1000


async def measure(dsn: str, options: argparse.Namespace) -> None:
    await migrate(dsn)
    database = Database(dsn)
    await database.open()
    numbers = identity.Ids(number=0, after_ms=0, until_ms=2**42)
    spent: dict[str, list[float]] = {name: [] for name in VARIANTS}
    async with database.hot() as connection:
        await partitions.ensure(connection, datetime.datetime.now(datetime.UTC).date())
        await connection.execute(SETUP)
        await block(connection, numbers, 10_000)
        for _ in range(ROUNDS):
            for name, statements in VARIANTS.items():
                for statement in statements:
                    await connection.execute(statement)
                spent[name].append(await block(connection, numbers, options.tasks // ROUNDS))
                await connection.execute(DROP)
        first = identity.first_id_of(time.time_ns() // 1_000_000 + 1000)
        await connection.execute(FILL, first, options.history)
        await connection.execute("analyze task_history")
    for name, rounds in spent.items():
        print(f"{name:<8} {min(rounds):6.1f} µs a task at best, {sum(rounds) / len(rounds):6.1f} on average")
    print(f"a page of a small tenant among {options.history:,}: {await listing(database):.1f} ms without")
    async with database.hot() as connection:
        await connection.execute(VARIANTS["history"][0])
    print(f"a page of a small tenant among {options.history:,}: {await listing(database):.1f} ms with the index on history")
    await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=60_000)
    parser.add_argument("--history", type=int, default=400_000)
    options = parser.parse_args()
    with throwaway.database() as dsn:
        asyncio.run(measure(dsn, options))


if __name__ == "__main__":
    main()
