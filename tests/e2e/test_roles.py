"""Who may do what: roles, tenants that do not see each other, the version handshake, and what needs no token (A7 J2)."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.api.openapi import TABLE, Route
from headway.control.access import hash_of
from headway.wire.exchange import Output
from headway.wire.http import Http, Response
from tests.support.cluster import AGENT_TOKEN, TOKEN, Server
from tests.support.engine import ScriptedAgent, engine, function, submit

PEOPLE = {"admin", "tenant"}
EVERYBODY = {"admin", "tenant", "agent"}
MAY = {  # whom a route serves; people when it is not named here
    ("post", "/v1/nodes"): {"admin", "agent"},
    ("post", "/v1/nodes/{name}/drain"): {"admin"},
    ("post", "/v1/nodes/{name}/undrain"): {"admin"},
    ("delete", "/v1/nodes/{name}"): {"admin"},
    ("get", "/v1/tenants"): {"admin"},
    ("post", "/v1/tenants"): {"admin"},
    ("patch", "/v1/tenants/{tenant}"): {"admin"},
    ("delete", "/v1/tenants/{tenant}"): {"admin"},
    ("post", "/v1/keys"): {"admin"},
    ("post", "/v1/queues"): {"admin"},
    ("patch", "/v1/queues/{name}"): {"admin"},
    ("delete", "/v1/queues/{name}"): {"admin"},
    ("post", "/v1/queues/{name}/pause"): {"admin"},
    ("post", "/v1/queues/{name}/resume"): {"admin"},
    ("get", "/v1/peaks"): {"admin"},
    ("post", "/v1/tasks/{task_id}/once"): {"admin"},  # and running tasks
    ("put", "/v1/tasks/{task_id}/checkpoint"): set(),  # running tasks only
    ("get", "/v1/whoami"): EVERYBODY,
    ("get", "/metrics"): {"admin"},
}
OF_AGENTS = ("/v1/nodes/{node}/", "/v1/nodes/definitions/")


def may(route: Route) -> set[str]:
    if route.path.startswith(OF_AGENTS):
        return {"admin", "agent"}
    return MAY.get((route.method, route.path), PEOPLE)


GUARDED = [route for route in TABLE if not route.public]


@dataclass
class Place:
    """A server process, and who calls it: a token for each role, the tenant's being of the tenant `other`."""

    url: str
    tokens: dict[str, str] = field(default_factory=lambda: {"admin": TOKEN, "agent": AGENT_TOKEN})

    async def ask(self, who: str | None, method: str, path: str, body: object = None, **headers: str) -> Response:
        http = Http(self.url, token=self.tokens.get(who or "", who))
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            if path.startswith("/v1/events"):  # never ends: what it begins with is enough
                async with http.stream(method.upper(), path, headers=sent) as (response, pieces):
                    if response.status >= 400:
                        response.body = b"".join([piece async for piece in pieces])
                    return response
            data = b"" if body is None else msgspec.json.encode(body)
            return await http.request(method.upper(), path, body=data, headers=sent)
        finally:
            await http.close()

    async def get(self, who: str | None, path: str) -> Any:
        response = await self.ask(who, "GET", path)
        assert response.status == 200, response.body
        return msgspec.json.decode(response.body)


@asynccontextmanager
async def serving(folder: Path, dsn: str) -> AsyncIterator[Place]:
    server = Server("server", folder, dsn, {})
    try:
        await server.start()
        place = Place(server.url)
        assert (await place.ask("admin", "POST", "/v1/tenants", {"name": "other"})).status == 201
        made = await place.ask("admin", "POST", "/v1/keys", {"role": "tenant", "tenant": "other"})
        place.tokens["tenant"] = msgspec.json.decode(made.body)["token"]
        yield place
    finally:
        server.kill()


@pytest.fixture
async def place(dsn: str, tmp_path: Path) -> AsyncIterator[Place]:
    async with serving(tmp_path, dsn) as running:
        yield running


@dataclass
class Belongings:
    """What the default tenant has: a task in each home, a tree, attempts and output."""

    tasks: dict[str, int]
    tree: int


async def fill(dsn: str) -> Belongings:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(
            core,
            function(name="done"),
            function(name="dead", attempts=2, retry={"interval": 0}),
            function(name="waits", at="2099-01-01T00:00:00Z"),
            tree="a tree",
        )
        done, dead, waits = receipt.ids
        orders = {order.id: order for order in await agent.orders(2)}
        await agent.say(output=[Output(done, 1, 0, 1, 1, b"secret")])
        await agent.succeed(orders[done])
        await agent.fail(orders[dead])
        await agent.fail((await agent.orders())[0])
        return Belongings({"succeeded": done, "failed": dead, "scheduled": waits}, receipt.tree)


