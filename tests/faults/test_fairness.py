"""Fairness, quotas and queues while servers are killed: what counts is in the database (E5 E6 F5 I2)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.support.cluster import cluster
from tests.support.waiting import eventually


async def test_a_paused_queue_stays_paused_and_shares_stay_counted_when_the_leading_server_is_killed(tmp_path: Path) -> None:
    async with cluster(tmp_path, servers=2, agents=1, cpus=1.0, HEADWAY_DUTY_LEASE_S="2") as here:
        first, second = here.servers
        created = await first.http.request("POST", "/v1/queues", body=b'{"name": "held", "paused": true}')
        assert created.status == 201, created.body
        [held] = await here.submit(here.function(0.0, queue="held"))
        await here.submit(*[here.function(0.2) for _ in range(20)])
        leader = await here.fetchval("select holder from duty where name = 'planner'")
        urls = {row["boot"]: row["url"] for row in await here.fetch("select boot, url from server")}
        killed = first if urls[leader] == first.url else second
        left = second if killed is first else first
        killed.kill()
        here.servers.remove(killed)

        async def others_done() -> bool:
            return await here.fetchval("select count(*) from task") == 1

        await eventually(others_done)
        assert await here.fetchval("select state from task where id = $1", held) == 2, "nobody handed it out"
        why = await left.http.request("GET", f"/v1/tasks/{held}/explain")
        assert "queue held is paused" in msgspec.json.decode(why.body)["summary"]
        await left.http.request("POST", "/v1/queues/held/resume")
        await here.until_final()
