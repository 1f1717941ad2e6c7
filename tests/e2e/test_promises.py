"""What a user is told on a full fleet: the predicted start, a warning, or a refusal when it was asked for (E7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headway.wire.http import Http, Response
from tests.support.upped import Upped, upped
from tests.support.waiting import eventually

WHOLE = {"cpus": 1, "memory": "64MiB"}  # of the node
STRICT = {"command": ["true"], "resources": WHOLE, "delay_tolerance": "10ms", "on_late": "refuse"}
AT_ONCE = ("--resources", "cpus=1,memory=64MiB", "--delay-tolerance", "10ms")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("up"), HEADWAY_CPUS="1", HEADWAY_MEMORY="2GiB") as running:
        yield running


@pytest.fixture
async def full(up: Upped) -> Upped:
    """A node with hundreds of tasks of a tenth of a second before it, and a server that knows how fast it is."""
    backlog = [{"command": ["sleep", "0.1"], "resources": WHOLE, "delay_tolerance": "1h"}] * 500
    assert (await ask(up, backlog)).status == 201

    async def is_refused() -> bool:
        return (await ask(up, STRICT)).status == 409

    await eventually(is_refused)
    return up


async def ask(up: Upped, body: object) -> Response:
    http = Http(up.url, token=up.token)
    try:
        return await http.request("POST", "/v1/tasks", body=msgspec.json.encode(body))
    finally:
        await http.close()


async def stored(up: Upped) -> Any:
    return await up.fetchval("select count(*) from headway.task_anywhere")


async def test_who_asks_for_it_is_refused_with_the_time_to_wait_and_nothing_is_stored(full: Upped) -> None:
    before = await stored(full)
    refused = await ask(full, STRICT)
    said = msgspec.json.decode(refused.body)
    assert (refused.status, said["code"]) == (409, "cannot_promise")
    assert int(refused.headers["retry-after"]) >= 1
    assert "it would start in about" in said["detail"]
    bulk = await ask(full, [{**STRICT, "delay_tolerance": "1d"}, STRICT])
    assert bulk.status == 409, "all or nothing"
    assert await stored(full) == before


async def test_the_command_line_says_why_and_ends_as_for_a_limit(full: Upped) -> None:
    said = full.headway("submit", *AT_ONCE, "--on-late", "refuse", "--", "true")
    assert (said.returncode, said.stdout) == (75, "")
    assert "it would start in about" in said.stderr
    assert "try again in" in said.stderr


async def test_otherwise_it_is_stored_with_a_warning_and_the_predicted_start(full: Upped) -> None:
    answer = await ask(full, {**STRICT, "on_late": "warn"})
    said = msgspec.json.decode(answer.body)
    assert answer.status == 201
    assert said["predicted_start"] > said["start_by"]
    assert "after start_by" in said["warning"]
    patient = msgspec.json.decode((await ask(full, {**STRICT, "delay_tolerance": "30d"})).body)
    assert (patient["created"], patient.get("warning")) == (True, None)


async def test_the_command_line_prints_the_warning_beside_the_id(full: Upped) -> None:
    said = full.headway("submit", *AT_ONCE, "--", "true")
    assert said.returncode == 0
    assert said.stdout.strip().isdigit()
    assert "headway: note: it will probably start" in said.stderr
    assert "after start_by" in said.stderr
    said = full.headway("submit", *AT_ONCE, "--json", "--", "true")
    assert "after start_by" in json.loads(said.stdout)["warning"]


async def test_a_tree_whose_first_task_could_not_start_in_time_is_refused_whole(full: Upped) -> None:
    before = await stored(full)
    tree = {"name": "strict", "tasks": [{**STRICT, "name": "first"}, {"name": "last", "command": ["true"], "after": "first"}]}
    http = Http(full.url, token=full.token)
    try:
        refused = await http.request("POST", "/v1/trees", body=msgspec.json.encode(tree))
        said = msgspec.json.decode(refused.body)
        assert (refused.status, said["code"]) == (409, "cannot_promise")
        assert await stored(full) == before
        tree["tasks"] = [{**STRICT, "name": "first", "on_late": "warn"}, {**STRICT, "name": "last", "after": "first"}]
        taken = await http.request("POST", "/v1/trees", body=msgspec.json.encode(tree))
        assert taken.status == 201, "what begins after others is not promised"
    finally:
        await http.close()
