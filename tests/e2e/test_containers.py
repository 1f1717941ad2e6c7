"""Tasks in containers: their limits, their end, and that nothing of them remains (H2)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headway.agent import cgroups, tree
from headway.agent.container_group import groups_of
from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.agents import AgentProcess, marked_processes, running_agent
from tests.support.confined import stands_still_while_paused
from tests.support.images import busybox_image
from tests.support.processes import command_line
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

MIB = 2**20
SMALL = Resources(cpus_milli=500, memory=32 * 2**20)
# Seconds to sleep by which these tests find their own processes; others may run the same tests now.
LONG, LONGER = str(1_000_000 + os.getpid()), str(11_000_000 + os.getpid())


@pytest.fixture(scope="module")
def image(engine: str) -> str:
    return busybox_image(engine)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def agent(server: ScriptedServer, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent"), server.url, container_engine=engine) as running:
        yield running


def containers(agent: AgentProcess) -> list[str]:
    """Of this agent, on record with its engine."""
    from headway.agent.main import Agent

    mark = f"label=headway={Agent(agent.settings).instance}"
    found = subprocess.run(
        [*agent.settings.container_engine.split(), "ps", "--all", "--quiet", "--filter", mark], capture_output=True, text=True, check=True
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
@pytest.mark.parametrize("command", ["exec tail /dev/zero", "tail /dev/zero; echo goes on; sleep 600"])
def test_a_container_above_its_memory_ends_with_both_figures(server: ScriptedServer, image: str, command: str) -> None:
    ref = server.run(define(server, image, command))
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY, (server.error(ref), server.text(ref, 2))
    excess = server.error(ref)["excess"]
    assert (excess["what"], excess["allowed"]) == ("memory", SMALL.memory)
    assert SMALL.memory * 0.9 <= excess["used"] <= SMALL.memory * 1.1


def test_a_container_of_too_many_processes_ends_as_that(engine: str, image: str, tmp_path: Path) -> None:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, container_engine=engine, max_processes=40):
        ref = server.run(define(server, image, "(i=0; while [ $i -lt 60 ]; do i=$((i+1)); sleep 600 & done); exec sleep 600"))
        assert server.outcome(ref) is Outcome.TOO_MANY_PROCESSES, (server.error(ref), server.text(ref, 2))
        assert server.error(ref)["excess"] == {"what": "processes", "used": 41, "allowed": 40}


def test_a_container_that_ends_by_a_refused_process_ends_as_that(engine: str, image: str, tmp_path: Path) -> None:
    """Its groups are gone a moment after: who looks every now and then comes too late."""
    with ScriptedServer() as server, running_agent(tmp_path, server.url, container_engine=engine, max_processes=20):
        number = define(server, image, "i=0; while [ $i -lt 30 ]; do i=$((i+1)); sleep 600 & done")
        refs = [server.run(number) for _ in range(5)]
        assert [server.outcome(ref) for ref in refs] == [Outcome.TOO_MANY_PROCESSES] * 5, [server.error(ref) for ref in refs]


@pytest.mark.parametrize("where", ["/tmp", "/data", "/headway"])
def test_a_container_that_fills_the_disk_is_ended_wherever_it_writes(
    server: ScriptedServer, agent: AgentProcess, engine: str, where: str
) -> None:
    """Its own layer above the image, a volume that the image asks for, its folder: and nothing of them remains."""
    before = volumes(engine)
    fill = f"i=0; while [ $i -lt 100 ]; do i=$((i+1)); head -c 4000000 /dev/zero > {where}/$i; done; sleep 600"
    content = Content(image=busybox_image(engine, volume="/data"), commands=(fill,))
    ref = server.run(server.define(content=content, resources=msgspec.structs.replace(SMALL, disk=16 * MIB)))
    assert server.outcome(ref) is Outcome.DISK_FULL, (server.error(ref), server.text(ref, 2))
    excess = server.error(ref)["excess"]
    assert (excess["what"], excess["allowed"]) == ("disk", 16 * MIB)
    assert excess["used"] > 16 * MIB
    assert 0 < (server.finished[ref].max_memory or 0) <= SMALL.memory, "not what the engine's client used"
    until(lambda: not containers(agent))
    until(lambda: volumes(engine) <= before)  # those of other tests come and go meanwhile


def volumes(engine: str) -> set[str]:
    found = subprocess.run([*engine.split(), "volume", "ls", "--quiet"], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


@pytest.mark.usefixtures("agent")
def test_iops_and_bandwidth_are_given_to_the_engine(server: ScriptedServer, image: str, tmp_path: Path) -> None:
    if not cgroups.disk_of(str(tmp_path)) or not Path("/sys/fs/cgroup/blkio").is_dir():
        pytest.skip("no disk that could be throttled, or not by cgroups version 1")
    number = server.define(
        content=Content(image=image, commands=("echo begun; sleep 1003",)),
        resources=msgspec.structs.replace(SMALL, iops=100, bandwidth=MIB),
    )
    ref = server.order(number)
    server.wait(lambda: "begun" in server.text(ref) or ref in server.finished)
    assert ref not in server.finished, (server.error(ref), server.text(ref, 2))
    inside = until(lambda: [pid for pid in tree.table() if tree.words(pid)[:2] == [b"sleep", b"1003"]])  # it begins after it is told
    group = Path(groups_of(inside[0])["blkio"])
    names = ("read_iops", "write_iops", "read_bps", "write_bps")
    found = [(group / f"blkio.throttle.{name}_device").read_text().split()[-1] for name in names]
    server.cancel(ref, 0.0)
    server.wait(lambda: ref in server.finished)
    assert found == ["100", "100", str(MIB), str(MIB)]


@pytest.mark.usefixtures("agent")
def test_what_a_container_used_is_its_own(server: ScriptedServer, image: str) -> None:
    spin = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; head -c 8000000 /dev/zero > /tmp/x; sleep 0.3"
    ref = server.run(define(server, image, spin))
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.text(ref, 2)
    finished = server.finished[ref]
    assert finished.cpu_ms is not None
    assert finished.cpu_ms > 100
    assert finished.max_memory is not None
    assert finished.max_memory <= SMALL.memory


@pytest.mark.usefixtures("agent")
def test_what_a_container_used_is_its_own_when_it_is_ended_by_force(server: ScriptedServer, image: str) -> None:
    """The launcher, which knows, is killed with it: it was what the engine's client had used."""
    spin = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo spun; sleep 600"
    ref = server.order(define(server, image, spin))
    server.wait(lambda: "spun" in server.text(ref) or ref in server.finished)
    server.cancel(ref, 0.0)
    server.wait(lambda: ref in server.finished)
    finished = server.finished[ref]
    assert server.outcome(ref) is Outcome.CANCELLED
    assert (finished.cpu_ms or 0) > 100
    assert 0 < (finished.max_memory or 0) < 8 * MIB, "a shell needs little, an engine's client some thirty"


