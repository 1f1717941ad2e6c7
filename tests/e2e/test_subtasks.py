"""Running tasks submit subtasks and wait for them without holding resources: from Python, from shell, by HTTP (C4)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import Client
from headway.errors import TaskFailed
from headway.wire import task_token
from tests.support.confined import need_sandbox
from tests.support.upped import Upped, upped
from tests.support.waiting import until

FUNCTIONS = Path(__file__).with_name("subtask_functions.py")
BIN = os.path.dirname(sys.executable)
ONE = {"cpus": 1.0, "memory": "64MiB", "disk": "1MiB"}  # a node of one cpu runs one at a time


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("up") / "data", HEADWAY_CPUS="1") as running:
        yield running


@pytest.fixture(scope="module")
def hw(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as client:
        yield client


def call(hw: Client, name: str, *args: Any, **fields: Any) -> Any:
    return hw.submit({"function": f"{FUNCTIONS}:{name}", "input": list(args), "resources": ONE, **fields})


def script(hw: Client, text: str, *args: str, **fields: Any) -> Any:
    env = {"PATH": f"{BIN}:{os.environ['PATH']}", **fields.pop("env", {})}
    return hw.submit(command=["/bin/sh", "-c", text, "script", *args], env=env, resources=ONE, **fields)


def request(up: Upped, token: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    asked = urllib.request.Request(up.url + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_recursion_of_depth_fifty_ends_on_a_node_of_one_cpu_from_python(hw):
    assert call(hw, "depth", 50).result(timeout=120) == 50


def test_results_of_a_map_come_back_in_one_wait(hw, tmp_path):
    trail = tmp_path / "trail"
    handle = call(hw, "total", [1, 2, 3, 4], str(trail))
    assert handle.result(timeout=120) == 20
    assert trail.read_text().count("run") == 2
    view = handle.view()
    assert len(view.subtasks) == 4
    assert hw.get(view.subtasks[0]).parent == handle.id
    assert [attempt.outcome for attempt in hw.attempts(handle.id)] == ["suspended", "succeeded"]
    assert view.failures["task"] == 0


def test_the_failure_of_a_subtask_is_an_exception_in_its_parent(hw):
    assert call(hw, "careful").result(timeout=120) == "ValueError: no such page"


def test_async_and_decorated_functions_submit_subtasks_too(hw):
    assert call(hw, "asynchronous", 4).result(timeout=120) == 9
    assert call(hw, "decorated", 5).result(timeout=120) == 5


def test_the_same_submission_twice_is_two_subtasks_and_both_are_found_again(hw):
    ids = call(hw, "same_twice").result(timeout=120)
    assert len(set(ids)) == 3


def test_a_wait_with_a_timeout_waits_here(hw):
    handle = call(hw, "looks", 1)
    assert handle.result(timeout=120) == "not yet"
    (child,) = handle.view().subtasks
    hw.cancel(child)


RECURSIVE = """
set -e
[ "$1" = 0 ] && { echo 0 > "$HEADWAY_RESULT"; exit 0; }
child=$(headway submit -o quiet --resources regular --env "PATH=$PATH" -- /bin/sh "$0" $(($1 - 1)))
below=$(headway result "$child")
echo $((below + 1)) > "$HEADWAY_RESULT"
"""


def test_a_recursion_of_depth_fifty_ends_on_a_node_of_one_cpu_from_shell(hw, tmp_path):
    file = tmp_path / "depth.sh"
    file.write_text(RECURSIVE)
    env = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    handle = hw.submit(command=["/bin/sh", str(file), "50"], env=env, resources=ONE)
    assert handle.result(timeout=240) == 50


def test_a_script_waits_for_all_its_subtasks_and_gets_their_exit_code(hw, tmp_path):
    trail = tmp_path / "trail"
    text = """
    echo run >> "$1"
    headway submit -- sh -c 'echo 1 > "$HEADWAY_RESULT"' > /dev/null
    headway submit -- sh -c 'exit 7' > /dev/null
    headway wait > /dev/null || exit
    echo unreachable >> "$1"
    """
    view = script(hw, text, str(trail)).wait(timeout=120)
    assert (view.state, view.exit_code) == ("failed", 7)
    assert [attempt.outcome for attempt in hw.attempts(view.id)] == ["suspended", "error"]
    assert trail.read_text() == "run\nrun\n"


def test_a_python_program_waits_like_a_function(hw, tmp_path):
    program = tmp_path / "parent.py"
    program.write_text(
        "import headway, os\n"
        "handle = headway.current().submit(command='echo 5 > $HEADWAY_RESULT')\n"
        "value = handle.result()\n"
        "open(os.environ['HEADWAY_RESULT'], 'w').write(str(value + 1))\n"
    )
    handle = hw.submit(command=[sys.executable, str(program)], resources=ONE)
    assert handle.result(timeout=120) == 6
    assert [attempt.outcome for attempt in hw.attempts(handle.id)] == ["suspended", "succeeded"]


def test_any_language_can_submit_and_wait_by_http_and_a_file(hw, tmp_path):
    text = """
    import json, os, sys, urllib.request
    def ask(method, path, body=None):
        headers = {"authorization": "Bearer " + os.environ["HEADWAY_TOKEN"], "content-type": "application/json"}
        data = json.dumps(body).encode() if body else None
        return json.load(urllib.request.urlopen(urllib.request.Request(os.environ["HEADWAY_URL"] + path, data, headers, method=method)))
    child = ask("POST", "/v1/tasks", {"command": "echo 41 > $HEADWAY_RESULT", "idempotency_key": "answer"})["id"]
    view = ask("GET", f"/v1/tasks/{child}")
    if view["state"] != "succeeded":
        open(os.environ["HEADWAY_SUBTASKS"], "a").write(f"waits {child}\\n")
        sys.exit(85)
    open(os.environ["HEADWAY_RESULT"], "w").write(str(view["result"] + 1))
    """
    program = tmp_path / "plain.py"
    program.write_text("\n".join(line.removeprefix("    ") for line in text.splitlines()))
    assert hw.submit(command=[sys.executable, "-S", str(program)], resources=ONE).result(timeout=120) == 42


def test_a_token_opens_only_its_own_subtasks_and_dies_with_the_attempt(up, hw, tmp_path):
    stranger = hw.submit(command=["true"], at="2099-01-01T00:00:00Z")
    told, go = tmp_path / "token", tmp_path / "go"
    text = 'echo "$HEADWAY_TOKEN" > "$1.new"; mv "$1.new" "$1"; while [ ! -e "$2" ]; do sleep 0.05; done'
    handle = script(hw, text, str(told), str(go))
    while not told.exists():
        assert handle.view().state in ("ready", "leased", "running")
    token = told.read_text().strip()
    assert request(up, token, "GET", "/v1/whoami")[1]["role"] == "task"
    status, child = request(up, token, "POST", "/v1/tasks", {"command": ["true"], "at": "2099-01-01T00:00:00Z"})
    assert status == 201
    assert request(up, token, "GET", f"/v1/tasks/{child['id']}")[0] == 200
    assert request(up, token, "GET", f"/v1/tasks/{handle.id}")[0] == 200
    assert request(up, token, "GET", f"/v1/tasks/{stranger.id}")[0] == 404
    assert request(up, token, "POST", f"/v1/tasks/{stranger.id}/cancel")[0] == 404
    assert request(up, token, "POST", "/v1/tasks/wait", {"ids": [stranger.id], "timeout": 0})[0] == 404
    for method, path in (("GET", "/v1/tasks"), ("GET", "/v1/nodes"), ("GET", "/v1/events"), ("GET", "/v1/dead-letters")):
        assert request(up, token, method, path)[0] == 403, path
    assert request(up, token, "POST", "/v1/trees", {"name": "t", "tasks": [{"command": ["true"]}]})[0] == 403
    go.touch()
    handle.result(timeout=120)
    assert request(up, token, "GET", "/v1/whoami")[0] == 401
    assert hw.cancel(child["id"]).state == "cancelled"
    stranger.cancel()


def test_cancelling_a_waiting_parent_ends_the_processes_of_its_subtasks(hw, tmp_path):
    pid = tmp_path / "pid"
    text = f"headway submit -- sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600' > /dev/null; headway wait || exit"
    handle = script(hw, text)
    until(pid.exists)
    number = int(pid.read_text())
    handle.cancel()
    with pytest.raises(TaskFailed):
        handle.result(timeout=120)
    (child,) = handle.view().subtasks
    assert hw.handle(child).wait(timeout=120).state == "cancelled"
    assert not os.path.exists(f"/proc/{number}")


def test_a_wait_for_nothing_is_a_mistake_outside_a_task(up):
    done = up.headway("wait")
    assert done.returncode == 64
    assert "name at least one task" in done.stderr


def test_a_subtask_of_an_isolated_task_is_isolated_and_gets_no_more_than_its_parent(up, hw, tmp_path):
    need_sandbox(tmp_path)
    handle = hw.submit(command=["sleep", "600"], isolation="sandbox", resources={"cpus": 0.1})
    while (view := handle.view()).state != "running":
        assert view.state in ("ready", "leased")
    key = asyncio.run(up.fetchval("select task_key from headway.node"))
    token = task_token.make(key, int(handle.id), view.attempt)
    status, child = request(up, token, "POST", "/v1/tasks", {"command": ["true"], "at": "2099-01-01T00:00:00Z"})
    assert status == 201
    assert hw.get(child["id"]).isolation == "sandbox"
    status, problem = request(up, token, "POST", "/v1/tasks", {"command": ["true"], "network": "all"})
    assert (status, problem["field"]) == (400, "network")
    handle.cancel()
    assert hw.handle(child["id"]).wait(timeout=120).state == "cancelled"