def path_of(route: Route, *, task: int = 1, tree: int = 1) -> str:
    values = {"task_id": str(task), "tree_id": str(tree), "node": "1", "name": "nobody", "key": "2147483647"}
    return re.sub(r"{(\w+)}", lambda match: values.get(match[1], "1"), route.path)


def code_of(response: Response) -> str:
    assert response.headers["content-type"] == "application/problem+json", response.body
    problem = msgspec.json.decode(response.body)
    assert problem["status"] == response.status
    return str(problem["code"])


async def test_every_route_serves_its_roles_and_forbids_the_others(place):
    served: dict[tuple[str, str], set[str]] = {}
    for route in GUARDED:
        served[route.method, route.path] = set()
        for role in EVERYBODY:
            response = await place.ask(role, route.method, path_of(route), None if route.method in ("get", "delete") else {})
            assert response.status < 500, response.body
            if response.status == 403:
                assert code_of(response) == "forbidden"
            else:
                assert response.status != 401
                served[route.method, route.path].add(role)
    assert served == {(route.method, route.path): may(route) for route in GUARDED}


async def test_without_a_known_token_nothing_is_answered_but_health_and_the_document(place, dsn):
    expired, revoked = "hw_admin_expired", "hw_admin_revoked"
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "insert into headway.token (hash, role, expires_at, revoked_at) "
        "values ($1, 'admin', now() - interval '1 s', null), ($2, 'admin', null, now())", hash_of(expired), hash_of(revoked)
    )  # fmt: skip
    await connection.close()
    for route in GUARDED:
        for token in (None, "hw_admin_guessed"):
            response = await place.ask(token, route.method, path_of(route), None if route.method in ("get", "delete") else {})
            assert (response.status, code_of(response)) == (401, "unauthorized"), route
            assert response.headers["www-authenticate"] == "Bearer"
    for token in (expired, revoked, "", TOKEN + "x"):
        assert (await place.ask(token, "GET", "/v1/whoami")).status == 401
    assert (await place.ask(None, "GET", "/v1/whoami", authorization=f"Basic {TOKEN}")).status == 401
    for path in ("/livez", "/readyz"):
        assert await place.get(None, path) == {"status": "ok"}
    assert (await place.get(None, "/openapi.json"))["openapi"] == "3.1.0"


async def test_everybody_is_told_who_they_are(place):
    assert await place.get("admin", "/v1/whoami") == {"tenant": "default", "role": "admin"}
    assert await place.get("tenant", "/v1/whoami") == {"tenant": "other", "role": "tenant"}
    assert (await place.get("agent", "/v1/whoami"))["role"] == "agent"


async def test_another_tenants_task_is_not_found_on_any_route_that_takes_an_id(dsn, tmp_path):
    mine = await fill(dsn)
    by_id = [route for route in GUARDED if ("{task_id}" in route.path or "{tree_id}" in route.path) and "tenant" in may(route)]
    assert {route.path for route in by_id} >= {
        "/v1/tasks/{task_id}/logs",
        "/v1/tasks/{task_id}/retry",
        "/v1/trees/{tree_id}/cancel",
    }
    async with serving(tmp_path, dsn) as place:
        for route in by_id:
            for task in mine.tasks.values():
                path = path_of(route, task=task, tree=mine.tree)
                response = await place.ask("tenant", route.method, path)
                assert (response.status, code_of(response)) == (404, "not_found"), path
                assert b"secret" not in response.body
                if route.method == "get" and not path.endswith("/checkpoint"):  # it has none
                    assert (await place.ask("admin", "GET", path)).status == 200, path
        for state, task in mine.tasks.items():  # nobody cancelled or sent anything again
            assert (await place.get("admin", f"/v1/tasks/{task}"))["state"] == state
        attempts = await place.get("admin", f"/v1/tasks/{mine.tasks['failed']}/attempts")
        assert [attempt["attempt"] for attempt in attempts] == [1, 2]


