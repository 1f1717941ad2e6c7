"""The rate limit with three server processes, one of which is killed in the middle (A3)."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import msgspec

from headway.wire.http import Http
from tests.support.cluster import TOKEN, Server, eventually
from tests.support.windows import Taken, assert_within

RATE, BURST = 120.0, 60  # a second, at once
ENOUGH = BURST + 2 * RATE


async def ask(server: Server, token: str, method: str, path: str, body: object):
    http = Http(server.url, token=token)
    try:
        return await http.request(method, path, body=msgspec.json.encode(body))
    finally:
        await http.close()


async def flood(server: Server, token: str, size: int, taken: list[Taken]) -> None:
    """Submit without pause until all of them together were given enough."""
    http = Http(server.url, token=token)
    while len(taken) < ENOUGH:
        asked = time.monotonic()
        try:
            answer = await http.request("POST", "/v1/tasks", body=msgspec.json.encode([{"command": ["true"]}] * size), timeout=60.0)
        except (ConnectionError, TimeoutError):
            break  # this one was killed
        assert answer.status in (201, 429), answer.body
        if answer.status == 201:
            taken += [Taken(asked, time.monotonic())] * size
        await asyncio.sleep(0.01 if answer.status == 429 else 0)
    await http.close()


async def knows_the_limit(server: Server, token: str) -> bool:
    answer = await ask(server, token, "GET", "/v1/limits", None)
    return answer.status == 200 and msgspec.json.decode(answer.body)["rate_per_hour"] is not None


async def test_three_servers_keep_to_one_limit_though_one_is_killed(dsn, tmp_path):
    servers = [Server(f"server-{n}", tmp_path, dsn, {}) for n in range(3)]
    try:
        for server in servers:
            await server.start()
        await ask(servers[0], TOKEN, "POST", "/v1/tenants", {"name": "acme", "rate_per_hour": RATE * 3600, "burst": BURST})
        token = msgspec.json.decode((await ask(servers[0], TOKEN, "POST", "/v1/keys", {"tenant": "acme"})).body)["token"]
        for server in servers:
            await eventually(lambda server=server: knows_the_limit(server, token), what=f"{server.name} hears of the tenant")
        began, taken = time.monotonic(), list[Taken]()
        floods = [asyncio.create_task(flood(server, token, size, taken)) for server in servers for size in (1, 5)]
        await eventually(lambda: asyncio.sleep(0, len(taken) > ENOUGH / 2), what="half of it is used")
        servers[1].kill()
        await asyncio.gather(*floods)
        took_s = time.monotonic() - began
        connection = await asyncpg.connect(dsn)
        stored = await connection.fetchval("select count(*) from headway.task")
        await connection.close()
    finally:
        for server in servers:
            server.kill()
    assert ENOUGH <= len(taken) <= stored, "what was paid for can be used, and what was acknowledged is there"
    assert stored <= BURST + RATE * took_s, "also what the killed server stored and did not acknowledge"
    assert_within(taken, rate=RATE, burst=BURST)
