"""Two servers release, finish and cancel the same rows at the same time: no deadlock reaches a client, nothing is done twice."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from headway.domain.lifecycle import State
from headway.wire.http import Http
from tests.support.checker_agent import HandAgent, failed, succeeded
from tests.support.cluster import TOKEN, Cluster, cluster

UPSTREAM, DOWNSTREAM = 40, 150


@pytest.fixture
async def made(tmp_path):
    # Agents by hand beat only when the test speaks for them.
    async with cluster(tmp_path, servers=2, agents=0, HEADWAY_LOST_S="300") as made:
        yield made


async def web(made: Cluster, agent: HandAgent) -> tuple[list[int], list[int]]:
    """Tasks that all wait for all of some others."""
    names = [f"up-{n}" for n in range(UPSTREAM)]
    plain = {"resources": agent.only_here(0.001)}
    ups = [made.function(name=name, **plain) for name in names]
    downs = [made.function(after=random.sample(names, len(names)), **plain) for _ in range(DOWNSTREAM)]
    ids = await made.submit(*ups, *downs)
    return ids[:UPSTREAM], ids[UPSTREAM:]


async def twins(made: Cluster) -> tuple[HandAgent, HandAgent]:
    """One node that talks to both servers."""
    first = await HandAgent(made.servers[0]).join()
    second = HandAgent(made.servers[1], first.name)
    second.boot, second.id = first.boot, first.id
    return first, second


async def test_dependants_are_released_once_by_many_finishes_through_both(made):
    first, second = await twins(made)
    ups, downs = await web(made, first)
    refs = await first.orders(UPSTREAM)
    assert {ref[0] for ref in refs} == set(ups)
    answers = await asyncio.gather(*((first, second)[n % 2].post(finished=[succeeded(ref)]) for n, ref in enumerate(refs)))
    assert {answer.status for answer in answers} == {200}
    refs = await first.orders(DOWNSTREAM)
    assert {ref[0] for ref in refs} == set(downs)
    random.shuffle(refs)
    answers = await asyncio.gather(*((first, second)[n % 2].post(finished=[succeeded(ref)]) for n, ref in enumerate(refs)))
    assert {answer.status for answer in answers} == {200}
    await made.assert_sound()


async def test_failures_and_cancels_through_both_skip_dependants_once(made):
    first, second = await twins(made)
    ups, downs = await web(made, first)
    refs = await first.orders(UPSTREAM)
    reports = [failed(ref) if n % 3 else succeeded(ref) for n, ref in enumerate(refs)]
    https = [Http(server.url, token=TOKEN) for server in made.servers]
    await _finish_attempts(made, ups)
    calls = [(first, second)[n % 2].post(finished=[report]) for n, report in enumerate(reports)]
    calls += [https[n % 2].request("POST", f"/v1/tasks/{task}/cancel") for n, task in enumerate(downs[::3])]
    answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} <= {200, 409}, [a.body for a in answers if a.status not in (200, 409)]
    for http in https:
        await http.close()
    await made.until_final()
    await made.assert_sound()
    states = {State(row["state"]) for row in await made.fetch("select state from task_anywhere where id = any ($1::bigint[])", downs)}
    assert states <= {State.SKIPPED, State.CANCELLED}


async def _finish_attempts(made: Cluster, tasks: list[int]) -> None:
    """The next failure of these tasks is their last."""
    await made.fetch("update task set failures = 49 where id = any ($1::bigint[]) returning id", tasks)


async def test_the_same_key_through_both_makes_one_task(made):
    https = [Http(server.url, token=TOKEN) for server in made.servers]
    bodies = [msgspec.json.encode({"command": ["true"], "idempotency_key": f"key-{n}"}) for n in range(20)]
    answers = await asyncio.gather(*(http.request("POST", "/v1/tasks", body=body) for body in bodies for http in https * 4))
    for http in https:
        await http.close()
    assert {answer.status for answer in answers} == {200, 201}
    ids = {made.remember(answer)[0] for answer in answers}
    assert len(ids) == len(bodies)
    assert sum(answer.status == 201 for answer in answers) == len(bodies)
    assert await made.fetchval("select count(*) from task") == len(bodies)
