"""A careless operator and a running Headway: folders removed, disks read-only, tokens revoked. It is said, nothing is lost (I1 J1)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway import Client
from headway.wire.views.fleet import NodeView
from tests.support.agents import running_agent
from tests.support.cluster import AGENT_TOKEN, TOKEN, Process, Server
from tests.support.upped import COMMAND, clean_environment, upped
from tests.support.waiting import until

# Its result is a file of the work folder: without one the program cannot even be started.
WORK = {"command": ["sh", "-c", "cat $HEADWAY_INPUT > $HEADWAY_RESULT"], "input": 7, "retry": {"interval": 0.1}}


@pytest.fixture
async def server(dsn: str, tmp_path: Path) -> AsyncIterator[Server]:
    running = Server("server", tmp_path, dsn, {"HEADWAY_FENCE_S": "20", "HEADWAY_LOST_S": "25"})  # nobody is lost here
    await running.start()
    try:
        yield running
    finally:
        running.kill()


def headway(server: Server, *words: str) -> str:
    environment = clean_environment(HEADWAY_URL=server.url, HEADWAY_TOKEN=TOKEN)
    return subprocess.run([*COMMAND, *words], env=environment, capture_output=True, text=True, timeout=120, check=False).stdout


def in_state(client: Client, state: str) -> NodeView | None:
    return next((node for node in client.nodes() if node.state == state), None)


def test_a_work_folder_that_is_removed_closes_the_node_until_its_agent_is_restarted(server: Server, tmp_path: Path) -> None:
    with Client(server.url, TOKEN) as client:
        with running_agent(tmp_path / "agent", server.url, token=AGENT_TOKEN) as agent:
            assert client.submit(WORK).result(timeout=120) == 7
            shutil.rmtree(tmp_path / "agent")
            caught = client.submit(WORK)  # may reach the node before the node has noticed
            node = until(lambda: in_state(client, "quarantined"))
            assert "cannot use its work folder" in node.trouble
            assert "restart its agent" in headway(server, "node", "show", node.name)
            assert agent.stop() == 0
        with running_agent(tmp_path / "agent", server.url, token=AGENT_TOKEN):
            assert caught.result(timeout=120) == 7
            assert caught.wait(1).attempts == 1


def test_a_file_system_that_becomes_read_only_closes_the_node_until_it_can_be_written(server: Server, tmp_path: Path) -> None:
    with running_agent(tmp_path / "agent", server.url, token=AGENT_TOKEN) as agent, Client(server.url, TOKEN) as client:
        assert client.submit(WORK).result(timeout=120) == 7
        with read_only(tmp_path / "agent" / "agent" / agent.settings.node_name / "scratch"):
            caught = client.submit(WORK)
            node = until(lambda: in_state(client, "quarantined"))
            assert "read-only" in node.trouble
            assert "read-only" in headway(server, "explain", str(caught.id))
        assert caught.result(timeout=120) == 7
        assert caught.wait(1).attempts == 1


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """By a mount over itself: the file system below has files that are open for writing, and only an error of the disk would make it so."""
    bound = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, text=True)
    if bound.returncode:
        pytest.skip(f"this test mounts a file system: {bound.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_revoked_token_ends_the_agent_with_words_and_its_task_runs_elsewhere(server: Server, tmp_path: Path) -> None:
    key = json.loads(headway(server, "key", "create", "--role", "agent", "--name", "old", "-o", "json"))
    agent = Process("agent", tmp_path)
    begun, go = tmp_path / "begun", tmp_path / "go"
    text = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.05; done; echo 1 > $HEADWAY_RESULT"
    try:
        settings = {"HEADWAY_URL": server.url, "HEADWAY_TOKEN": key["token"], "HEADWAY_DATA": str(tmp_path / "first")}
        agent.launch(["agent", "--name", "first", "--cpus", "1", "--memory", "1GiB", "--disk", "1GiB"], settings)
        with Client(server.url, TOKEN) as client:
            task = client.submit({"command": ["sh", "-c", text], "retry": {"interval": 0.1}})
            until(begun.exists, what="the task runs")
            headway(server, "key", "revoke", str(key["id"]))
            assert agent.popen is not None
            assert agent.popen.wait(180) == 77
            assert "the server refused the agent's token" in agent.log.read_text()
            go.touch()
            with running_agent(tmp_path / "second", server.url, token=AGENT_TOKEN, node_name="second"):
                assert task.result(timeout=120) == 1
    finally:
        agent.kill()


def test_a_data_folder_that_is_removed_under_up_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with upped(folder) as up:
        assert up.headway("run", "--", "true").returncode == 0
        shutil.rmtree(folder / "postgres")
        until(lambda: "was removed while it ran" in up.log, what="it is said")
        assert not (folder / "postgres").exists()
