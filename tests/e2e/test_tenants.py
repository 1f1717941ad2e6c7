"""Tenants over HTTP and on the command line: subscriptions, keys, tiers, limits, the audit (A3 A7 E6 G1 J5)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from headway.api.audit import QUIET, action_of
from headway.api.openapi import TABLE
from headway.wire.http import Http, Response
from tests.support.cluster import TOKEN, Process, Server
from tests.support.waiting import eventually


class Place:
    """A server process, called with any token."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def ask(self, token: str, method: str, path: str, body: object = None) -> Response:
        http = Http(self.url, token=token)
        try:
            return await http.request(method, path, body=b"" if body is None else msgspec.json.encode(body))
        finally:
            await http.close()

    async def must(self, method: str, path: str, body: object = None, *, token: str = TOKEN) -> Any:
        response = await self.ask(token, method, path, body)
        assert response.status < 300, response.body
        return msgspec.json.decode(response.body)

    async def tenant(self, name: str, **subscription: Any) -> str:
        """A new tenant's token."""
        await self.must("POST", "/v1/tenants", {"name": name, **subscription})
        return (await self.must("POST", "/v1/keys", {"tenant": name}))["token"]

    async def audit(self, query: str = "", *, token: str = TOKEN) -> list[dict[str, Any]]:
        """What was done; a row is completed after the deed is answered."""
        async with asyncio.timeout(60):
            while True:
                entries = (await self.must("GET", f"/v1/audit{query}", token=token))["entries"]
                if all(entry["result"] != "begun" for entry in entries):
                    return entries

    def cli(self, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "HEADWAY_URL": self.url, "HEADWAY_TOKEN": token, "HOME": "/nonexistent"}
        return subprocess.run(
            [sys.executable, "-m", "headway.cli.main", *words], capture_output=True, text=True, env=env, timeout=120, check=False
        )


@pytest.fixture
async def place(dsn: str, tmp_path: Path) -> AsyncIterator[Place]:
    server = Server("server", tmp_path, dsn, {})
    try:
        await server.start()
        yield Place(server.url)
    finally:
        server.kill()


def problem(response: Response) -> dict[str, Any]:
    return msgspec.json.decode(response.body)


