"""The server is killed in the middle: quotas, shares and messages to webhooks are as right as before (E5 E6 J6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from headway.wire.http import Http
from tests.support.cluster import TOKEN, Cluster, cluster
from tests.support.receiver import receiver

# Nobody's node shall be lost here, however busy the machine is.
PATIENT = {"HEADWAY_FENCE_S": "20", "HEADWAY_LOST_S": "40", "HEADWAY_DUTY_LEASE_S": "2"}
MOST_OVERLAPPING = """
    with spans as (
        select id, tenant, started_at, ended_at from task_history where tenant = (select id from tenant where name = $1)
    )
    select coalesce(max((select count(*) from spans b where b.started_at <= a.started_at and b.ended_at > a.started_at)), 0) from spans a"""


async def ask(here: Cluster, token: str, path: str, body: Any) -> Any:
    http = Http(here.servers[0].url, token=token)
    try:
        answer = await http.request("POST", path, body=msgspec.json.encode(body))
    finally:
        await http.close()
    assert answer.status in (200, 201), answer.body
    return msgspec.json.decode(answer.body)


async def tenant(here: Cluster, name: str, **subscription: Any) -> str:
    await ask(here, TOKEN, "/v1/tenants", {"name": name, "isolation": "none", **subscription})
    return (await ask(here, TOKEN, "/v1/keys", {"tenant": name}))["token"]


async def kill_and_start(here: Cluster) -> None:
    here.servers[0].kill()
    await here.servers[0].start()


async def test_no_more_run_than_the_quota_allows_though_the_server_is_killed_again_and_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, agents=1, cpus=2.0, **PATIENT) as here:
        token = await tenant(here, "acme", max_running=2)
        await ask(here, token, "/v1/tasks", [here.function(0.3) for _ in range(24)])
        for left in (20, 14, 8):
            await here.until("select count(*) <= $1 from task", left)
            await kill_and_start(here)
        await here.until("select not exists (select from task)")
        assert await here.fetchval("select count(*) from task_history where state = 6") == 24
        assert await here.fetchval(MOST_OVERLAPPING, "acme") == 2


async def test_after_a_restart_the_tenant_that_holds_nothing_gets_the_next_places(tmp_path: Path) -> None:
    async with cluster(tmp_path, agents=1, cpus=1.0, **PATIENT) as here:  # four places
        first, second = await tenant(here, "first"), await tenant(here, "second")
        await ask(here, first, "/v1/tasks", [here.function(1.0) for _ in range(16)])
        await here.until("select count(*) = 4 from task where state in (3, 4)")
        await kill_and_start(here)
        ids = (await ask(here, second, "/v1/tasks", [here.function(1.0) for _ in range(2)]))["ids"]
        await here.until("select not exists (select from task)")
        between = await here.fetchval(
            """select count(*) from task_history a where a.tenant = (select id from tenant where name = 'first')
                and a.leased_at > (select max(eligible_at) from task_history where id = any ($1::bigint[]))
                and a.leased_at < (select max(leased_at) from task_history where id = any ($1::bigint[]))""",
            [int(task) for task in ids],
        )
        assert between <= 2, "the two of the second go before more than its equal part of the first"


async def test_every_end_is_told_though_the_server_is_killed_between_the_fact_and_the_message(tmp_path: Path) -> None:
    settings = {**PATIENT, "HEADWAY_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    with receiver() as hook:
        async with cluster(tmp_path, agents=1, cpus=2.0, **settings) as here:
            await ask(here, TOKEN, "/v1/webhooks", {"name": "ops", "url": hook.url, "events": ["finished"]})
            tasks = await here.submit(*[here.function(0.05) for _ in range(60)])
            for count in (5, 20, 40):
                await asyncio.to_thread(hook.wait, count, 90.0)
                await kill_and_start(here)
            await here.until_final()

            async def told() -> bool:
                return {got.event["subject"] for got in hook.got} == {str(task) for task in tasks}

            seen = len(hook.got)
            while not await told():
                await asyncio.to_thread(hook.wait, seen + 1, 90.0)
                seen = len(hook.got)
            ids = {got.headers["webhook-id"] for got in hook.got}
            assert len(ids) == len(tasks), "a message that is sent again carries the same id"
