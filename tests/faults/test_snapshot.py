"""A connection that holds a snapshot open while tasks go through: dead rows pile up in front of the order, and nothing stops.

How much throughput is left is measured by bench/snapshot.py; here stands what must hold at any speed.
"""

from __future__ import annotations

import asyncpg

from tests.support.cluster import cluster

ROUNDS, TASKS = 4, 500


async def test_tasks_go_through_while_a_snapshot_is_held_open(tmp_path):
    async with cluster(tmp_path, servers=2) as made:
        analyst = await asyncpg.connect(made.dsn, server_settings={"search_path": "headway"})
        try:
            await analyst.execute("begin isolation level repeatable read")
            assert await analyst.fetchval("select count(*) from task_anywhere") == 0
            for number in range(ROUNDS):
                tasks = ({**made.function(), "function": "time:time", "input": None} for _ in range(TASKS))
                await made.submit(*tasks, server=made.servers[number % 2])
                await made.until_final()
            assert await analyst.fetchval("select count(*) from task_anywhere") == 0, "it sees what it saw at the beginning"
        finally:
            await analyst.close()
        await made.assert_sound()
        assert await made.fetchval("select count(*) from task_history where attempt = 1 and state = 6") == ROUNDS * TASKS
