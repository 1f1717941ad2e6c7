"""Isolation and limits from the outside: over HTTP, on the command line, in Python and in a task file (H11 G3 B4)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import Client
from tests.support.confined import need_groups, need_sandbox
from tests.support.upped import Upped, upped


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    need_groups()
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with upped(tmp_path_factory.mktemp("up")) as running:
        yield running


def ask(up: Upped, path: str, body: Any = None, token: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token or up.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(up.url + path, data, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def ended(up: Upped, task: dict[str, Any], token: str | None = None) -> dict[str, Any]:
    """The submitted task once it is final."""
    body = {"attempts": 1, **task}
    submitted = ask(up, "/v1/tasks", body, token)
    found: dict[str, Any] = {}
    while not found.get("ended_at"):
        found = ask(up, f"/v1/tasks/{submitted['id']}?wait=30", token=token)
    return found


def test_over_http_on_the_command_line_in_python_and_in_a_file(up: Upped, tmp_path: Path) -> None:
    assert ended(up, {"command": ["id", "-u"], "isolation": "sandbox"})["outcome"] == "succeeded"
    done = up.headway("run", "--isolation", "sandbox", "--", "id", "-u")
    assert (done.returncode, done.stdout.strip()) == (0, "1000"), done.stderr
    with Client(up.url, token=up.token) as client:
        handle = client.submit({"command": "echo $HOME > $HEADWAY_RESULT", "isolation": "sandbox"})
        assert str(handle.result(timeout=120)).strip() == "/task"
    file = tmp_path / "task.yaml"
    file.write_text("command: [id, -u]\nisolation: sandbox\n")
    assert up.headway("run", str(file)).returncode == 0


def test_a_limit_shows_what_was_used_and_what_was_allowed(up: Upped) -> None:
    hog = ["python3", "-c", "x = bytearray(500_000_000)"]
    task = ended(up, {"command": hog, "resources": {"cpus": 0.5, "memory": "100MiB"}})
    assert (task["state"], task["outcome"]) == ("failed", "out_of_memory")
    assert task["error"]["excess"] == {"what": "memory", "used": 100 * 2**20, "allowed": 100 * 2**20}
    shown = up.headway("show", task["id"]).stdout
    assert "memory: used 100MiB, allowed 100MiB" in shown
    done = up.headway("retry", task["id"], "--tier", "regular")
    assert done.returncode == 0, done.stderr
    assert up.headway("wait", task["id"], "--timeout", "60").returncode == 0


def test_what_an_attempt_used_is_recorded(up: Upped) -> None:
    write = "head -c 5M /dev/zero > f; sync f"
    usage = ended(up, {"command": write})["usage"]
    assert usage["max_memory"] > 0
    assert usage["written_bytes"] >= 5 * 2**20
    assert usage["cpu_s"] is not None
    assert usage["wall_s"] > 0


def test_a_tenant_created_later_is_isolated_and_cannot_choose_less(up: Upped) -> None:
    made = ask(up, "/v1/tenants", {"name": "guest"})
    assert "name" in made, made
    key = ask(up, "/v1/keys", {"tenant": "guest", "role": "tenant"})
    token = key.get("token") or key.get("key")
    assert token, key
    task = ended(up, {"command": "id -u > $HEADWAY_RESULT"}, token)
    assert (task["isolation"], str(task["result"]).strip()) == ("sandbox", "1000")
    refused = ask(up, "/v1/tasks", {"command": ["id"], "isolation": "none"}, token)
    assert "less than your subscription" in refused["detail"]
    refused = ask(up, "/v1/tasks", {"command": ["id"], "network": ["example.org:443"]}, token)
    assert "not granted" in refused["detail"]