def test_nothing_that_a_container_prints_is_kept_by_the_engine_too(
    server: ScriptedServer, agent: AgentProcess, engine: str, image: str
) -> None:
    """It would be a file without a limit, on the disk of the node."""
    ref = server.order(define(server, image, "echo kept only once; sleep 600"))
    server.wait(lambda: "kept only once" in server.text(ref) or ref in server.finished)
    said = subprocess.run([*engine.split(), "logs", *containers(agent)], capture_output=True, text=True)
    server.cancel(ref, 0.0)
    server.wait(lambda: ref in server.finished)
    assert "kept only once" not in said.stdout, said.stdout


def test_a_container_goes_on_under_the_agent_that_follows_a_killed_one(engine: str, image: str, tmp_path: Path) -> None:
    with ScriptedServer() as server, running_agent(tmp_path, server.url, container_engine=engine) as agent:
        ref = server.order(define(server, image, 'echo begun; while [ ! -e "$HEADWAY_CHECKPOINT_DIR/go" ]; do sleep 0.05; done; exit 5'))
        server.wait(lambda: "begun" in server.text(ref) or ref in server.finished)
        supervisor = agent.supervisor()
        os.kill(agent.pid, signal.SIGKILL)
        agent.process.wait(60)
        scratch = until(lambda: [path for path in Path(agent.settings.data_dir).rglob("checkpoint") if path.is_dir()])
        until(lambda: [pid for pid in tree.children(supervisor) if b"adopt" in command_line(pid)])
        (scratch[0] / "go").touch()
        server.wait(lambda: ref in server.finished)
        assert server.finished[ref].exit_code == 5
        os.kill(supervisor, signal.SIGTERM)
        until(lambda: tree.stat(supervisor) is None)
        until(lambda: not containers(agent))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_record_of_a_container_is_left_by_an_agent_that_ends_or_is_killed(
    engine: str, image: str, tmp_path: Path, how: signal.Signals
) -> None:
    """Though no other agent follows on its folder."""
    with ScriptedServer() as server, running_agent(tmp_path, server.url, container_engine=engine, drain_s=0.0) as agent:
        ref = server.order(define(server, image, "trap '' TERM; echo begun; while :; do sleep 1; done"))
        server.wait(lambda: "begun" in server.text(ref) or ref in server.finished)
        assert containers(agent)
        agent.process.send_signal(how)
        if how is signal.SIGKILL:
            tree.send(marked_processes(agent), how)
        agent.process.wait(120)
        until(lambda: not containers(agent))


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
def test_containers_of_a_killed_agent_are_removed_by_the_next(engine: str, image: str, tmp_path: Path, are: str) -> None:
    """An agent that is killed while it ends what it finds leaves monitors stopped: it stops everything before it kills."""
    with ScriptedServer() as server:
        with running_agent(tmp_path / "agent", server.url, container_engine=engine) as agent:
            ref = server.order(define(server, image, f"echo begun; sleep {LONG}"))
            server.wait(lambda: "begun" in server.text(ref))
            if are == "stopped":
                if not monitors(agent):
                    pytest.skip("the monitors of this engine are not below the agent, which stops only what it finds there")
                tree.send(monitors(agent), signal.SIGSTOP)
            tree.send(marked_processes(agent) | {agent.pid}, signal.SIGKILL)
            agent.process.wait(120)
        with running_agent(tmp_path / "agent", server.url, container_engine=engine) as agent:
            until(lambda: not containers(agent))
            until(lambda: not _sleeping())
            until(lambda: not monitors(agent))