async def test_another_tenants_tasks_cannot_be_listed_waited_for_revived_or_purged(dsn, tmp_path):
    mine = await fill(dsn)
    ids = [str(task) for task in mine.tasks.values()]
    async with serving(tmp_path, dsn) as place:
        for path in ("/v1/tasks", "/v1/tasks?state=failed", "/v1/tasks?q=dead", "/v1/dead-letters"):
            assert (await place.get("admin", path))["tasks"], path
            assert (await place.get("tenant", path))["tasks"] == [], path
        assert (await place.get("admin", f"/v1/tasks?tree={mine.tree}"))["tasks"]
        tree = await place.ask("tenant", "GET", f"/v1/tasks?tree={mine.tree}")
        assert (tree.status, code_of(tree)) == (404, "not_found")
        assert len(await place.get("admin", "/v1/dead-letters?group=1")) == 1
        assert await place.get("tenant", "/v1/dead-letters?group=1") == []
        waited = await place.ask("tenant", "POST", "/v1/tasks/wait", {"ids": ids, "timeout": 0})
        assert (waited.status, code_of(waited)) == (404, "not_found")
        for action in ("retry", "purge"):
            for which in ({"ids": ids}, {"all": True}, {"name": "dead"}):
                changed = await place.ask("tenant", "POST", f"/v1/dead-letters/{action}", which)
                assert (changed.status, msgspec.json.decode(changed.body)) == (200, {"changed": 0, "ids": []}), (action, which)
        refused = await place.ask("tenant", "POST", "/v1/tasks", {"command": ["true"], "after": [ids[2]]})
        assert (refused.status, code_of(refused)) == (400, "invalid_input")
        assert (await place.get("admin", f"/v1/tasks/{ids[1]}"))["state"] == "failed"


async def test_another_tenant_cannot_follow_events_of_mine(dsn, tmp_path):
    await fill(dsn)
    async with serving(tmp_path, dsn) as place:
        made = await place.ask("tenant", "POST", "/v1/tasks", {"command": ["true"], "at": "2099-01-01T00:00:00Z"})
        own = msgspec.json.decode(made.body)["id"]
        await place.ask("tenant", "POST", f"/v1/tasks/{own}/cancel")
        seen = {}
        for who in ("tenant", "admin"):
            http = Http(place.url, token=place.tokens[who])
            text = b""
            async with http.stream("GET", "/v1/events?after=0-0") as (_, pieces):
                async for piece in pieces:
                    text += piece
                    if b"task.cancelled" in text:
                        break
            await http.close()
            seen[who] = set(re.findall(rb"event: (\S+)", text))
        assert seen["tenant"] == {b"task.cancelled"}
        assert seen["admin"] == {b"task.succeeded", b"task.failed", b"task.cancelled"}


async def test_a_caller_that_speaks_another_version_is_told_so_on_every_route(place, monkeypatch):
    with monkeypatch.context() as future:
        future.setattr("headway.wire.http.PROTOCOL", 99)
        for route in GUARDED:
            response = await place.ask("admin", route.method, path_of(route), None if route.method in ("get", "delete") else {})
            assert (response.status, code_of(response)) == (426, "version_mismatch"), route
        assert (await place.ask(None, "GET", "/livez")).status == 200
    bare = urllib.request.Request(f"{place.url}/v1/whoami", headers={"authorization": f"Bearer {TOKEN}"})  # as curl would say it
    with await asyncio.to_thread(urllib.request.urlopen, bare) as answer:
        assert answer.status == 200
    register = {"name": "n", "boot": "b", "capacity": {"cpus_milli": 1000, "memory": 1, "disk": 1}, "protocol": 99, "version": "x"}
    response = await place.ask("agent", "POST", "/v1/nodes", register)
    assert (response.status, code_of(response)) == (426, "version_mismatch")


async def test_metrics_carry_the_prefix_and_no_ids(dsn, tmp_path):
    mine = await fill(dsn)
    async with serving(tmp_path, dsn) as place:
        await place.ask("admin", "GET", f"/v1/tasks/{mine.tasks['failed']}")
        await place.ask("admin", "GET", "/v1/tasks/123456789")
        response = await place.ask("admin", "GET", "/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(response.body.decode())}
        assert {"headway_queue_depth", "headway_dlq_size", "headway_leader", "headway_tasks_submitted"} <= set(families)
        assert [name for name in families if not name.startswith("headway_")] == []
        assert families["headway_dlq_size"].samples[0].value == 1
        shares = families.pop("headway_fair_share_dominant")  # the one with names of tenants: of the largest few
        assert {name for sample in shares.samples for name in sample.labels} <= {"tenant"}
        labels = [item for family in families.values() for sample in family.samples for item in sample.labels.items()]
        assert {name for name, _ in labels} <= {"state", "queue", "reason", "duty", "resource", "method", "route", "status", "le"}
        assert {value for name, value in labels if name == "status"} <= {"1xx", "2xx", "3xx", "4xx", "5xx"}
        words = {value.removeprefix("/v1") for name, value in labels if name not in ("le", "status")}
        assert [word for word in words if re.search(r"\d", word)] == []
        assert not words & {"node-1", "other", "default"}
