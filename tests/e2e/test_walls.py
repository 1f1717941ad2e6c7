"""Walls between tenants (A7): every route of the API document, with another tenant's token, gives nothing and changes nothing.

The routes are taken from the document, and the ids to try from what the owner itself can list, so a route that is added is walked
too. A route that makes things must be named in MAKES or in MAKES_NOTHING_OF_A_TENANTS: then what it makes is behind the wall as well.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import msgspec
import pytest

from headway.api.openapi import TABLE, Route
from headway.domain.lifecycle import State
from headway.wire.exchange import Output, Progress
from headway.wire.http import Http, Response
from tests.support.cluster import TOKEN, Server
from tests.support.engine import ScriptedAgent, engine, function, submit
from tests.support.waiting import eventually

SECRET = "sesame"
LATER = "2099-01-01T00:00:00Z"
MAKES: dict[tuple[str, str], Any] = {  # bodies that make something of the owner's, with the word in every free text
    ("post", "/v1/tasks"): {"command": [SECRET], "name": f"{SECRET}-task", "labels": {"a": SECRET}, "input": SECRET, "at": LATER},
    ("post", "/v1/trees"): {"name": f"{SECRET}-tree", "tasks": [{"command": [SECRET], "name": f"{SECRET}-leaf", "at": LATER}]},
    ("post", "/v1/schedules"): {"name": f"{SECRET}-schedule", "schedule": "@yearly", "task": {"command": [SECRET]}},
    ("post", "/v1/webhooks"): {"name": f"{SECRET}-hook", "url": f"https://example.org/{SECRET}"},
    ("post", "/v1/uploads"): SECRET,
    ("put", "/v1/secrets/{name}"): {"value": SECRET},
    ("put", "/v1/tiers/{tier}"): {"labels": {SECRET: SECRET}},
}
MAKES_NOTHING_OF_A_TENANTS = {
    ("post", "/v1/tasks/wait"),
    ("post", "/v1/predictions"), ("post", "/v1/nodes"), ("post", "/v1/tenants"), ("post", "/v1/keys"), ("post", "/v1/queues"),
    ("post", "/v1/dead-letters/retry"), ("post", "/v1/dead-letters/purge"),
}  # fmt: skip
PUBLIC_WORDS = {"basic", "regular", "premium", "default", "urgent", "delayable", "periodic"}
UNOWNED = {"token", "audit", "allowance", "event", "run_sample"}  # change by themselves
ENDLESS = "/v1/events"  # has a test of its own in test_roles


class Caller:
    def __init__(self, url: str, token: str) -> None:
        self._http = Http(url, token=token)

    async def ask(self, route: Route, path: str, body: object = None) -> Response:
        data = b"" if body is None else msgspec.json.encode(body)
        return await self._http.request(route.method.upper(), path, body=data, timeout=120)

    async def close(self) -> None:
        await self._http.close()


async def fill(dsn: str, tenant: int) -> None:
    """Tasks of the owner in every home: history, dead letters, on a node, waiting; with output, progress, attempts."""
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=64).join()
        named = dict.fromkeys(("done", "dead", "held"))
        receipt = await submit(
            core,
            *[function(name=f"{SECRET}-{word}", labels={"l": SECRET}, input=SECRET) for word in named],
            tenant=tenant,
            tree=SECRET,
        )
        done, dead, held = receipt.ids
        orders = {order.id: order for order in await agent.orders(3)}
        await agent.say(
            output=[Output(task, 1, 0, 1, 1, SECRET.encode()) for task in (done, dead, held)],
            progress=[Progress(held, 1, 1.0, 2.0, SECRET)],
        )
        await agent.succeed(orders[done], result=msgspec.json.encode(SECRET))
        await agent.fail(orders[dead], message=SECRET)
        await agent.start(orders[held])
        # Reports are answered when they are written, output and progress perhaps later: the walk compares rows of before and after.
        async with core.database.cold() as connection:
            written = "select (select count(*) from output) = 3 and exists (select from progress) and state = $2 from task where id = $1"
            await eventually(lambda: connection.fetchval(written, held, State.RUNNING), what="all that was reported is written")


def values_in(document: Any) -> set[str]:
    """Ids and names in an answer: what an owner could try somewhere else, and a stranger could guess."""
    if isinstance(document, dict):
        own = {str(value) for key, value in document.items() if key in _NAMING and isinstance(value, str | int) and value}
        return own.union(*(values_in(value) for value in document.values()))
    return set().union(*(values_in(item) for item in document)) if isinstance(document, list) else set()


_NAMING = ("id", "name", "task", "tree", "fingerprint", "hash", "key", "schedule", "tier", "tenant", "queue")


async def owned_values(owner: Caller) -> list[str]:
    found: set[str] = set()
    for route in TABLE:
        if route.method == "get" and "{" not in route.path and route.path != ENDLESS:
            response = await owner.ask(route, route.path)
            if response.status == 200 and response.headers.get("content-type", "").startswith("application/json"):
                document = msgspec.json.decode(response.body)
                found |= values_in(document)
                if isinstance(document, dict) and route.path == "/v1/tiers":
                    found |= set(document)
    return sorted(found - PUBLIC_WORDS)


async def rows(dsn: str, tenant: int) -> dict[str, list[str]]:
    """Every row of the owner's, and every row of tables that belong to tasks or trees and know no tenant."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
    try:
        tables = await connection.fetch(
            "select c.relname as name, bool_or(a.attname = 'tenant') as owned "
            "from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid "
            "where n.nspname = 'headway' and c.relkind in ('r', 'p') and not c.relispartition "
            "and a.attname in ('tenant', 'task', 'tree', 'upstream') group by c.relname"
        )
        found = {}
        for name, owned in tables:
            if name not in UNOWNED:
                where = f"where tenant = {tenant}" if owned else ""
                found[name] = sorted(row[0] for row in await connection.fetch(f"select t::text from {name} t {where}"))
        return found
    finally:
        await connection.close()


