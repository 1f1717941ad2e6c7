"""The disk under database, server and agent fills up: clients are told to wait, and when there is room again nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import msgspec
import pytest

from headway import Client
from headway.wire.http import Http
from headway.wire.views.fleet import NodeView
from tests.support.agents import running_agent
from tests.support.checker import assert_sound
from tests.support.cluster import AGENT_TOKEN, TOKEN, Server
from tests.support.upped import COMMAND, Upped, clean_environment, upped
from tests.support.waiting import eventually, until

MIB = 2**20


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, of 300 MiB, under a path short enough for a socket."""
    folder = tmp_path_factory.mktemp("d")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this test mounts a file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with pytest.raises(OSError, match="No space left"):
        _write_without_end(filler)
    return filler


def _write_without_end(filler: Path) -> None:
    with open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(MIB))


async def answered(http: Http, count: int, size: int) -> tuple[int, list[str]]:
    """The status of a bulk of tasks with large inputs, and the ids that were acknowledged."""
    body = msgspec.json.encode({"task": {"command": ["true"], "resources": {"disk": 0}}, "inputs": ["x" * size] * count})
    response = await http.request("POST", "/v1/tasks", body=body, timeout=120)
    return response.status, msgspec.json.decode(response.body)["ids"] if response.status == 201 else []


async def test_a_full_disk_refuses_work_and_loses_none(small_disk: Path) -> None:
    with upped(small_disk / "data", HEADWAY_DISK="10GiB") as up:
        http = Http(up.url, token=up.token)
        acknowledged: list[str] = []
        status, ids = await answered(http, 20, 1000)
        assert status == 201
        acknowledged += ids
        filler = fill(small_disk)
        refused = await until_refused(http, acknowledged)
        assert refused == 503, "a client must be told to come again"
        os.unlink(filler)
        await until_accepted(http, acknowledged)
        await all_final(up, acknowledged)
        await http.close()


def test_who_starts_on_a_full_disk_is_told_where_to_make_room(small_disk: Path) -> None:
    filler = fill(small_disk)
    words = [*COMMAND, "up", "--port", "0", "--data-dir", str(small_disk / "data")]
    said = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert (said.returncode, said.stdout) == (1, "")
    assert "No space left on device" in said.stderr
    assert "make room in the data folder" in said.stderr
    os.unlink(filler)
    with upped(small_disk / "data", HEADWAY_DISK="10GiB") as up:
        assert up.headway("run", "--", "true").returncode == 0


async def until_refused(http: Http, acknowledged: list[str]) -> int:
    for _ in range(200):
        try:
            status, ids = await answered(http, 50, 100_000)
        except (ConnectionError, TimeoutError):
            continue
        if status != 201:
            return status
        acknowledged += ids
    raise AssertionError("the disk is full and everything is accepted")


async def until_accepted(http: Http, acknowledged: list[str]) -> None:
    async def accepted() -> list[str]:
        status, ids = await answered(http, 20, 1000)
        assert status in (201, 503)
        return ids if status == 201 else []

    acknowledged += await eventually(accepted, away=(ConnectionError, TimeoutError))


async def all_final(up: Upped, acknowledged: list[str]) -> None:
    ids = [int(i) for i in acknowledged]
    await up.database_answers()
    connection = await asyncpg.connect(up.dsn, server_settings={"search_path": "headway"})
    try:
        question = "select count(*) = $2 from task_history where id = any($1::bigint[]) and state = 6"
        await eventually(lambda: connection.fetchval(question, ids, len(ids)), what="all have succeeded")
    finally:
        await connection.close()
    await assert_sound(up.dsn, ids)


async def test_a_node_without_room_takes_no_tasks_says_why_and_takes_them_again(dsn: str, small_disk: Path, tmp_path: Path) -> None:
    server = Server("server", tmp_path, dsn, {"HEADWAY_FENCE_S": "20", "HEADWAY_LOST_S": "25"})  # nobody is lost here
    await server.start()
    try:
        with running_agent(small_disk / "agent", server.url, token=AGENT_TOKEN), Client(server.url, TOKEN) as client:
            # Its input is a file of the work folder: without room there the program cannot be started.
            work = {"command": ["sh", "-c", "cat $HEADWAY_INPUT > $HEADWAY_RESULT"], "input": "x" * 100_000, "retry": {"interval": 0.1}}
            assert client.submit(work).result(timeout=120) == work["input"]
            filler = fill(small_disk)
            caught = client.submit(work)  # may reach the node before the node has noticed
            node = until(lambda: in_state(client, "quarantined"))
            assert "free in its work folder, less than" in node.trouble
            waiting = client.submit(work)
            explained = headway(server, "explain", waiting.id)
            assert "takes no new tasks: it has " in explained, explained
            assert node.trouble in headway(server, "node", "show", node.name)
            os.unlink(filler)
            for handle in (caught, waiting):
                assert handle.result(timeout=120) == work["input"]
            until(lambda: in_state(client, "up"))
            assert {view.attempts for view in client.wait([caught.id, waiting.id])} == {1}
    finally:
        server.kill()


def in_state(client: Client, state: str) -> NodeView | None:
    return next((node for node in client.nodes() if node.state == state), None)


def headway(server: Server, *words: str) -> str:
    environment = clean_environment(HEADWAY_URL=server.url, HEADWAY_TOKEN=TOKEN)
    return subprocess.run([*COMMAND, *words], env=environment, capture_output=True, text=True, timeout=120, check=False).stdout
