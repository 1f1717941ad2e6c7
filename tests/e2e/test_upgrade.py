"""Another version of Headway is installed while tasks run: they come to their end and are told, once (H7)."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway
from headway.agent import kept_code
from headway.agent.link import LINK
from headway.agent.starter import LIBRARY
from headway.domain.lifecycle import Outcome
from tests.support.agents import alive, running_agent
from tests.support.confined import need_starter
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of its own, which agents are started from."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    shutil.copytree(Path(headway.__file__).parent, tmp_path / "installed" / "headway")
    return tmp_path / "installed" / "headway"


def upgrade(package: Path, what: str) -> None:
    """To one that neither understands what the supervisor says nor is understood by it."""
    link, wire = package / "agent" / "link.py", package / "wire" / "__init__.py"
    if what == "link":
        link.write_text(re.sub(r"^LINK = \d+", "LINK = 99", link.read_text(), flags=re.M).replace('tag="ask"', 'tag="question"'))
    elif what == "exchange":
        wire.write_text(re.sub(r"^PROTOCOL = \d+", "PROTOCOL = 99", wire.read_text(), flags=re.M))
    else:
        (package / "agent" / "main.py").unlink()
        link.unlink()


def begin(server: ScriptedServer, go: Path) -> tuple[int, int]:
    """A program that runs until it is told to end, and notes each time it is started."""
    text = f"echo begun >> {go}.begun; while [ ! -e {go} ]; do sleep 0.02; done"
    ref = server.order(server.define(command=("/bin/sh", "-c", text)))
    until(Path(f"{go}.begun").exists)
    return ref


@pytest.mark.parametrize("what", ["link", "exchange", "half of it"])
def test_tasks_of_a_killed_agent_come_to_their_end_though_another_version_is_installed(
    server: ScriptedServer, package: Path, tmp_path: Path, what: str
) -> None:
    with running_agent(tmp_path / "agent", server.url) as agent:
        ref = begin(server, tmp_path / "go")
        upgrade(package, what)
        os.kill(agent.pid, signal.SIGKILL)
        agent.process.wait()
        server.wait(lambda: len(server.registered) >= 2)
        assert {register.boot for register in server.registered} == {server.registered[0].boot}
        assert {register.protocol for register in server.registered} == {kept_code.OWN[1]}
        server.wait(lambda: server.heartbeats[-1].trouble == kept_code.TROUBLE)
        (tmp_path / "go").touch()
        server.wait(lambda: ref in server.finished)
        assert (server.outcome(ref), (tmp_path / "go.begun").read_text()) == (Outcome.SUCCEEDED, "begun\n")
        later = server.order(server.define(command=("/bin/true",)))
        server.wait(lambda: later in server.returned or later in server.finished)
        assert later in server.returned, "what it would start for it is of the other version"


def test_a_node_takes_nothing_while_code_is_installed_that_its_agent_does_not_speak_with(
    server: ScriptedServer, package: Path, tmp_path: Path
) -> None:
    """Runners, preparations and launchers are started from it."""
    with running_agent(tmp_path / "agent", server.url):
        ref = begin(server, tmp_path / "go")
        link = package / "agent" / "link.py"
        before = link.read_text()
        upgrade(package, "link")
        server.wait(lambda: server.heartbeats[-1].trouble == kept_code.TROUBLE)
        (tmp_path / "go").touch()
        server.wait(lambda: ref in server.finished)
        assert server.outcome(ref) is Outcome.SUCCEEDED
        link.write_text(before)
        server.wait(lambda: not server.heartbeats[-1].trouble)
        assert server.outcome(server.run(server.define(command=("/bin/true",)))) is Outcome.SUCCEEDED


def test_a_supervisor_starts_programs_with_the_compiled_code_it_began_with(server: ScriptedServer, package: Path, tmp_path: Path) -> None:
    """In more slots than it had when that was replaced."""
    need_starter()
    shutil.copy(LIBRARY, package / "agent")
    with running_agent(tmp_path / "agent", server.url, cpus=16.0):
        definition = server.define(command=("/bin/echo", "words"))
        assert server.outcome(server.run(definition)) is Outcome.SUCCEEDED
        (package / "agent" / "broken").write_text("no library")
        os.replace(package / "agent" / "broken", package / "agent" / os.path.basename(LIBRARY))
        refs = [server.order(definition) for _ in range(100)]
        server.wait(lambda: all(ref in server.finished for ref in refs))
        assert {(server.outcome(ref), server.text(ref)) for ref in refs} == {(Outcome.SUCCEEDED, "words\n")}


def test_without_the_compiled_code_python_starts_programs(server: ScriptedServer, package: Path, tmp_path: Path) -> None:
    (package / "agent" / os.path.basename(LIBRARY)).unlink(missing_ok=True)
    with running_agent(tmp_path / "agent", server.url, cpus=16.0):
        words, missing = server.define(command=("/bin/echo", "words")), server.define(command=("/does/not/exist",))
        refs = [server.order(words) for _ in range(100)]
        late = server.order(server.define(command=("/bin/sleep", "600")))
        unable = server.run(missing)
        server.wait(lambda: all(ref in server.finished for ref in refs))
        assert {(server.outcome(ref), server.text(ref)) for ref in refs} == {(Outcome.SUCCEEDED, "words\n")}
        assert server.outcome(unable) is Outcome.NOT_STARTABLE
        server.cancel(late)
        server.wait(lambda: late in server.finished)


def test_the_next_agent_is_of_the_new_version(server: ScriptedServer, package: Path, tmp_path: Path) -> None:
    with running_agent(tmp_path / "agent", server.url) as agent:
        begin(server, tmp_path / "go")
        upgrade(package, "exchange")
        os.kill(agent.pid, signal.SIGKILL)
        agent.process.wait()
        server.wait(lambda: len(server.registered) >= 2)
        with running_agent(tmp_path / "agent", server.url):
            server.wait(lambda: server.registered[-1].protocol == 99)
            assert server.registered[-1].boot != server.registered[0].boot


def test_an_agent_whose_supervisor_was_killed_after_an_upgrade_ends_and_says_what_to_do(
    server: ScriptedServer, package: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running_agent(tmp_path / "agent", server.url) as agent:
        begin(server, tmp_path / "go")
        upgrade(package, "link")
        os.kill(agent.supervisor(), signal.SIGKILL)
        assert agent.process.wait(120) != 0
        said = capfd.readouterr().err
        ours = f"this agent, which was started before, link {LINK} and protocol 1"
        assert f"the installed Headway speaks link 99 and protocol 1, {ours}" in said


def test_an_exchange_side_that_is_not_understood_costs_no_task(server: ScriptedServer, package: Path, tmp_path: Path) -> None:
    """As when a version is changed that says it was not."""
    with running_agent(tmp_path / "agent", server.url) as agent:
        ref = begin(server, tmp_path / "go")
        supervisor = agent.supervisor()
        link = package / "agent" / "link.py"
        before = link.read_text()
        link.write_text(before.replace('tag="ask"', 'tag="question"'))
        os.kill(agent.pid, signal.SIGKILL)
        agent.process.wait()
        server.wait(lambda: len(server.registered) >= 2)
        link.write_text(before)  # mended
        server.wait(lambda: len(server.registered) >= 3)
        assert alive(supervisor)
        (tmp_path / "go").touch()
        server.wait(lambda: ref in server.finished)
        assert server.outcome(ref) is Outcome.SUCCEEDED


def test_an_agent_whose_servers_are_upgraded_one_after_another_goes_on_with_those_that_are_not_yet(
    server: ScriptedServer, tmp_path: Path
) -> None:
    with ScriptedServer() as other, running_agent(tmp_path / "agent", f"{other.url},{server.url}"):
        other.wait(lambda: other.heartbeats)
        other.other_version = True
        ref = server.run(server.define(command=("/bin/true",)))
        assert server.outcome(ref) is Outcome.SUCCEEDED


def test_an_agent_begins_with_a_server_of_its_own_version_and_ends_when_there_is_none(
    server: ScriptedServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer() as other:
        other.other_version = True
        with running_agent(tmp_path / "one", f"{other.url},{server.url}"):
            server.wait(lambda: server.heartbeats)
        with running_agent(tmp_path / "two", other.url) as agent:
            assert agent.process.wait(120) != 0
    assert "the caller speaks protocol 1, this server 99" in capfd.readouterr().err
