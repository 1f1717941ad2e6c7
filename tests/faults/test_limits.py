"""The rate limit with three server processes, one of which is killed in the middle (A3)."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import msgspec

from headway.wire.http import Http
from tests.support.cluster import TOKEN, Server
from tests.support.waiting import eventually
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
        await eventually(lambda: len(taken) > ENOUGH / 2, what="half of it is used")
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


async def test_the_quota_of_waiting_tasks_and_the_limit_on_waiting_hold_though_servers_are_killed(dsn, tmp_path):
    """Nobody may take the room a killed server held beyond the quota, nor is it lost; what expires, expires (E6 E7)."""
    most = 60
    servers = [Server(f"server-{n}", tmp_path, dsn, {}) for n in range(2)]
    try:
        for server in servers:
            await server.start()
        await ask(servers[0], TOKEN, "POST", "/v1/tenants", {"name": "small", "isolation": "none", "max_waiting": most})
        token = msgspec.json.decode((await ask(servers[0], TOKEN, "POST", "/v1/keys", {"tenant": "small", "role": "tenant"})).body)["token"]
        late = msgspec.json.decode((await ask(servers[1], TOKEN, "POST", "/v1/tasks", {"command": ["true"], "max_wait": "8s"})).body)["id"]

        async def fill(server: Server) -> None:
            for _ in range(60):
                try:
                    await ask(server, token, "POST", "/v1/tasks", [{"command": ["true"]}] * 3)
                except (ConnectionError, TimeoutError):
                    return

        async def kill_soon() -> None:
            await eventually(lambda: waiting(dsn, at_least=most // 3))
            servers[0].kill()

        await asyncio.gather(fill(servers[0]), fill(servers[1]), kill_soon())
        assert await waiting(dsn) <= most
        servers[1].kill()
        again = Server("server-2", tmp_path, dsn, {})
        servers.append(again)
        await again.start()

        async def is_full() -> bool:
            await ask(again, token, "POST", "/v1/tasks", {"command": ["true"]})
            return await waiting(dsn) >= most

        await eventually(is_full)
        assert (await ask(again, token, "POST", "/v1/tasks", {"command": ["true"]})).status == 429
        assert await waiting(dsn) == most
        await eventually(lambda: has_expired(again, late))
    finally:
        for server in servers:
            server.kill()


async def waiting(dsn: str, *, at_least: int = 0) -> int:
    """Tasks of the tenant that wait; nothing when they are fewer than that."""
    connection = await asyncpg.connect(dsn)
    try:
        sql = "select count(*) from headway.task t join headway.tenant n on n.id = t.tenant where n.name = 'small' and t.state in (0, 1, 2)"
        count = await connection.fetchval(sql)
    finally:
        await connection.close()
    return int(count) if count >= at_least else 0


async def has_expired(server: Server, task: str) -> bool:
    answer = await ask(server, TOKEN, "GET", f"/v1/tasks/{task}", None)
    return bool(msgspec.json.decode(answer.body)["state"] == "expired")