@pytest.mark.usefixtures("agent")
def test_a_container_is_paused_resumed_and_signalled(server: ScriptedServer, image: str) -> None:
    text = "trap 'echo heard; exit 7' USR1; n=0; while :; do n=$((n+1)); echo step $n; sleep 0.05; done"
    ref = server.order(define(server, image, text))
    server.wait(lambda: "step" in server.text(ref), timeout=120)
    stands_still_while_paused(server, ref)
    assert server.control(ref, "signal", "USR1") == "signalled"
    server.wait(lambda: ref in server.finished)
    assert (server.finished[ref].exit_code, "heard" in server.text(ref)) == (7, True)


def test_a_container_that_could_not_be_removed_at_its_end_is_removed_by_the_agent(engine: str, image: str, tmp_path: Path) -> None:
    refused = tmp_path / "refused"
    stubborn = tmp_path / "engine"  # refuses to remove the first time
    stubborn.write_text(
        f'#!/bin/sh\ncase " $* " in *" rm "*) [ -e {refused} ] || {{ : > {refused}; exit 125; }};; esac\nexec {engine} "$@"\n'
    )
    stubborn.chmod(0o755)
    with ScriptedServer() as server, running_agent(tmp_path / "agent", server.url, container_engine=str(stubborn)) as agent:
        ref = server.run(define(server, image, "exit 3"))
        assert server.finished[ref].exit_code == 3, "the container's own"
        assert refused.exists()
        until(lambda: not containers(agent))
