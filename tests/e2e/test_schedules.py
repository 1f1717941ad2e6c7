"""Schedules on a whole Headway: YAML, command line, HTTP and Python, down to processes that run (D1-D3 C6 K3)."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import Client, errors
from tests.support.upped import COMMAND, Upped, clean_environment, upped
from tests.support.waiting import until

FILE = """
tidy:
  task:
    schedule: 1
    command: [echo, done]
    fetch:
      schedule: 0
      command: [echo, fetched]
"""
IMPOSSIBLE = """
nightly:
  report:
    schedule: 5m
    command: [echo, report]
    clean:
      command: [echo, clean]
      download:
        schedule: daily
        command: [echo, download]
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def hw(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as client:
        yield client


def headway(up: Upped, *words: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(HEADWAY_DATA=str(up.folder))
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, env=environment)


def test_a_file_is_applied_fires_again_and_again_and_can_be_stopped(up: Upped, hw: Client, tmp_path: Path) -> None:
    file = tmp_path / "tidy.yaml"
    file.write_text(FILE)
    first = headway(up, "apply", str(file), "--json")
    assert first.returncode == 0, first.stderr
    assert [one["change"] for one in json.loads(first.stdout)] == ["created"]
    assert "tidy: unchanged" in headway(up, "submit", str(file)).stdout

    def three_runs() -> bool:
        return sum(one.run_state == "succeeded" for one in hw.schedule("tidy").past) >= 3

    until(three_runs)
    view = hw.schedule("tidy", next=3, past=50)
    assert (view.state, view.tasks, len(view.next)) == ("active", 2, 3)
    moments = [one.at for one in view.past]
    assert len(set(moments)) == len(moments)
    assert {at.microsecond for at in moments} == {moments[0].microsecond}  # counted from one moment, a second each
    shown = headway(up, "schedule", "show", "tidy")
    assert "every 1s" in shown.stdout, shown.stderr
    assert "succeeded" in shown.stdout
    assert "paused" in headway(up, "schedule", "pause", "tidy").stdout
    assert "tidy" in headway(up, "schedule", "ls").stdout
    file.write_text(FILE.replace("schedule: 1", "schedule: daily"))
    assert "tidy: changed" in headway(up, "apply", str(file)).stdout
    assert hw.schedule("tidy").state == "paused"
    run = headway(up, "schedule", "trigger", "tidy", "-o", "quiet").stdout.strip()
    assert headway(up, "wait", run).returncode == 0
    assert "active" in headway(up, "schedule", "resume", "tidy").stdout
    assert "deleted" in headway(up, "schedule", "delete", "tidy").stdout
    with pytest.raises(errors.NotFound):
        hw.schedule("tidy")


def test_run_runs_it_once_and_keeps_nothing(up: Upped, hw: Client, tmp_path: Path) -> None:
    file = tmp_path / "tidy.yaml"
    file.write_text(FILE)
    assert headway(up, "run", str(file)).returncode == 0
    assert "tidy" not in [one.name for one in hw.schedules()]


def test_from_python(hw: Client) -> None:
    task = {"command": ["true"], "name": "nightly"}
    when: dict[str, Any] = {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "overlap": "queue"}
    assert hw.apply("python", task=task, **when).change == "created"
    assert hw.apply("python", task=task, **when).change == "unchanged"
    view = hw.schedule("python", next=4)
    assert view.next == sorted(view.next)
    assert (view.overlap, view.timezone, len(view.next)) == ("queue", "Europe/Berlin", 4)
    made = hw.backfill("python", "2026-03-28", "2026-03-31")
    assert [at.isoformat() for at in made.firings] == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
    ]
    until(lambda: [one.run_state for one in hw.schedule("python").past] == ["succeeded"] * 3)
    labelled = hw.page(label={"schedule": "python"}).tasks
    assert {task.labels["firing"] for task in labelled} == {at.isoformat() for at in made.firings}
    assert {task.category for task in labelled} == {"periodic"}
    assert hw.trigger("python").run is not None
    assert hw.pause_schedule("python").state == "paused"
    assert hw.resume_schedule("python").state == "active"
    assert hw.delete_schedule("python").changed == 1


def test_what_waits_of_a_backfill_is_given_up_from_the_shell_and_from_python(up: Upped, hw: Client) -> None:
    hw.apply("long", schedule="daily", task={"command": ["sleep", "600"]})
    hw.backfill("long", "2026-03-01", "2026-03-11")
    until(lambda: any(one.run_state == "running" for one in hw.schedule("long").past))
    stopped = headway(up, "schedule", "stop-backfill", "long")
    assert (stopped.returncode, stopped.stdout) == (0, "9 given up\n")
    assert hw.stop_backfill("long").count == 0
    assert headway(up, "schedule", "stop-backfill", "long").stdout == "no moment of a backfill waits\n"
    (going,) = [one for one in hw.schedule("long").past if one.state == "started"]
    assert going.run is not None
    hw.cancel(going.run)
    hw.delete_schedule("long")


