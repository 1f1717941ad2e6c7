"""A tenant with a long backlog on a full fleet does not delay another's single task by more than one task length (E5).

Real servers, agents and rows. Not the clock is judged but the order: within one task length each place of the fleet begins at most one
more task of the crowd, so that many may begin between the moment the single task could run and its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headway.wire.http import Http
from tests.support.cluster import TOKEN, Cluster, cluster

BACKLOG, BULK = 200_000, 10_000
PLACES = 4  # two nodes with half a cpu, tasks of a quarter
SINGLES = 5


async def ask(here: Cluster, token: str, path: str, body: Any) -> Any:
    http = Http(here.servers[0].url, token=token)
    try:
        answer = await http.request("POST", path, body=msgspec.json.encode(body), timeout=120.0)
    finally:
        await http.close()
    assert answer.status in (200, 201), answer.body
    return msgspec.json.decode(answer.body)


async def tenant(here: Cluster, name: str) -> str:
    await ask(here, TOKEN, "/v1/tenants", {"name": name, "isolation": "none"})
    return (await ask(here, TOKEN, "/v1/keys", {"tenant": name}))["token"]


async def begun_before(here: Cluster, task: int) -> int:
    """How many tasks of others began after this one could run and before it did."""
    question = """
        select count(*) from task_anywhere c, task_anywhere s
        where s.id = $1 and c.tenant <> s.tenant and c.started_at > s.eligible_at and c.started_at < s.started_at"""
    return int(await here.fetchval(question, task))


async def test_behind_two_hundred_thousand_tasks_of_another_a_single_one_gets_the_next_place(tmp_path: Path) -> None:
    async with cluster(tmp_path, agents=2, cpus=0.5, HEADWAY_FENCE_S="20", HEADWAY_LOST_S="40") as here:  # nobody is lost
        crowd = await tenant(here, "crowd")
        work = here.function(1.0)
        work.pop("input")
        call = {"journal": str(here.journal), "seconds": 1.0}
        for _ in range(BACKLOG // BULK):
            await ask(here, crowd, "/v1/tasks", {"task": work, "inputs": [call] * BULK})
        await here.until("select count(*) >= $1 from task where state = 4", PLACES)
        assert await here.fetchval("select count(*) from task where state = 2") > BACKLOG * 0.99
        for number in range(SINGLES):
            token = await tenant(here, f"single-{number}")
            task = int((await ask(here, token, "/v1/tasks", here.function(0.1)))["id"])
            await here.until("select exists (select from task_history where id = $1 and state = 6)", task)
            assert await begun_before(here, task) <= PLACES
