"""`headway up` as users meet it: starts, survives, ends, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import stat
import subprocess
import termios
from pathlib import Path

import pytest

from headway.agent import tree
from tests.support.processes import command_line
from tests.support.upped import COMMAND, LIVENESS, Upped, clean_environment, descendants, upped


def submit(up: Upped, *command: str) -> str:
    done = up.headway("submit", "-o", "quiet", "--", *command)
    assert done.returncode == 0, f"{done.stderr}\n{up.log}"
    return done.stdout.strip()


def show(up: Upped, task: str) -> dict[str, object]:
    return json.loads(up.headway("show", task, "-o", "json").stdout)["task"]


def wait_for(up: Upped, task: str) -> dict[str, object]:
    """The task once it is final."""
    done = up.headway("wait", task, "--timeout", "120", "-o", "json")
    assert done.returncode == 0, f"{done.stderr}\n{up.log}"
    return show(up, task)


def ended(pid: int, timeout: float = 120.0) -> bool:
    """Wait until the process has ended, as the kernel tells it."""
    import select

    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watch], [], [], timeout)[0])
    finally:
        os.close(watch)


def test_a_task_runs_on_a_new_folder_and_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    with upped(tmp_path) as up:
        assert wait_for(up, submit(up, "echo", "hello"))["state"] == "succeeded"
        assert json.loads((tmp_path / "up.json").read_text())["url"] == up.url
        for name in ("token", "agent-token"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        family = up.family()
        assert up.end() == 0
        assert [pid for pid in family if not ended(pid)] == []
        assert not (tmp_path / "up.json").exists()


def test_a_second_up_on_the_folder_is_told_who_has_it(tmp_path: Path) -> None:
    with upped(tmp_path) as up:
        second = up.headway("up", "--port", "0")
        assert second.returncode != 0
        assert f"pid {up.process.pid}" in second.stderr
        assert "--data-dir" in second.stderr
        assert wait_for(up, submit(up, "true"))["state"] == "succeeded", "the first is unharmed"


def test_what_was_acknowledged_is_there_after_everything_was_killed(tmp_path: Path) -> None:
    with upped(tmp_path) as up:
        finished = submit(up, "echo", "before")
        wait_for(up, finished)
        waiting = submit(up, "sh", "-c", "sleep 0.2; echo after")
        token = up.token
        up.kill_everything()
    with upped(tmp_path) as up:
        assert up.token == token
        assert wait_for(up, finished)["state"] == "succeeded"
        # A run may have been lost with its node; that uses no attempt, so it runs again and succeeds.
        assert wait_for(up, waiting)["state"] == "succeeded"


async def test_a_database_killed_under_it_comes_back_and_tasks_go_on(tmp_path: Path) -> None:
    with upped(tmp_path) as up:
        before = submit(up, "true")
        wait_for(up, before)
        old = up.postmaster_pid
        os.kill(old, signal.SIGKILL)
        assert ended(old)
        await up.database_answers()
        assert up.postmaster_pid != old
        assert wait_for(up, submit(up, "true"))["state"] == "succeeded"
        assert await up.fetchval("select count(*) from headway.task_history") == 2
        assert up.process.poll() is None


def agent_of(up: Upped) -> int:
    (agent,) = [pid for pid in up.family() if b"agent" in command_line(pid).split(b"\0")]
    return agent


def test_a_task_goes_on_when_the_agent_is_killed_under_it(tmp_path: Path) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    os.mkfifo(began)
    os.mkfifo(gate)
    with upped(tmp_path) as up:
        task = submit(up, "sh", "-c", f"echo > {began}; cat {gate}")
        began.read_text()  # returns once the task runs
        agent = agent_of(up)
        os.kill(agent, signal.SIGKILL)
        assert ended(agent)
        gate.write_text("go")  # returns once the task reads on: it still runs
        shown = wait_for(up, task)
        assert (shown["state"], shown["attempt"]) == ("succeeded", 1)
        assert wait_for(up, submit(up, "true"))["state"] == "succeeded"
        family = up.family()
        assert up.end() == 0
        assert [pid for pid in family if not ended(pid)] == []


def test_an_agent_killed_with_all_its_processes_comes_back(tmp_path: Path) -> None:
    with upped(tmp_path) as up:
        wait_for(up, submit(up, "true"))
        agent = agent_of(up)
        tree.send([agent, *descendants(agent)], signal.SIGKILL)
        assert wait_for(up, submit(up, "true"))["state"] == "succeeded"


def test_a_port_that_is_taken_is_named_with_the_option_that_changes_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "up", "--data-dir", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=120,
            env=clean_environment(),
        )
    assert done.returncode == 64
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    assert not (tmp_path / "postgres").exists(), "no database was made for nothing"


def run(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "run", "--data-dir", str(folder), "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )


def test_run_without_a_server_starts_one_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run(tmp_path, "sh", "-c", "echo hello; exit 3")
    out, err = done.communicate(timeout=180)
    assert done.returncode == 3, err
    assert "hello" in out
    assert not (tmp_path / "up.json").exists()
    assert not (tmp_path / "postgres" / "postmaster.pid").exists()


def test_a_second_run_on_the_folder_joins_the_first_and_outlives_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = run(tmp_path, "true")
    second = run(tmp_path, "sh", "-c", f"while ! test -e {gate}; do sleep 0.05; done; echo joined")
    assert first.wait(180) == 0, first.stderr.read() if first.stderr else ""
    gate.touch()
    out, err = second.communicate(timeout=180)
    assert second.returncode == 0, err
    assert "joined" in out
    assert not (tmp_path / "up.json").exists()
    for pipe in (first.stdout, first.stderr):
        assert pipe is not None
        pipe.close()


def test_a_terminal_that_is_closed_ends_it_in_order(tmp_path: Path) -> None:
    """It was killed by the hang-up, and with it the database, the agent and what ran."""
    terminal, its_side = pty.openpty()

    def attach() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
        os.setsid()
        fcntl.ioctl(its_side, termios.TIOCSCTTY, 0)

    command = [*COMMAND, "up", "--data-dir", str(tmp_path), "--port", "0", "--output", "json"]
    settings = clean_environment(**LIVENESS, HEADWAY_DRAIN_S="0.1")
    process = subprocess.Popen(
        command, stdin=its_side, stdout=subprocess.PIPE, stderr=its_side, text=True, env=settings, preexec_fn=attach
    )
    os.close(its_side)
    assert process.stdout is not None
    up = Upped(process, tmp_path, json.loads(process.stdout.readline())["url"])
    try:
        task = submit(up, "sleep", "1000")
        assert up.headway("wait", task, "--timeout", "0.2").returncode == 124
        family = up.family()
        os.close(terminal)  # nobody can be told anything from here on
        assert process.wait(120) >= 0, "it was ended by a signal"
        assert not (tmp_path / "up.json").exists()
        assert [pid for pid in family if not ended(pid)] == []
    finally:
        if process.poll() is None:
            up.kill_everything()
        process.stdout.close()
    with upped(tmp_path) as again:
        assert show(again, task)["state"] in ("ready", "leased", "running")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_on_both_signals_while_a_task_runs_and_the_task_is_kept(tmp_path: Path, number: signal.Signals) -> None:
    with upped(tmp_path, HEADWAY_DRAIN_S="0.1") as up:
        task = submit(up, "sleep", "60")
        seen = up.headway("wait", task, "--timeout", "0.2")
        assert seen.returncode == 124
        up.process.send_signal(number)
        assert up.process.wait(120) == 0
    with upped(tmp_path) as up:
        assert show(up, task)["state"] in ("ready", "leased", "running")
