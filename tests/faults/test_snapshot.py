"""A connection that holds a snapshot open while tasks go through: dead rows pile up, and the planner does not read them again.

How much throughput is left is measured by bench/snapshot.py; here stands what must hold at any speed.
"""

from __future__ import annotations

import asyncpg

from tests.support.cluster import cluster

ROUNDS, TASKS = 4, 500


async def test_the_planner_does_not_read_the_dead_rows_that_a_snapshot_keeps(tmp_path):
    async with cluster(tmp_path) as made:
        analyst = await asyncpg.connect(made.dsn, server_settings={"search_path": "headway"})
        try:
            await analyst.execute("begin isolation level repeatable read")
            assert await analyst.fetchval("select count(*) from task") == 0
            read: list[int] = []
            for _ in range(ROUNDS):
                before = await _entries_read(made)
                await made.submit(*({**made.function(), "function": "time:time", "input": None} for _ in range(TASKS)))
                await made.until_final()
                read.append(await _entries_read(made) - before)
            assert await analyst.fetchval("select count(*) from task") == 0, "the snapshot is still the old one"
        finally:
            await analyst.close()
        await made.assert_sound()
        # Each round leaves 500 dead entries in front of the next one's. A planner that starts from the front reads them
        # again and again; with a cursor the rounds cost alike.
        assert read[-1] < 2 * max(read[0], TASKS), read


async def _entries_read(made) -> int:
    """Entries of the ready index that were read so far."""
    await made.fetch("select pg_stat_force_next_flush()")
    return int(await made.fetchval("select idx_tup_read from pg_stat_user_indexes where indexrelname = 'task_ready'"))