def test_once_at_a_moment(hw: Client) -> None:
    # So late that a busy machine has looked at it before it fires.
    start = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=15)
    hw.apply("once", schedule=0, start=start.isoformat(), task={"command": ["true"]})
    assert hw.schedule("once").next == [start]
    until(lambda: hw.schedule("once").state == "finished")
    (firing,) = hw.schedule("once").past
    assert (firing.at, firing.state) == (start, "started")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"schedule": "dayly", "task": {"command": ["true"]}}, "schedule"),
        ({"schedule": "daily"}, "task"),
        ({"schedule": "daily", "task": {"comand": ["true"]}}, "task.comand"),
        ({"schedule": "daily", "task": {"command": ["true"]}, "overlp": "skip"}, "overlp"),
        ({"schedule": True, "task": {"command": ["true"]}}, "schedule"),
        ({"schedule": "daily", "tasks": []}, None),
        ({"schedule": "daily", "tasks": [{"name": "a", "command": ["true"], "after": ["a"]}]}, "after"),
    ],
)
def test_wrong_fields_are_named(hw: Client, fields: dict[str, Any], field: str | None) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        hw.apply("wrong", **fields)
    assert caught.value.extra.get("field") == field
    assert "wrong" not in [one.name for one in hw.schedules()]


def test_a_task_with_a_schedule_is_told_where_schedules_go(hw: Client) -> None:
    with pytest.raises(errors.UnknownField, match="/v1/schedules"):
        hw.submit(command=["true"], schedule="daily")


def test_a_subtask_scheduled_less_often_than_its_parent_is_refused_with_the_chain(up: Upped, tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(IMPOSSIBLE)
    for word in ("validate", "apply"):
        said = headway(up, word, str(file))
        assert said.returncode == 65
        assert f"{file}:9:9: impossible: 'download' (daily: every 1d) is scheduled less often than 'report'" in said.stderr
        assert "download → clean → report" in said.stderr


def test_predictions_know_what_ran(hw: Client) -> None:
    tasks = [{"name": "nap", "command": ["sleep", "0.2"]}, {"name": "rest", "command": ["true", "never ran"], "after": ["nap"]}]
    assert hw.predict(tasks).tasks["nap"] is None
    for handle in hw.submit_many([tasks[0]] * 8):
        handle.result(120)

    def known() -> Any:
        found = hw.predict([{**tasks[0], "attempts": 5}, tasks[1]])
        return found if found.tasks["nap"] else None

    said = until(known)
    assert said.tasks["nap"].runs >= 1
    assert 0.1 < said.tasks["nap"].seconds < 60
    assert said.tasks["nap"].low <= said.tasks["nap"].seconds <= said.tasks["nap"].high
    assert said.tasks["rest"] is None


NAPS = """
naps:
  doze:
    command: [sleep, "1.2"]
    slumber: {command: [sleep, "4"]}
    blink: {command: [sleep, "0.01"]}
    new: {command: [echo, "never ran"]}
"""


def test_a_plan_tells_the_times_of_earlier_runs(up: Upped, hw: Client, tmp_path: Path) -> None:
    file = tmp_path / "naps.yaml"
    file.write_text(NAPS)
    (before,) = json.loads(headway(up, "plan", str(file), "--json").stdout)["trees"]
    assert not any("predicted_s" in task for task in before["tasks"])
    ran = [{"name": name, "command": ["sleep", length]} for name, length in (("doze", "1.2"), ("slumber", "4"), ("blink", "0.01"))]
    for handle in hw.submit_many(ran * 4):
        handle.result(120)

    def known() -> Any:
        (tree,) = json.loads(headway(up, "plan", str(file), "--json").stdout)["trees"]
        times = {task["name"]: task["predicted_s"] for task in tree["tasks"] if "predicted_s" in task}
        return (tree, times) if len(times) == 3 else None

    tree, times = until(known)
    assert tree["critical_path"] == ["slumber", "doze"]
    assert times["slumber"] > times["doze"] > times["blink"]
    assert tree["predicted_s"] == pytest.approx(times["slumber"] + times["doze"], abs=0.002)
    drawn = headway(up, "plan", str(file)).stdout
    assert "critical path: slumber → doze" in drawn
    assert "predicted: about " in drawn