def paths(route: Route, values: list[str]) -> list[str]:
    """The route with everything the owner has in the place of its parameters."""
    names = re.findall(r"{(\w+)}", route.path)
    found = []
    for combination in itertools.islice(itertools.product(values, repeat=len(names)), 25):
        path = route.path
        for name, value in zip(names, combination, strict=True):
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        found.append(path)
    return found


def bodies(route: Route, values: list[str]) -> list[Any]:
    """What a stranger might send: nothing much, the owner's ids, everything."""
    if route.method in ("get", "delete"):
        return [None]
    ids = [value for value in values if value.isdigit()]
    if route.path == "/v1/tasks/wait":
        return [{"ids": ids, "timeout": 0}]
    return [None] if "{" in route.path else [None, {}, {"ids": ids}, {"all": True}]


@pytest.fixture
async def server(dsn: str, tmp_path: Path):
    running = Server("server", tmp_path, dsn, {"HEADWAY_LOST_S": "600"})  # the agent of the filling is gone by then
    try:
        await running.start()
        yield running
    finally:
        running.kill()


def test_every_route_that_makes_something_is_known_here():
    making = {
        (route.method, route.path)
        for route in TABLE
        if (route.method == "post" and "{" not in route.path) or (route.method == "put" and route.path.count("{") == 1)
    }
    alike = {  # what these make, others make too, or a running task for itself
        ("put", "/v1/schedules/{name}"), ("post", "/v1/trees/stream"), ("put", "/v1/tasks/{task_id}/checkpoint"),
    }  # fmt: skip
    assert making - alike == set(MAKES) | MAKES_NOTHING_OF_A_TENANTS


async def test_no_route_gives_or_changes_anything_of_another_tenants(server, dsn):
    admin = Caller(server.url, TOKEN)
    tokens = {}
    for name in ("owner", "stranger"):
        await admin.ask(_route("post", "/v1/tenants"), "/v1/tenants", {"name": name})
        made = await admin.ask(
            _route("post", "/v1/keys"), "/v1/keys", {"tenant": name, "name": f"{SECRET}-key" if name == "owner" else ""}
        )
        tokens[name] = msgspec.json.decode(made.body)["token"]
    tenant = msgspec.json.decode((await admin.ask(_route("get", ""), "/v1/tenants/owner")).body)["id"]
    await fill(dsn, tenant)
    owner, stranger = Caller(server.url, tokens["owner"]), Caller(server.url, tokens["stranger"])
    for (method, path), body in MAKES.items():
        answer = await owner.ask(_route(method, path), re.sub(r"{\w+}", f"{SECRET}-made", path), body)
        assert answer.status in (200, 201), (path, answer.body)
    values = await owned_values(owner)
    assert len([value for value in values if value.isdigit()]) > 5
    assert sum(SECRET in value for value in values) > 5
    before = await rows(dsn, tenant)
    seen = 0
    walked = [route for route in TABLE if not route.public and route.path != ENDLESS]
    for route in sorted(walked, key=lambda route: route.method != "get"):  # while it has made nothing under the owner's names yet
        for path in paths(route, values):
            for body in bodies(route, values):
                answer = await stranger.ask(route, path, body)
                assert answer.status < 500, (route, path, body, answer.body)
                if answer.status < 400:
                    told = answer.body.decode(errors="replace")
                    if route.method != "get":
                        for value in sorted(values, key=len, reverse=True):  # what it said itself may be repeated
                            told = told.replace(value, "")
                    assert SECRET not in told, (route.method, path, body, answer.body)
                    assert not [value for value in values if len(value) > 10 and value in told], (route.method, path, answer.body)
                seen += 1
    after = await rows(dsn, tenant)
    for table in before:
        if table not in (
            "tier",
            "tenant",
            "definition",
        ):  # the stranger made some of its own; tables without tenant are compared whole
            assert after[table] == before[table], table
    assert seen > 200
    for caller in (admin, owner, stranger):
        await caller.close()


def _route(method: str, path: str) -> Route:
    return Route(method, path, "")
