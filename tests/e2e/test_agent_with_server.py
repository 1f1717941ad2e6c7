"""The agent and the real server: killing either half of an agent loses nothing and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.agent import tree
from tests.support.agents import alive
from tests.support.upped import Upped, upped
from tests.support.waiting import until


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Upped]:
    with upped(tmp_path / "data") as running:
        yield running


def call(up: Upped, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {up.token}", "content-type": "application/json", "headway-protocol": "1"}
    request = urllib.request.Request(up.url + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def final(up: Upped, task: str) -> Any:
    """The task once it has ended: a call waits for a while only, and a busy machine takes its time."""
    return until(lambda: found if (found := call(up, "GET", f"/v1/tasks/{task}?wait=30")).get("ended_at") else None)


def supervisor_of(up: Upped) -> int:
    marked = [pid for pid in up.family() if b"HEADWAY_AGENT_PROCESS=" in tree.environ(pid)]
    return next(pid for pid in marked if (of := tree.stat(pid)) is not None and of.session == pid)


def start(up: Upped, folder: Path) -> tuple[str, int]:
    """A task that runs until the file `go` is there; each run leaves a line in `runs`."""
    text = f"echo $$ >> {folder}/runs; while [ ! -e {folder}/go ]; do sleep 0.02; done; echo $HEADWAY_ATTEMPT > $HEADWAY_RESULT"
    task = call(up, "POST", "/v1/tasks", {"command": text, "attempts": 1})["id"]
    until(lambda: (folder / "runs").exists() and (folder / "runs").read_text().strip())
    return task, int((folder / "runs").read_text().split()[0])


def test_a_task_outlives_the_exchange_side_of_its_agent(up: Upped, tmp_path: Path) -> None:
    task, pid = start(up, tmp_path)
    exchange = tree.stat(supervisor_of(up))
    assert exchange is not None
    os.kill(exchange.ppid, signal.SIGKILL)
    until(lambda: not alive(exchange.ppid))
    (tmp_path / "go").touch()
    done = final(up, task)
    assert (done["state"], done["attempt"], done["result"]) == ("succeeded", 1, 1)
    assert (tmp_path / "runs").read_text().split() == [str(pid)]


def test_a_task_whose_supervisor_was_killed_runs_again_and_only_then(up: Upped, tmp_path: Path) -> None:
    task, pid = start(up, tmp_path)
    os.kill(supervisor_of(up), signal.SIGKILL)
    until(lambda: len((tmp_path / "runs").read_text().split()) == 2)
    assert not alive(pid)
    (tmp_path / "go").touch()
    done = final(up, task)
    assert (done["state"], done["attempt"]) == ("succeeded", 2)
    assert done["failures"].get("node") == 1


def test_a_frozen_supervisor_loses_its_task_to_the_next_one(up: Upped, tmp_path: Path) -> None:
    task, pid = start(up, tmp_path)
    os.kill(supervisor_of(up), signal.SIGSTOP)
    until(lambda: len((tmp_path / "runs").read_text().split()) == 2)
    assert not alive(pid)
    (tmp_path / "go").touch()
    assert final(up, task)["state"] == "succeeded"


def test_cancelling_a_running_task_ends_its_processes(up: Upped, tmp_path: Path) -> None:
    task, pid = start(up, tmp_path)
    call(up, "POST", f"/v1/tasks/{task}/cancel")
    assert final(up, task)["state"] == "cancelled"
    assert not alive(pid)


def test_output_can_be_followed_while_the_task_runs(up: Upped, tmp_path: Path) -> None:
    text = f"echo first; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo last"
    task = call(up, "POST", "/v1/tasks", {"command": text})["id"]

    def lines() -> list[str]:
        request = urllib.request.Request(f"{up.url}/v1/tasks/{task}/logs", headers={"authorization": f"Bearer {up.token}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return [json.loads(line)["text"].strip() for line in answer.read().splitlines()]

    until(lambda: lines() == ["first"])
    (tmp_path / "go").touch()
    final(up, task)
    assert lines() == ["first", "last"]
