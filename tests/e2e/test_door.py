"""A sandboxed task without a network reaches the server all the same, by the socket in its sandbox, and only as itself (C4 H10 H11)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway import Client
from headway.agent.relay import Refused, read_head
from tests.support.confined import need_sandbox
from tests.support.upped import Upped, upped

ROOM = {"cpus": 0.2, "memory": "256MiB"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with upped(tmp_path_factory.mktemp("up") / "data", HEADWAY_PATHS=str(Path(__file__).parents[2])) as running:
        yield running


@pytest.fixture
def client(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as made:
        yield made


def run(client: Client, command: str | list[str], **fields: Any) -> Any:
    handle = client.submit({"command": command, "isolation": "sandbox", "resources": ROOM, **fields})
    done = handle.wait(120)
    assert done.state == "succeeded", "".join(line.text for line in handle.logs())
    return msgspec.json.decode(done.result)


def test_a_shell_script_submits_waits_and_does_an_effect_once(client: Client) -> None:
    text = """
set -e
test "$(ls /sys/class/net 2>/dev/null | wc -l)" = 0
headway submit -- sh -c 'echo 21 > $HEADWAY_RESULT' > /dev/null
headway wait
headway once paid -- sh -c 'echo paid >> /task/effects'
headway once paid -- sh -c 'echo paid >> /task/effects'
wc -l < /task/effects > $HEADWAY_RESULT
"""
    assert run(client, text) == 1


def test_a_function_in_a_sandboxed_runner_submits_subtasks(client: Client) -> None:
    task = {"function": "tests.e2e.subtask_functions:depth", "input": [2], "isolation": "sandbox", "resources": ROOM}
    assert client.submit(task).result(120) == 2


ASK = """
import json, os, socket
def ask(method, target, token, *lines):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ["HEADWAY_URL"].removeprefix("unix:"))
    sock.sendall("\\r\\n".join([f"{method} {target} HTTP/1.1", "host: x", f"authorization: Bearer {token}", *lines, "", ""]).encode())
    answer = b""
    while piece := sock.recv(65536): answer += piece
    return int(answer.split()[1])
mine = os.environ["HEADWAY_TOKEN"]
me = f"/v1/tasks/{os.environ['HEADWAY_TASK_ID']}"
"""


def test_it_reaches_nothing_but_itself_and_its_subtasks(up: Upped, client: Client) -> None:
    other = client.submit({"command": "sleep 1", "resources": ROOM})
    forged = f"hwt_{other.id}_1_{'0' * 40}"
    code = ASK + f"""
found = {{
    "itself": ask("GET", me, mine),
    "another task": ask("GET", "/v1/tasks/{other.id}", mine),
    "as another task": ask("GET", "/v1/tasks/{other.id}", "{forged}"),
    "as an operator": ask("GET", me, "{up.token}"),
    "nodes": ask("GET", "/v1/nodes", mine),
    "tenants": ask("GET", "/v1/tenants", mine),
    "up again": ask("GET", me + "/../../nodes", mine),
    "in disguise": ask("GET", "/v1/tasks/1/attempts%2f..%2f..%2fnodes", mine),
    "a hidden second request": ask("POST", me + "/once", mine, "transfer-encoding: chunked"),
    "an agent's exchange": ask("POST", "/v1/nodes/1/exchange", mine, "content-length: 0"),
}}
json.dump(found, open(os.environ["HEADWAY_RESULT"], "w"))
"""
    found = run(client, [sys.executable, "-I", "-c", code])
    assert found == {
        "itself": 200,
        "another task": 404,
        "as another task": 401,
        "as an operator": 401,
        "nodes": 403,
        "tenants": 403,
        "up again": 403,
        "in disguise": 403,
        "a hidden second request": 400,
        "an agent's exchange": 403,
    }


def test_one_that_keeps_every_connection_open_shuts_nobody_out(client: Client) -> None:
    """Each place of isolated tasks has a user of its own, and each user so many connections."""
    hold = ASK + """
kept = []
for _ in range(200):
    sock = socket.socket(socket.AF_UNIX); sock.connect("/etc/headway.sock"); kept.append(sock)
print("holding", flush=True)
import time; time.sleep(600)
"""
    held = client.submit({"command": [sys.executable, "-I", "-c", hold], "isolation": "sandbox", "resources": ROOM})
    for line in held.logs(follow=True):
        if "holding" in line.text:
            break
    code = ASK + 'json.dump(ask("GET", me, mine), open(os.environ["HEADWAY_RESULT"], "w"))'
    assert run(client, [sys.executable, "-I", "-c", code]) == 200
    held.cancel()


HEAD = b"GET /v1/tasks/12 HTTP/1.1\r\nauthorization: Bearer hwt_1_1_ab\r\n\r\n"


def test_what_a_task_says_beside_its_request_is_not_passed_on() -> None:
    asked = read_head(HEAD.replace(b"\r\n\r\n", b"\r\nhost: evil\r\nx-forwarded-for: 1.2.3.4\r\nconnection: keep-alive\r\n\r\n"))
    assert asked.headers == {"authorization": "Bearer hwt_1_1_ab"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"GET", b"DELETE"),
        (b"/12", b"/12/explain"),
        (b"/12", b"/12\x00"),
        (b"/12", b"//12"),
        (b"hwt_", b"hw_admin_"),
        (b"\r\n\r\n", b"\r\nauthorization: Bearer hw_other\r\n\r\n"),
        (b"\r\n\r\n", b"\r\ncontent-length: -1\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (b"\r\n\r\n", b"\r\ncontent-length : 5\r\n\r\n"),
        (b"\r\n\r\n", b"\r\naccept: a\ntransfer-encoding: chunked\r\n\r\n"),
        (b"\r\n\r\n", b"\r\naccept: a\rhost: evil\r\n\r\n"),
        (b"authorization", b"x"),
    ],
)
def test_a_request_that_is_not_quite_right_does_not_pass(old: bytes, new: bytes) -> None:
    read_head(HEAD)
    with pytest.raises(Refused):
        read_head(HEAD.replace(old, new, 1))
