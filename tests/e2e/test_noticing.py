"""A node whose machine changes while its agent runs: what can be run there is announced again, and nothing that runs suffers (H1 H2)."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from headway.domain.lifecycle import Outcome
from headway.wire.exchange import Register
from tests.support.agents import running_agent
from tests.support.scripted_server import ScriptedServer


def program(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(f"#!/bin/sh\n{text}\n")
    part.chmod(0o755)
    part.rename(path)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs come before those of the machine."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def offered(server: ScriptedServer, name: str) -> str | None:
    return last(server).capacity.labels.get(name)


def last(server: ScriptedServer) -> Register:
    return server.registered[-1]


def test_a_language_that_comes_and_goes_is_announced_while_a_task_runs(tmp_path: Path, programs: Path) -> None:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, look_s=0.1):
        gate = tmp_path / "gate"
        running = server.order(server.define(command=["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done; echo through"]))
        server.wait(lambda: running in [(started.id, started.attempt) for started in server.started])
        assert offered(server, "interpreter/julia") is None
        program(programs / "julia", "echo julia version 1.9.4")
        server.wait(lambda: offered(server, "interpreter/julia") == "1")
        program(programs / "julia", "echo julia version 2.0.0")
        server.wait(lambda: offered(server, "interpreter/julia") == "2")
        (programs / "julia").unlink()
        server.wait(lambda: offered(server, "interpreter/julia") is None)
        gate.touch()
        server.wait(lambda: running in server.finished)
        assert server.outcome(running) is Outcome.SUCCEEDED
        assert len({register.boot for register in server.registered}) == 1
        assert len({register.capacity.disk for register in server.registered}) == 1


def test_a_volume_and_a_daemon_that_come_later_are_offered(tmp_path: Path, programs: Path) -> None:
    daemon, volume = tmp_path / "daemon", tmp_path / "shared"
    program(programs / "docker", f"[ -e {daemon} ] || {{ echo Cannot connect >&2; exit 1; }}")
    offers = {"look_s": 0.1, "container_engine": "docker", "volumes": {"data": str(volume)}}
    with ScriptedServer() as server, running_agent(tmp_path, server.url, **offers):
        server.wait(lambda: server.registered)
        assert (offered(server, "container"), offered(server, "volume/data")) == (None, None)
        volume.mkdir()
        server.wait(lambda: offered(server, "volume/data") == "yes")
        daemon.touch()
        server.wait(lambda: offered(server, "container") == "docker")
        assert offered(server, "volume/data") == "yes"


@pytest.fixture
def without_bubblewrap(programs: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """All programs of the machine but one; where that is."""
    real = shutil.which("bwrap", path="/usr/bin:/bin")
    assert real is not None
    others = programs.parent / "others"
    others.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name != "bwrap":
            (others / path.name).symlink_to(path)
    monkeypatch.setenv("PATH", f"{programs}:{others}")
    for folder in programs, others, *programs.parents:  # users of slots must be able to walk there
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    return real


def test_a_sandbox_is_offered_while_bubblewrap_is_installed(tmp_path: Path, programs: Path, without_bubblewrap: str) -> None:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, look_s=0.1):
        server.wait(lambda: server.registered)
        assert offered(server, "sandbox") is None
        for word in ("installed", "again"):
            program(programs / "bwrap", f'exec {without_bubblewrap} "$@"')
            server.wait(lambda: offered(server, "sandbox") == "yes")
            ref = server.run(server.define(command=["/bin/sh", "-c", f"echo {word}; pwd"], isolation="sandbox"))
            assert (server.outcome(ref), server.text(ref)) == (Outcome.SUCCEEDED, f"{word}\n/task\n")
            (programs / "bwrap").unlink()
            server.wait(lambda: offered(server, "sandbox") is None)


def test_what_was_noticed_is_offered_by_the_next_supervisor_too(tmp_path: Path, programs: Path) -> None:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, look_s=0.1) as agent:
        server.wait(lambda: server.registered)
        first = last(server).boot
        program(programs / "julia", "echo julia version 1.9.4")
        server.wait(lambda: offered(server, "interpreter/julia") == "1")
        os.kill(agent.supervisor(), signal.SIGKILL)
        server.wait(lambda: last(server).boot != first)
        assert offered(server, "interpreter/julia") == "1"
