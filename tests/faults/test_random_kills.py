"""kill -9 of anything at random moments under load: nothing acknowledged is lost, nothing runs twice at the same time.

HEADWAY_FAULT_ROUNDS sets how many kills (10; `make faults` does 200), HEADWAY_FAULT_SEED repeats a run that failed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest

from headway.wire.http import Http
from tests.support.cluster import TOKEN, Cluster, cluster
from tests.support.waiting import eventually

ROUNDS = int(os.environ.get("HEADWAY_FAULT_ROUNDS", "10"))
SEED = int(os.environ.get("HEADWAY_FAULT_SEED") or random.SystemRandom().randrange(2**32))
SUBMITTERS = 3
LOAD_S = 1.5

_names = itertools.count(1)


@pytest.mark.time_limit(300 + 60 * ROUNDS)
async def test_killing_anything_under_load_loses_nothing_and_doubles_nothing(tmp_path):
    luck = random.Random(SEED)
    print(f"\nHEADWAY_FAULT_SEED={SEED} HEADWAY_FAULT_ROUNDS={ROUNDS}")
    async with cluster(tmp_path, servers=2, agents=2) as made:
        # Every kind of fault comes before any comes again, so that few rounds see all of them.
        faults: list[Callable[[Cluster, random.Random], Awaitable[str]]] = []
        for number in range(1, ROUNDS + 1):
            faults = faults or luck.sample(FAULTS, len(FAULTS))
            began = time.monotonic()
            words = await one_round(made, luck, faults.pop())
            print(f"round {number}: {words}; {len(made.acknowledged)} tasks, {time.monotonic() - began:.1f} s", flush=True)
        assert await made.fetchval("select count(*) from dead_letter") == 0, "faults are not the task's: it is run again"


async def one_round(made: Cluster, luck: random.Random, fault: Callable[[Cluster, random.Random], Awaitable[str]]) -> str:
    stop = asyncio.Event()
    submitters = [asyncio.create_task(submitter(made, random.Random(luck.random()), stop)) for _ in range(SUBMITTERS)]
    try:
        before = len(made.acknowledged)
        await eventually(lambda: len(made.acknowledged) >= before + 10, what="the load begins")
        await asyncio.sleep(luck.random() * LOAD_S)  # the random moment
        words = await fault(made, luck)
        after = len(made.acknowledged)
        await eventually(lambda: len(made.acknowledged) >= after + 10, what=f"submitting goes on after {words}")
    finally:
        stop.set()
        await asyncio.gather(*submitters)
    await made.until_final()
    await made.assert_sound()
    return words


async def submitter(made: Cluster, luck: random.Random, stop: asyncio.Event) -> None:
    """Submits one by one with keys, repeated until answered, and in bulk, not repeated."""
    https = [Http(server.url, token=TOKEN, connect_timeout=1.0) for server in made.servers]
    try:
        while not stop.is_set():
            if luck.random() < 0.3:
                await _ask(made, luck.choice(https), [a_task(made, luck) for _ in range(luck.randrange(1, 12))])
            else:
                await _until_answered(made, luck, https)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.06 * luck.random()):
                    await stop.wait()
    finally:
        for http in https:
            await http.close()


async def _until_answered(made: Cluster, luck: random.Random, https: list[Http]) -> None:
    task = {**a_task(made, luck), "idempotency_key": f"key-{next(_names)}"}
    await eventually(lambda: _ask(made, luck.choice(https), task), what="a server answers")


async def _ask(made: Cluster, http: Http, body: object) -> bool:
    """Whether it was answered with a promise. Without one, the tasks may be there or not: nobody was promised anything."""
    try:
        return bool(made.remember(await http.request("POST", "/v1/tasks", body=msgspec.json.encode(body), timeout=10.0)))
    except (ConnectionError, TimeoutError):
        return False


def a_task(made: Cluster, luck: random.Random) -> dict[str, object]:
    seconds = luck.choice((0, 0, 0.02, 0.1, 0.4))
    return made.program(seconds) if luck.random() < 0.15 else made.function(seconds)


# Faults. Each returns what it did, once whatever does not heal by itself was started again.


async def kill_server(made: Cluster, luck: random.Random) -> str:
    server = luck.choice(made.servers)
    server.kill()
    await server.start()
    return f"kill -9 of {server.name}"


async def kill_database(made: Cluster, luck: random.Random) -> str:
    made.postgres.kill()
    made.postgres.start()
    return "kill -9 of PostgreSQL"


async def kill_backend(made: Cluster, luck: random.Random) -> str:
    """One backend: PostgreSQL ends all the others and recovers."""
    pids = [r["pid"] for r in await made.fetch("select pid from pg_stat_activity where application_name like 'headway%' order by pid")]
    with suppress(ProcessLookupError):  # its server gave it up meanwhile
        os.kill(luck.choice(pids), signal.SIGKILL)
    return "kill -9 of a backend"


async def kill_agent(made: Cluster, luck: random.Random) -> str:
    agent = luck.choice(made.agents)
    agent.kill_everything()
    agent.start()
    return f"kill -9 of all of {agent.name}"


def part_killer(part: str) -> Callable[[Cluster, random.Random], Awaitable[str]]:
    async def kill(made: Cluster, luck: random.Random) -> str:
        agent = luck.choice(made.agents)

        async def found() -> list[int]:
            return sorted(agent.processes()[part])

        pid = luck.choice(await eventually(found, what=f"{agent.name} has a {part}"))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"kill -9 of a {part} of {agent.name}"

    return kill


FAULTS = [kill_server, kill_database, kill_backend, kill_agent, *map(part_killer, ("exchange", "supervisor", "runner"))]