async def test_slow_searches_of_one_tenant_keep_the_questions_of_another_from_nothing(place, dsn):
    slow, other = await place.tenant("slow"), await place.tenant("other")
    holder = await asyncpg.connect(dsn)
    watcher = await asyncpg.connect(dsn)  # a transaction sees who is active as it was at its first look
    async with holder.transaction():
        await holder.execute("lock table headway.task_history in access exclusive mode")  # as a search through a long history
        searches = [asyncio.create_task(place.ask(slow, "GET", "/v1/tasks?q=needle")) for _ in range(6)]
        waits = "select count(*) >= 2 from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'headway reads'"
        await eventually(lambda: watcher.fetchval(waits))
        assert (await place.must("GET", "/v1/schedules", token=other))["schedules"] == []
        done, _ = await asyncio.wait(searches, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "searches of your tenant" in problem(refused)["detail"]
    assert {search.result().status for search in (await asyncio.wait(searches))[0]} == {200, 503}
    await holder.close()
    await watcher.close()


async def test_a_subscription_is_set_shown_and_changed_field_by_field(place):
    made = await place.must("POST", "/v1/tenants", {"name": "acme", "rate_per_hour": 7200, "max_memory": "4GiB", "max_cap": "2h"})
    said = made["subscription"]
    assert (said["rate_per_hour"], said["max_memory"], said["max_cap"], said["isolation"]) == (7200, 4 * 2**30, 7200, "sandbox")
    said = (await place.must("PATCH", "/v1/tenants/acme", {"rate_per_hour": None, "weight": 2.5}))["subscription"]
    assert (said["rate_per_hour"], said["weight"], said["max_memory"]) == (None, 2.5, 4 * 2**30)
    for wrong, field in (({"weight": -1}, "weight"), ({"isolation": "lax"}, "isolation"), ({"default_tier": "huge"}, "default_tier"),
                         ({"max_cap": "1s"}, "default_cap"), ({"wieght": 1}, "wieght")):  # fmt: skip
        refused = await place.ask(TOKEN, "PATCH", "/v1/tenants/acme", wrong)
        assert (refused.status, problem(refused)["field"]) == (400, field)
    assert (await place.ask(TOKEN, "POST", "/v1/tenants", {"name": "acme"})).status == 409
    assert (await place.must("GET", "/v1/tenants/acme"))["subscription"] == said


async def test_the_terms_of_a_tenant_decide_what_its_tasks_become(place):
    token = await place.tenant("acme", default_cap=60, max_cap="5m", default_tier="regular", delay_tolerance="10m", max_cpus=2)
    task = await place.must("POST", "/v1/tasks", {"command": ["true"]}, token=token)
    shown = await place.must("GET", f"/v1/tasks/{task['id']}", token=token)
    assert (shown["execution_cap_s"], shown["resources"]["tier"]) == (60, "regular")
    for spec, field in (({"execution_cap": "6m"}, "execution_cap"), ({"resources": {"cpus": 3}}, "resources")):
        refused = await place.ask(token, "POST", "/v1/tasks", {"command": ["true"], **spec})
        assert (refused.status, problem(refused)["field"]) == (400, field)
    await place.must("PATCH", "/v1/tenants/acme", {"max_cap": "10m"})
    await place.must("POST", "/v1/tasks", {"command": ["true"], "execution_cap": "6m"}, token=token)


async def test_a_key_is_shown_once_works_until_it_expires_and_can_be_revoked(place):
    await place.tenant("acme")
    key = await place.must("POST", "/v1/keys", {"tenant": "acme", "name": "ci", "expires": "90d"})
    assert (await place.must("GET", "/v1/whoami", token=key["token"])) == {"tenant": "acme", "role": "tenant"}
    listed = await place.must("GET", "/v1/keys")
    assert key["token"] not in json.dumps(listed)
    assert {one["name"] for one in listed["keys"] if one["tenant"] == "acme"} == {"", "ci"}
    await place.must("POST", f"/v1/keys/{key['id']}/revoke")
    assert (await place.ask(key["token"], "GET", "/v1/whoami")).status == 401
    brief = await place.must("POST", "/v1/keys", {"tenant": "acme", "expires": "1ms"})

    async def is_over() -> bool:
        return (await place.ask(brief["token"], "GET", "/v1/whoami")).status == 401

    await eventually(is_over)
    assert "expired 20" in place.cli("key", "ls").stdout
    assert (await place.ask(TOKEN, "POST", "/v1/keys", {"tenant": "acme", "expires": 0})).status == 400


async def test_a_tenant_has_a_name_that_can_stand_in_an_address(place):
    for name in ("self", "a/b", "..", ""):
        assert (await place.ask(TOKEN, "POST", "/v1/tenants", {"name": name})).status == 400, name
    await place.must("POST", "/v1/tenants", {"name": "Ärzte & Co"})
    assert place.cli("tenant", "show", "Ärzte & Co").stdout.startswith("Ärzte & Co")


async def test_a_tenant_revokes_its_own_key_and_no_other(place):
    one, other = await place.tenant("one"), await place.tenant("other")
    keys = (await place.must("GET", "/v1/keys", token=one))["keys"]
    assert [key["tenant"] for key in keys] == ["one"]
    strange = (await place.must("GET", "/v1/keys", token=other))["keys"][0]["id"]
    assert (await place.ask(one, "POST", f"/v1/keys/{strange}/revoke")).status == 404
    assert (await place.must("GET", "/v1/whoami", token=other))["tenant"] == "other"
    await place.must("POST", f"/v1/keys/{keys[0]['id']}/revoke", token=one)
    assert (await place.ask(one, "GET", "/v1/whoami")).status == 401


async def test_a_reader_sees_and_changes_nothing(place):
    owner = await place.tenant("acme")
    task = (await place.must("POST", "/v1/tasks", {"command": ["true"]}, token=owner))["id"]
    reader = (await place.must("POST", "/v1/keys", {"role": "reader", "tenant": "acme"}))["token"]
    assert (await place.must("GET", f"/v1/tasks/{task}", token=reader))["id"] == task
    await place.must("POST", "/v1/tasks/wait", {"ids": [task], "timeout": 0}, token=reader)
    for method, path in (("POST", "/v1/tasks"), ("POST", f"/v1/tasks/{task}/cancel"), ("GET", "/v1/tenants"), ("GET", "/metrics")):
        assert (await place.ask(reader, method, path, {"command": ["true"]} if method == "POST" else None)).status == 403
    everywhere = (await place.must("POST", "/v1/keys", {"role": "reader"}))["token"]
    assert (await place.ask(everywhere, "GET", "/metrics")).status == 200
    assert (await place.must("GET", f"/v1/tasks/{task}", token=everywhere))["tenant"] == "acme"
    assert (await place.ask(everywhere, "POST", "/v1/tenants", {"name": "mine"})).status == 403


async def test_tiers_are_the_operators_and_a_tenants_own_within_its_subscription(place):
    token, other = await place.tenant("acme", max_cpus=4), await place.tenant("other")
    await place.must("PUT", "/v1/tiers/large", {"cpus": 3, "memory": "2GiB"})
    await place.must("PUT", "/v1/tiers/basic", {"cpus": 0.25}, token=token)
    mine = await place.must("GET", "/v1/tiers", token=token)
    assert (mine["large"]["cpus"], mine["basic"]["cpus"], mine["basic"]["memory"]) == (3, 0.25, 256 * 2**20)
    assert (await place.must("GET", "/v1/tiers", token=other))["basic"]["cpus"] == 0.5
    refused = await place.ask(token, "PUT", "/v1/tiers/mine", {"cpus": 5})
    assert (refused.status, problem(refused)["hint"]) == (400, "at most 4 cpus")
    assert (await place.ask(token, "PUT", "/v1/tiers/mine?tenant=other", {"cpus": 1})).status == 404
    assert (await place.ask(TOKEN, "PUT", "/v1/tiers/basics", {"cpus": 1})).status == 400, "a client would take it for a slip"
    task = await place.must("POST", "/v1/tasks", {"command": ["true"], "resources": "basic"}, token=token)
    assert (await place.must("GET", f"/v1/tasks/{task['id']}", token=token))["resources"]["cpus"] == 0.25
    await place.must("DELETE", "/v1/tiers/basic", token=token)
    assert (await place.must("GET", "/v1/tiers", token=token))["basic"]["cpus"] == 0.5
    await place.must("PATCH", "/v1/tenants/acme", {"default_tier": "large"})
    assert (await place.ask(TOKEN, "DELETE", "/v1/tiers/large")).status == 409


async def test_above_its_rate_a_tenant_gets_429_with_the_time_to_wait_and_the_fields_of_the_limiter(place):
    token = await place.tenant("acme", rate_per_hour=36, burst=2)
    first = await place.ask(token, "POST", "/v1/tasks", {"command": ["true"]})
    assert first.headers["ratelimit-policy"] == '"tasks";q=36;w=3600'
    assert first.headers["ratelimit"].startswith('"tasks";r=1;')
    assert (await place.ask(token, "POST", "/v1/tasks", {"command": ["true"]})).status == 201
    refused = await place.ask(token, "POST", "/v1/tasks", [{"command": ["true"]}] * 2)
    assert (refused.status, problem(refused)["code"]) == (429, "limit_exceeded")
    assert 150 <= int(refused.headers["retry-after"]) <= 200
    assert refused.headers["ratelimit"].startswith('"tasks";r=0;t=')
    limits = await place.must("GET", "/v1/limits", token=token)
    assert (limits["submissions"]["limit"], limits["submissions"]["left"], limits["waiting"]["used"]) == (2, 0, 2)
    done = place.cli("submit", "--", "true", token=token)
    assert (done.returncode, "try again in" in done.stderr) == (75, True)
    assert (await place.ask(TOKEN, "POST", "/v1/tasks", {"command": ["true"]})).headers.get("ratelimit") is None


async def test_who_did_what_is_on_record_with_before_and_after(place):
    token = await place.tenant("acme")
    await place.must("PATCH", "/v1/tenants/acme", {"weight": 3})
    task = (await place.must("POST", "/v1/tasks", {"command": ["true"]}, token=token))["id"]
    await place.must("POST", f"/v1/tasks/{task}/cancel", token=token)
    await place.ask(token, "POST", "/v1/tenants", {"name": "mine"})
    entries = await place.audit()
    assert [entry["action"] for entry in entries] == [
        "tenants.create",
        "tasks.cancel",
        "tenants.set",
        "keys.create",
        "tenants.create",
    ]
    refused, cancel, change, key, _ = entries
    assert (refused["result"], refused["tenant"]) == ("refused 403", "acme")
    assert (cancel["target"], cancel["result"], cancel["role"], cancel["tenant"]) == (task, "done", "tenant", "acme")
    assert (change["before"]["weight"], change["after"]["weight"], change["target"]) == (1.0, 3, "acme")
    assert token not in json.dumps(entries)
    assert key["after"]["role"] == "tenant"
    own = await place.audit(token=token)
    assert all(entry["tenant"] == "acme" for entry in own)
    assert [entry["action"] for entry in await place.audit("?action=tenants.*&limit=1")] == ["tenants.create"]


async def test_the_command_line_does_all_of_it(place):
    assert place.cli("tenant", "create", "acme", "--rate-per-hour", "3600", "--burst", "10", "--max-memory", "1GiB").returncode == 0
    shown = json.loads(place.cli("tenant", "set", "acme", "--rate-per-hour", "none", "--burst", "none", "--json").stdout)
    assert (shown["subscription"]["rate_per_hour"], shown["subscription"]["max_memory"]) == (None, 2**30)
    token = place.cli("key", "create", "--tenant", "acme", "--name", "ci", "-o", "quiet").stdout.strip()
    assert place.cli("tenant", "ls", "-o", "quiet").stdout.split() == ["acme", "default"]
    assert "acme" in place.cli("limits", token=token).stdout
    assert place.cli("node", "ls").stdout == "no nodes (`headway agent` starts one)\n"
    assert place.cli("node", "ls", token=token).stdout == "a tenant sees no nodes: they are the operator's\n"
    looked = json.loads(place.cli("doctor", "--json", token=token).stdout)
    assert [one["state"] for one in looked if one["name"] == "agents"] == ["ok"], "it cannot know whether there are any"
    assert place.cli("node", "ls", "--json", token=token).stdout.strip() == "[]"
    assert "a tenant sees no nodes" in place.cli("node", "show", "big-1", token=token).stderr
    waiting = place.cli("submit", "--category", "delayable", "--max-wait", "10m", "--queue", "off-peak", "-o", "quiet", "--", "true")
    shown = [" ".join(line.split()) for line in place.cli("show", waiting.stdout.strip()).stdout.splitlines()]
    assert "queue off-peak" in shown
    assert "max wait 10m, then it expires" in shown
    assert place.cli("tier", "set", "large", "cpus=2,memory=1GiB").returncode == 0
    assert "large" in place.cli("tier", "ls", token=token).stdout
    number = next(key["id"] for key in json.loads(place.cli("key", "ls", "--json").stdout) if key["name"] == "ci")
    assert place.cli("key", "revoke", str(number)).returncode == 0
    assert place.cli("limits", token=token).returncode == 77
    assert place.cli("tier", "rm", "large").returncode == 0
    table = place.cli("audit", "--since", "1h").stdout
    assert "rate_per_hour: 3600 -> -" in table.replace("3600.0", "3600")
    assert place.cli("tenant", "set", "acme").returncode == 64
    for word in ("many", "nan", "inf"):
        said = place.cli("tenant", "set", "acme", "--max-waiting", word)
        assert (said.returncode, "--max-waiting" in said.stderr) == (64, True), word


async def test_every_call_that_may_change_something_leaves_a_row_whatever_route_it_takes(place):
    changing = [
        route
        for route in TABLE
        if route.method != "get" and not route.path.startswith("/v1/nodes/") and (route.method.upper(), route.path) not in QUIET
    ]
    assert len(changing) > 20
    for route in changing:
        await place.ask(TOKEN, route.method.upper(), re.sub(r"{\w+}", "2147483647", route.path), {})
    told = await place.audit("?limit=1000")
    assert {entry["action"] for entry in told} >= {action_of(route.method.upper(), route.path) for route in changing}
    assert not [entry for entry in told if entry["result"] == "begun"]


async def test_nobody_waits_for_a_task_that_is_not_there_or_is_anothers(place: Place) -> None:
    own, other = await place.tenant("own"), await place.tenant("other")
    known = (await place.must("POST", "/v1/tasks", {"command": ["true"]}, token=own))["id"]
    waited = await place.must("POST", "/v1/tasks/wait", {"ids": [known], "timeout": 0}, token=own)
    assert waited["pending"] == [known]
    for token, ids in ((own, [known, "77"]), (other, [known])):
        response = await place.ask(token, "POST", "/v1/tasks/wait", {"ids": ids, "timeout": 0})
        assert response.status == 404
        assert ids[-1] in msgspec.json.decode(response.body)["detail"]


async def test_a_server_that_nobody_can_use_says_how_to_change_that(dsn: str, tmp_path: Path) -> None:
    server = Process("bare", tmp_path)
    server.launch(["server", "--database", dsn, "--port", "0", "--output", "json"], {"HEADWAY_DATA": str(tmp_path / "bare")})
    try:
        assert server.popen is not None
        assert server.popen.stdout is not None
        assert await asyncio.to_thread(server.popen.stdout.readline), server.log.read_text()
        said = next(line for line in server.log.read_text().splitlines() if "server.no_admin_token" in line)
        assert "HEADWAY_TOKEN" in said
        assert "headway key create" in said
    finally:
        server.kill()


@pytest.mark.parametrize("path", ["/v1/events", "/v1/tasks/{task}/logs?follow=1"])
async def test_a_stream_breaks_off_when_its_key_is_revoked_and_whoever_comes_again_is_told_why(place, path, tmp_path):
    token = await place.tenant("acme")
    key = await place.must("POST", "/v1/keys", {"tenant": "acme"})
    task = (await place.must("POST", "/v1/tasks", {"command": ["true"]}, token=token))["id"]
    http = Http(place.url, token=key["token"])
    try:
        async with asyncio.timeout(120), http.stream("GET", path.format(task=task), timeout=120) as (answer, pieces):
            assert answer.status == 200
            if "events" in path:
                await anext(pieces)
            await place.must("POST", f"/v1/keys/{key['id']}/revoke")
            with pytest.raises(ConnectionError):
                async for _ in pieces:
                    pass
        again = await place.ask(key["token"], "GET", path.format(task=task))
        assert (again.status, problem(again)["code"]) == (401, "unauthorized")
        told = (tmp_path / "server.log").read_text()
        assert "event=stream.broken_off code=unauthorized" in told
        assert "Traceback" not in told
    finally:
        await http.close()


async def test_a_tenant_is_removed_by_an_administrator_and_by_nobody_else(place):
    owner = await place.tenant("acme")
    task = await place.must("POST", "/v1/tasks", {"command": ["true"], "at": "2099-01-01T00:00:00Z"}, token=owner)
    assert (await place.ask(owner, "DELETE", "/v1/tenants/acme")).status == 403
    assert (await place.ask(TOKEN, "DELETE", "/v1/tenants/nobody")).status == 404
    refused = place.cli("tenant", "rm", "acme", "--yes")
    assert refused.returncode != 0
    assert "1 waiting" in refused.stderr
    assert "headway tenant rm acme --cancel" in refused.stderr
    assert "add --yes" in place.cli("tenant", "rm", "acme", "--cancel").stderr
    assert place.cli("tenant", "rm", "acme", "--cancel", "--yes").stdout.split() == (
        ["tenant", "acme", "is", "removed,", "with", "1", "key;", "1", "task", "is", "being", "cancelled"]
    )
    assert (await place.ask(owner, "GET", "/v1/whoami")).status == 401
    assert "acme" not in place.cli("tenant", "ls").stdout

    async def is_cancelled() -> bool:
        return (await place.must("GET", f"/v1/tasks/{task['id']}"))["state"] == "cancelled"

    await eventually(is_cancelled)
    assert (await place.must("GET", f"/v1/tasks/{task['id']}"))["tenant"] == "acme"
    done = [one for one in await place.audit("?action=tenants.delete") if one["result"] == "done"]
    assert [(one["target"], one["tenant"], one["after"]["cancelling"]) for one in done] == [("acme", "acme", 1)]
    shown = place.cli("audit", "--action", "tenants.delete", "--limit", "1").stdout
    assert "suspended: no -> yes" in shown
    assert "weight" not in shown, "only what changed is shown"
