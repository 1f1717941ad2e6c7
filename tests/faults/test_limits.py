"""The rate limit with three server processes, one of which is killed in the middle (A3)."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import msgspec

from headway.wire.http import Http
from tests.support.cluster import TOKEN, Server

RATE, BURST = 120.0, 60  # a second, at once
GRACE_S = 0.3  # between a token being taken and the moment in the task's row there is a group commit


async def ask(server: Server, token: str, method: str, path: str, body: object):
    http = Http(server.url, token=token)
    try:
        return await http.request(method, path, body=msgspec.json.encode(body))
    finally:
        await http.close()


async def flood(server: Server, token: str, size: int, end: float) -> int:
    """Submit without pause; how many tasks were accepted."""
    http, accepted = Http(server.url, token=token), 0
    while time.monotonic() < end:
        try:
            answer = await http.request("POST", "/v1/tasks", body=msgspec.json.encode([{"command": ["true"]}] * size), timeout=10.0)
        except (ConnectionError, TimeoutError):
            break  # this one was killed
        assert answer.status in (201, 429), answer.body
        accepted += size if answer.status == 201 else 0
        await asyncio.sleep(0.01 if answer.status == 429 else 0)
    await http.close()
    return accepted


async def test_three_servers_keep_to_one_limit_though_one_is_killed(dsn, tmp_path):
    servers = [Server(f"server-{n}", tmp_path, dsn, {}) for n in range(3)]
    try:
        for server in servers:
            await server.start()
        await ask(servers[0], TOKEN, "POST", "/v1/tenants", {"name": "acme", "rate_per_hour": RATE * 3600, "burst": BURST})
        token = msgspec.json.decode((await ask(servers[0], TOKEN, "POST", "/v1/keys", {"tenant": "acme"})).body)["token"]
        for server in servers:  # each has heard of the tenant by then
            await ask(server, token, "GET", "/v1/limits", None)
        await asyncio.sleep(2.5)
        end = time.monotonic() + 3.0
        floods = [asyncio.create_task(flood(server, token, size, end)) for server in servers for size in (1, 5)]
        await asyncio.sleep(1.2)
        servers[1].kill()
        accepted = sum(await asyncio.gather(*floods))
        connection = await asyncpg.connect(dsn)
        moments = [row[0].timestamp() for row in await connection.fetch("select eligible_at from headway.task order by eligible_at")]
        await connection.close()
    finally:
        for server in servers:
            server.kill()
    assert len(moments) >= accepted, "what was acknowledged is there"
    for first in range(0, len(moments), 3):
        for last in range(first, len(moments), 3):
            assert last - first + 1 <= BURST + RATE * (moments[last] - moments[first] + GRACE_S)
    assert accepted > 0.4 * (BURST + RATE * 3.0), "what was paid for can be used"
