"""Webhooks and the event stream through HTTP, the command line and Python (J6)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Client
from headway.errors import Conflict, InvalidInput, NotFound
from tests.support.receiver import Receiver, receiver
from tests.support.upped import COMMAND, Upped, clean_environment, upped
from tests.support.waiting import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("notifications") / "data", HEADWAY_WEBHOOK_NETWORKS="127.0.0.0/8") as running:
        yield running


@pytest.fixture
def client(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as client:
        yield client


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def webhook(up: Upped, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(HEADWAY_DATA=str(up.folder))
    return subprocess.run([*COMMAND, "webhook", *arguments], capture_output=True, text=True, timeout=120, env=environment)


def test_a_webhook_made_on_the_command_line_is_told_of_a_failure(up: Upped, client: Client, hook: Receiver) -> None:
    made = webhook(up, "create", "ops", hook.url, "--event", "failed", "--json")
    assert made.returncode == 0, made.stderr
    secret = json.loads(made.stdout)["secret"]
    stored = asyncio.run(up.fetchval("select secret from headway.webhook where name = 'ops'"))
    assert str(stored).startswith("sealed:")
    assert webhook(up, "test", "ops").returncode == 0
    [got] = hook.wait(1)
    assert (got.event["type"], got.signed_by(secret)) == ("headway.webhook.test", True)
    task = client.submit(command="exit 3", name="doomed").id
    got = hook.wait(2)[1]
    assert (got.event["type"], got.event["subject"]) == ("headway.task.failed", task)
    assert got.event["data"]["task"]["exit_code"] == 3
    rotated = json.loads(webhook(up, "rotate", "ops", "--json").stdout)["secret"]
    again = webhook(up, "replay", "ops", got.headers["webhook-id"])
    assert "1 sent again" in again.stdout
    third = hook.wait(3)[2]
    assert third.headers["webhook-id"] == got.headers["webhook-id"]
    assert third.signed_by(secret)
    assert third.signed_by(rotated)
    listed = webhook(up, "deliveries", "ops", "--json")
    assert {one["kind"] for one in json.loads(listed.stdout)} == {"task.failed", "webhook.test"}
    assert webhook(up, "set", "ops", "--disable").returncode == 0
    assert "off" in webhook(up, "ls").stdout
    assert webhook(up, "delete", "ops").returncode == 0
    assert webhook(up, "show", "ops").returncode == 1


def test_mistakes_are_answered_with_what_was_expected(client: Client, hook: Receiver) -> None:
    with pytest.raises(InvalidInput, match="no event 'faild'") as wrong:
        client.create_webhook("ops", hook.url, events=["faild"])
    assert wrong.value.hint == "did you mean 'failed'?"
    for url in ("ftp://example.com", "https://", "https://user:pw@example.com/", "http://example.com:99999/", "x"):
        with pytest.raises(InvalidInput):
            client.create_webhook("ops", url)
    with pytest.raises(InvalidInput, match="not a public address"):
        client.create_webhook("ops", "http://169.254.169.254/latest/meta-data")
    with pytest.raises(NotFound):
        client.delete_webhook("ops")
    client.create_webhook("twice", hook.url)
    with pytest.raises(Conflict):
        client.create_webhook("twice", hook.url)
    client.delete_webhook("twice")


def test_a_task_file_a_command_line_and_python_say_whom_to_notify(
    up: Upped, client: Client, hook: Receiver, tmp_path: Path
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"command: 'true'\nname: from-yaml\nnotify:\n  - to: {hook.url}/yaml\n    events: [succeeded]\n")
    assert up.headway("run", str(file)).returncode == 0
    assert up.headway("submit", "--name", "from-cli", "--notify", f"{hook.url}/cli", "--", "true").returncode == 0
    client.submit(command="true", name="from-python", notify=[f"{hook.url}/python"])
    got = {one.path: one.event["data"]["task"]["name"] for one in hook.wait(3)}
    assert got == {"/hook/yaml": "from-yaml", "/hook/cli": "from-cli", "/hook/python": "from-python"}


def test_events_are_printed_and_can_be_resumed(up: Upped, client: Client) -> None:
    [done] = client.wait([client.submit(command="true").id], timeout=120)
    [failed] = client.wait([client.submit(command="exit 1").id], timeout=120)

    def printed(*options: str) -> list[dict[str, object]]:
        said = up.headway("events", "--json", *options)
        assert said.returncode == 0, said.stderr
        return [json.loads(line) for line in said.stdout.splitlines()]

    def tells(task: str) -> bool:
        return task in {one for event in printed("--since", "1h") for one in event["tasks"]}  # type: ignore[attr-defined]

    until(lambda: tells(done.id) and tells(failed.id))  # a transaction that was open beside theirs holds them up for a moment
    events = printed("--since", "1h")
    assert {event["kind"] for event in printed("--since", "1h", "--kind", "failed")} == {"task.failed"}
    later = printed("--after", str(events[0]["id"]))
    assert [event["id"] for event in later][: len(events) - 1] == [event["id"] for event in events[1:]]
    assert up.headway("events", "--kind", "nonsense").returncode == 65


def test_what_happens_is_followed_live(up: Upped, client: Client) -> None:
    command = [*COMMAND, "events", "-f", "--since", "1m", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment(HEADWAY_DATA=str(up.folder))) as following:
        try:
            assert following.stdout is not None
            for _ in range(2):  # the second is told while it listens
                task = client.submit(command="true").id
                while task not in json.loads(following.stdout.readline())["tasks"]:
                    pass
        finally:
            following.kill()
