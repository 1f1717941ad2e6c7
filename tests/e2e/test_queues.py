"""Queues, explain and change as users meet them: a real `headway up`, its command line, HTTP and Python (F5 E8)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from headway import Client, task
from headway.errors import InvalidInput
from tests.support.upped import COMMAND, Upped, clean_environment, upped
from tests.support.waiting import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("up")) as running:
        yield running


def headway(up: Upped, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(HEADWAY_DATA=str(up.folder))
    said = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, env=environment)
    assert said.returncode == code, said.stdout + said.stderr
    return said


def value(up: Upped, *words: str) -> Any:
    return json.loads(headway(up, *words, "--json").stdout)


def test_a_task_waits_in_a_paused_queue_is_explained_changed_and_runs_after_it_is_resumed(up: Upped) -> None:
    headway(up, "queue", "create", "nights", "--hours", "0:00-24:00", "--timezone", "Europe/Berlin")
    assert "nights is paused" in headway(up, "queue", "pause", "nights").stdout
    number = headway(up, "submit", "-o", "quiet", "--queue", "nights", "--", "echo", "done").stdout.strip()
    said = headway(up, "explain", number).stdout
    assert "queue nights is paused" in said
    assert "headway queue resume " in said
    headway(up, "change", number, "--set", "delay_tolerance=0", "--set", "name=another")
    shown = value(up, "show", number)
    shown = shown[0] if isinstance(shown, list) else shown
    assert shown.get("task", shown)["name"] == "another"
    # It is counted once a second.
    (listed,) = until(lambda: [one for one in value(up, "queue", "ls") if one["ready"] and one["name"] == "nights"])
    assert (listed["state"], listed["ready"], listed["hours"]) == ("paused", 1, ["00:00-24:00"])
    headway(up, "queue", "resume", "nights")
    headway(up, "wait", number, "--timeout", "100s")
    assert "running" in headway(up, "explain", number).stdout
    assert "succeeded" in headway(up, "change", number, "--set", "attempts=2", code=1).stderr


def test_what_is_wrong_with_a_queue_is_said_with_the_remedy(up: Upped) -> None:
    assert "did you mean 'urgent'?" in headway(up, "submit", "--queue", "urgnt", "--", "true", code=65).stderr
    assert "did you mean 'only'?" in headway(up, "submit", "--off-peak", "onyl", "--", "true", code=65).stderr
    assert "mon-fri 22:00-06:00" in headway(up, "queue", "create", "x", "--hours", "22-6", code=65).stderr
    assert "Europe/Berlin" in headway(up, "queue", "create", "x", "--timezone", "Mars", code=65).stderr
    assert "is predefined" in headway(up, "queue", "delete", "urgent", code=65).stderr


def test_a_task_file_and_python_name_a_queue_with_the_same_words(up: Upped, tmp_path) -> None:
    headway(up, "queue", "create", "filed")
    file = tmp_path / "task.yaml"
    file.write_text("command: [echo, hello]\nqueue: filed\noff_peak: never\npreemptible: false\n")
    number = headway(up, "submit", "-o", "quiet", str(file)).stdout.strip()
    headway(up, "wait", number, "--timeout", "100s")

    with pytest.raises(InvalidInput, match="off_peak"):

        @task(off_peak="sometimes")
        def wrong() -> None: ...

    with Client(up.url, token=up.token) as client:
        accepted = client.submit({"command": ["true"], "queue": "filed"})
        accepted.wait(120)


def test_stats_show_the_peak_shares_and_what_was_shifted(up: Upped) -> None:
    stats = value(up, "stats")
    assert stats["peak"] is False
    assert stats["top_k"] >= 0
    assert {"urgent", "delayable", "periodic", "off-peak"} <= {queue["name"] for queue in stats["queues"]}
    headway(up, "stats", "--shifted")
