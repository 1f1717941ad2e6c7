"""`headway up` that is asked to end twice: it waits for no task, and none of them counts as lost (I1 I3)."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import command_line
from tests.support.upped import Upped, upped
from tests.support.waiting import until

TWICE = [(signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)]
PATIENT = {"HEADWAY_DRAIN_S": "600"}  # longer than a test may take: only the second signal can end it
SLOW_S = 4.0


def running_task(up: Upped) -> str:
    """A task that nothing but the end of its agent ends, and that may not be lost even once."""
    file = up.folder / "task.yaml"
    file.write_text("command: [sleep, '1000']\nname: long\nretry: {node_losses: 0}\n")
    done = up.headway("submit", "-o", "quiet", str(file))
    assert done.returncode == 0, done.stderr
    task = done.stdout.strip()
    until(lambda: shown(up, task)["task"]["state"] == "running", what="the task runs")
    return task


def shown(up: Upped, task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(up.headway("show", task, "-o", "json").stdout)
    return found


def kept(folder: Path, task: str) -> None:
    """The task goes on at the next start, and nothing was counted against it."""
    with upped(folder) as up:
        found = shown(up, task)
        assert found["task"]["state"] in ("ready", "leased", "running")
        assert found["task"]["failures"]["node"] == 0, up.log
        assert [one["outcome"] for one in found["attempts"] if one["outcome"]] == ["pre_empted"]


@pytest.mark.parametrize("signals", TWICE, ids=["ctrl-c-ctrl-c", "sigterm-after-ctrl-c"])
def test_a_second_signal_ends_it_at_once_and_its_task_is_kept(tmp_path: Path, signals: tuple[signal.Signals, signal.Signals]) -> None:
    with upped(tmp_path, **PATIENT) as up:
        task = running_task(up)
        up.process.send_signal(signals[0])
        until(lambda: "agent.draining" in up.log, what="the agent drains")
        up.process.send_signal(signals[1])
        assert up.process.wait(120) == 0
    kept(tmp_path, task)


def test_two_signals_that_the_agent_hears_as_one_are_two(tmp_path: Path) -> None:
    with upped(tmp_path, **PATIENT) as up:
        task = running_task(up)
        agent = part(up, b"headway.cli.main\0agent\0")
        os.kill(agent, signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        up.process.send_signal(signal.SIGTERM)
        until(lambda: pending(agent, signal.SIGTERM), what="the agent is asked to end")
        until(lambda: not (tmp_path / "up.json").exists(), what="it ends")
        for _ in range(20):  # the server answers until its agent has ended, and meanwhile both are sent
            assert urllib.request.urlopen(f"{up.url}/livez", timeout=60).status == 200
        os.kill(agent, signal.SIGCONT)
        assert up.process.wait(120) == 0
    kept(tmp_path, task)


def test_a_machine_that_is_slow_to_end_its_task_does_not_lose_it(tmp_path: Path) -> None:
    with upped(tmp_path, **PATIENT) as up:
        task = running_task(up)
        supervisor = part(up, b"begin_supervisor")
        up.process.send_signal(signal.SIGINT)
        until(lambda: "agent.draining" in up.log, what="the agent drains")
        os.kill(supervisor, signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        time.sleep(SLOW_S)  # the fault itself: a machine that gives the supervisor no time
        os.kill(supervisor, signal.SIGCONT)
        assert up.process.wait(120) == 0
    kept(tmp_path, task)


def part(up: Upped, words: bytes) -> int:
    [pid] = [pid for pid in up.family() if words in command_line(pid)]
    return pid


def pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal waits for the process to look."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) & (1 << (number - 1)))
    return False
