"""What the database charges for the hot path: admit, lease, finish, in µs a task, without HTTP, planner or agents.

    python bench/micro/store.py [--tasks 100000] [--batch 500] [--tenants 100]

Uses the very statements of the store on a hot connection of a durable embedded PostgreSQL, one after the other; so
1,000,000 divided by the sum is what one core of PostgreSQL with one of Python waiting for it could carry.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable
from typing import Any

import throwaway

from headway.domain import identity
from headway.store import copy, partitions
from headway.store.arrays import byte_strings, ints, longs, moments, unpacked
from headway.store.database import Database
from headway.store.migrate import migrate
from headway.store.queries import query

NODE = 1
SETUP = """
    insert into node (id, name, boot, capacity) overriding system value values (1, 'here', 'boot', '{}');
    insert into tenant (id, name) overriding system value select n, 'tenant ' || n from generate_series(2, 1000) n;
    insert into shape (id, hash, resources) overriding system value select n, n::text::bytea, '{}' from generate_series(1, 3) n;
    insert into definition (id, tenant, hash, shape, name, body) overriding system value
        select n, 1, n::text::bytea, n, 'noop', '{}' from generate_series(1, 3) n;
    update duty set holder = 'bench', epoch = 1, expires_at = 'infinity' where name = 'planner';
"""


class Source:
    """Bytes as asyncpg reads them for COPY."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, _size: int) -> bytes:
        data, self.data = self.data, b""
        return data


async def admit(connection: Any, ids: list[int], tenants: int) -> None:
    now, place = time.time_ns() // 1000, copy.place_columns(None, None)
    rows = [
        copy.task_row(
            task,
            copy.common_columns(now, now, 1 + at % tenants, 1 + at % 3, 1 + at % 3, 600_000, 0, 2, 1, False),
            place, None, None, None, None, b'["' + b"x" * 96 + b'"]',
        )
        for at, task in enumerate(ids)
    ]  # fmt: skip
    source = Source(copy.document(rows))
    await connection.copy_to_table("task", source=source, columns=copy.COLUMNS, format="binary")


async def lease(connection: Any, ids: list[int], _tenants: int) -> None:
    shapes = [1 + at % 3 for at in range(len(ids))]
    await connection.fetch(query("task.lease"), longs(ids), ints([NODE] * len(ids)), 1, ints(shapes), ints([NODE]))


async def finish(connection: Any, ids: list[int], _tenants: int) -> None:
    count = len(ids)
    now = moments([time.time_ns() // 1_000_000] * len(ids))
    ones, nodes, results = ints([1] * count), ints([NODE] * count), byte_strings([b'"xxxxxxxx"'] * count)
    done = await connection.fetch(query("task.succeed"), longs(ids), ones, nodes, now, now, results, [], [], [])
    assert sum(len(unpacked(row["ids"])) for row in done) == count


STEPS: dict[str, Callable[[Any, list[int], int], Awaitable[None]]] = {"admit": admit, "lease": lease, "finish": finish}


async def measure(dsn: str, options: argparse.Namespace) -> None:
    await migrate(dsn)
    database = Database(dsn)
    await database.open()
    spent = dict.fromkeys(STEPS, 0.0)
    numbers = identity.Ids(number=0, after_ms=0, until_ms=2**42)
    async with database.hot() as connection:
        await partitions.ensure(connection, datetime.datetime.now(datetime.UTC).date())
        await connection.execute(SETUP)
        cpu = time.process_time()
        for _ in range(options.tasks // options.batch):
            ids = numbers.take(options.batch, time.time_ns() // 1_000_000)
            for name, step in STEPS.items():
                began = time.perf_counter()
                async with connection.transaction():
                    await step(connection, ids, options.tenants)
                spent[name] += time.perf_counter() - began
        cpu = time.process_time() - cpu
    await database.close()
    for name, seconds in spent.items():
        print(f"{name:<8} {seconds / options.tasks * 1e6:6.1f} µs a task")
    total = sum(spent.values()) / options.tasks * 1e6
    print(f"{'all':<8} {total:6.1f} µs a task ({1e6 / total:,.0f}/s), of it {cpu / options.tasks * 1e6:.1f} in this Python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--tenants", type=int, default=100)
    options = parser.parse_args()
    with throwaway.database() as dsn:
        asyncio.run(measure(dsn, options))


if __name__ == "__main__":
    main()
