"""Looking at what is there, and at what is not: full pages, unknown trees and attempts, lists of tasks (J1)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Client
from tests.support.upped import COMMAND, Upped, clean_environment, upped

NOBODY = "1234567890123456789"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("up")) as running:
        yield running


def test_a_page_that_holds_all_there_is_does_not_promise_more(up: Upped, tmp_path: Path) -> None:
    (tmp_path / "pair.yaml").write_text("pair:\n  a: {command: [echo, a]}\n  b: {command: [echo, b]}\n")
    trees = [up.headway("submit", str(tmp_path / "pair.yaml")).stdout.strip() for _ in range(2)]
    lists = [("ls", "--tree", trees[0]), ("ls", "--trees", "--name", "pair")]
    for words in lists:
        assert "more:" not in up.headway(*words, "-n", "2").stdout
        short = up.headway(*words, "-n", "1").stdout
        cursor = short.partition("more: --cursor ")[2].strip()
        assert cursor, short
        assert "more:" not in up.headway(*words, "-n", "1", "--cursor", cursor).stdout
    with Client(up.url, up.token) as client:
        page = client.page(tree=trees[0], limit=2)
    assert (len(page.tasks), page.next) == (2, None)


def test_tasks_of_a_tree_that_is_not_there_are_not_just_none(up: Upped) -> None:
    said = up.headway("ls", "--tree", NOBODY)
    assert (said.returncode, said.stdout) == (1, "")
    assert f"there is no tree {NOBODY}" in said.stderr


def test_a_tree_without_tasks_in_a_state_has_none(up: Upped, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("one:\n  a: {command: [echo, a]}\n")
    tree = up.headway("submit", str(tmp_path / "one.yaml")).stdout.strip()
    said = up.headway("ls", "--tree", tree, "--state", "skipped")
    assert (said.returncode, said.stdout) == (0, "no tasks\n")


def test_logs_of_an_attempt_that_is_not_there_say_so(up: Upped) -> None:
    task = up.headway("submit", "-o", "quiet", "--", "echo", "hello").stdout.strip()
    assert up.headway("wait", task).returncode == 0
    assert up.headway("logs", "--attempt", "1", task).stdout == "hello\n"
    for words in (("logs",), ("logs", "-f"), ("logs", "--raw"), ("logs", "--whole"), ("logs", "--json")):
        said = up.headway(*words, "--attempt", "7", task)
        assert (said.returncode, said.stdout) == (1, ""), words
        assert f"task {task} has no attempt 7: it has had 1" in said.stderr
    later = up.headway("submit", "-o", "quiet", "--at", "2099-01-01T00:00:00Z", "--", "true").stdout.strip()
    assert "has no attempt 1: none has begun yet" in up.headway("logs", "--attempt", "1", later).stderr


def test_following_an_attempt_that_never_came_says_so_at_the_end(up: Upped, tmp_path: Path) -> None:
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    task = up.headway("submit", "-o", "quiet", "--", "sh", "-c", f"cat {pipe}").stdout.strip()
    env = clean_environment(HEADWAY_DATA=str(up.folder))
    follower = subprocess.Popen([*COMMAND, "logs", "-f", "--attempt", "2", task], stderr=subprocess.PIPE, text=True, env=env)
    pipe.write_text("first and only\n")
    _, err = follower.communicate(timeout=120)
    assert follower.returncode == 1
    assert f"task {task} has no attempt 2" in err


def test_the_output_is_read_on_behind_any_of_its_entries(up: Upped) -> None:
    task = up.headway("submit", "-o", "quiet", "--", "sh", "-c", "echo one >&2; echo two").stdout.strip()
    assert up.headway("wait", task).returncode == 0
    with Client(up.url, up.token) as client:
        entries = list(client.logs(task))
    assert len({(entry.attempt, entry.sequence) for entry in entries}) == len(entries) > 1
    env = clean_environment(HEADWAY_URL=up.url, HEADWAY_TOKEN=up.token)
    for number, entry in enumerate(entries, 1):
        call = ["curl", "-sS", "-H", f"Authorization: Bearer {up.token}"]
        url = f"{up.url}/v1/tasks/{task}/logs?after={entry.attempt}-{entry.sequence}"
        said = subprocess.run([*call, url], capture_output=True, text=True, timeout=120, env=env, check=True).stdout
        assert [json.loads(line)["text"] for line in said.splitlines()] == [one.text for one in entries[number:]]


@pytest.mark.parametrize("word", ["run", "submit"])
def test_a_json_list_of_tasks_runs_as_it_does_over_http(up: Upped, tmp_path: Path, word: str) -> None:
    tasks = [{"command": f"echo {number} > $HEADWAY_RESULT"} for number in (1, 2)]
    (tmp_path / "list.json").write_text(json.dumps(tasks, indent=2))
    said = up.headway(word, str(tmp_path / "list.json"))
    assert said.returncode == 0, said.stderr
    ids = said.stdout.split()
    if word == "run":
        assert ids == ["1", "2"]
    else:
        assert [up.headway("result", "--timeout", "1m", one).stdout for one in ids] == ["1\n", "2\n"]
