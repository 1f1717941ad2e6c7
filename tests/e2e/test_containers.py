"""Tasks in containers: their limits, their end, and that nothing of them remains (H2)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import tree
from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.agents import AgentProcess, marked_processes, running_agent, until
from tests.support.images import ENGINE, busybox_image
from tests.support.processes import command_line
from tests.support.scripted_server import ScriptedServer

SMALL = Resources(cpus_milli=500, memory=32 * 2**20)
# Seconds to sleep by which these tests find their own processes; others may run the same tests now.
LONG, LONGER = str(1_000_000 + os.getpid()), str(11_000_000 + os.getpid())


@pytest.fixture(scope="module")
def image() -> str:
    return busybox_image()


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def agent(server: ScriptedServer, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent"), server.url, container_engine=ENGINE) as running:
        yield running


def containers(agent: AgentProcess) -> list[str]:
    from headway.agent.main import Agent

    mark = f"label=headway={Agent(agent.settings).instance}"
    found = subprocess.run(
        [*ENGINE.split(), "ps", "--all", "--quiet", "--filter", mark], capture_output=True, text=True, check=True
    )
    return found.stdout.split()


def define(server: ScriptedServer, image: str, *commands: str, **fields: object) -> int:
    return server.define(content=Content(image=image, commands=commands), resources=SMALL, **fields)


@pytest.mark.usefixtures("agent")
def test_commands_run_in_the_image_with_input_and_result(server: ScriptedServer, image: str) -> None:
    number = define(server, image, "ls /", 'cp "$HEADWAY_INPUT" "$HEADWAY_RESULT"', env={"MINE": "a b"})
    ref = server.run(number, {"a": 1})
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.text(ref, 2)
    assert "headway" in server.text(ref)
    assert "usr/share" not in server.text(ref)
    assert server.finished[ref].result == b'{"a":1}'


@pytest.mark.usefixtures("agent")
def test_the_first_command_that_fails_ends_it(server: ScriptedServer, image: str) -> None:
    ref = server.run(define(server, image, "echo one", "false", "echo never"))
    assert (server.outcome(ref), server.finished[ref].exit_code, server.text(ref)) == (Outcome.ERROR, 1, "one\n")


@pytest.mark.usefixtures("agent")
def test_a_container_has_no_network_and_no_variables_of_the_node(server: ScriptedServer, image: str) -> None:
    ref = server.run(define(server, image, "ls /sys/class/net; env"))
    lines = server.text(ref).splitlines()
    assert lines[0] == "lo"
    assert "eth0" not in lines
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in lines


@pytest.mark.usefixtures("agent")
def test_a_container_above_its_memory_says_so(server: ScriptedServer, image: str) -> None:
    ref = server.run(define(server, image, "head -c 200000000 /dev/zero | tail | wc -c"))
    if server.outcome(ref) is Outcome.SUCCEEDED:  # `tail` alone was killed, and the pipe's last command did well
        ref = server.run(define(server, image, "exec tail /dev/zero"))
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY


def test_cancelling_really_ends_a_container(server: ScriptedServer, agent: AgentProcess, image: str) -> None:
    ref = server.order(define(server, image, f"echo begun; sleep {LONG} & sleep {LONGER}"))
    server.wait(lambda: "begun" in server.text(ref))
    server.cancel(ref, 0.5)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CANCELLED
    until(lambda: not containers(agent))
    until(lambda: not _sleeping())


def _sleeping() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:1] == [b"sleep"] and words[1:2] in ([LONG.encode()], [LONGER.encode()]):
            found.append(str(path))
    return found


@pytest.mark.usefixtures("agent")
def test_an_image_that_is_nowhere_is_told_before_the_start(server: ScriptedServer) -> None:
    ref = server.run(server.define(content=Content(image="localhost/there-is-no-such-image:1", commands=("true",))))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "the image localhost/there-is-no-such-image:1 could not be pulled" in server.error(ref)["message"]


def monitors(agent: AgentProcess) -> list[int]:
    """Processes that watch over containers of this agent; they carry none of its marks."""
    from headway.agent.main import Agent

    name = f"headway-{Agent(agent.settings).instance}-".encode()
    return [pid for pid in tree.table() if b"conmon" in (said := command_line(pid)) and name in said]


@pytest.mark.parametrize("are", ["running", "stopped"])
def test_containers_of_a_killed_agent_are_removed_by_the_next(image: str, tmp_path: Path, are: str) -> None:
    """An agent that is killed while it ends what it finds leaves monitors stopped: it stops everything before it kills."""
    with ScriptedServer() as server:
        with running_agent(tmp_path / "agent", server.url, container_engine=ENGINE) as agent:
            ref = server.order(define(server, image, f"echo begun; sleep {LONG}"))
            server.wait(lambda: "begun" in server.text(ref))
            assert monitors(agent)
            if are == "stopped":
                tree.send(monitors(agent), signal.SIGSTOP)
            tree.send(marked_processes(agent) | {agent.pid}, signal.SIGKILL)
            agent.process.wait(120)
        with running_agent(tmp_path / "agent", server.url, container_engine=ENGINE) as agent:
            until(lambda: not containers(agent))
            until(lambda: not _sleeping())
            until(lambda: not monitors(agent))


@pytest.mark.usefixtures("agent")
def test_a_container_is_paused_resumed_and_signalled(server: ScriptedServer, image: str) -> None:
    text = "trap 'echo heard; exit 7' USR1; n=0; while :; do n=$((n+1)); echo step $n; sleep 0.05; done"
    ref = server.order(define(server, image, text))
    server.wait(lambda: "step" in server.text(ref), timeout=120)
    assert server.control(ref, "pause") == "paused"
    for _ in range(2):  # what it said before the pause may still be on its way during the first
        before = server.text(ref)
        server.run(server.define(command=("/bin/sleep", "0.5")))
    assert server.text(ref) == before
    assert server.control(ref, "resume") == "resumed"
    server.wait(lambda: server.text(ref) != before)
    assert server.control(ref, "signal", "USR1") == "signalled"
    server.wait(lambda: ref in server.finished)
    assert (server.finished[ref].exit_code, "heard" in server.text(ref)) == (7, True)


def test_a_container_that_could_not_be_removed_at_its_end_is_removed_by_the_agent(image: str, tmp_path: Path) -> None:
    refused = tmp_path / "refused"
    stubborn = tmp_path / "engine"  # refuses to remove the first time
    stubborn.write_text(
        f'#!/bin/sh\ncase " $* " in *" rm "*) [ -e {refused} ] || {{ : > {refused}; exit 125; }};; esac\nexec {ENGINE} "$@"\n'
    )
    stubborn.chmod(0o755)
    with ScriptedServer() as server, running_agent(tmp_path / "agent", server.url, container_engine=str(stubborn)) as agent:
        ref = server.run(define(server, image, "exit 3"))
        assert server.finished[ref].exit_code == 3, "the container's own"
        assert refused.exists()
        until(lambda: not containers(agent))
