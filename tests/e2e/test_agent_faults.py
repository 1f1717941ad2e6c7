"""Killing, freezing and cutting off an agent: no task is lost, none runs twice at once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from headway.agent import cgroups, main, tree
from headway.agent.clock import boottime
from headway.agent.niceness import USUAL
from headway.config import Settings
from headway.domain.lifecycle import Outcome
from headway.domain.stages import Stage
from tests.support.agents import _RUN, AgentProcess, alive, marked_processes, running_agent
from tests.support.confined import is_root
from tests.support.processes import command_line
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    with ScriptedServer(**getattr(request, "param", {})) as running:  # an adoption must fit into the lease, also on a busy machine
        yield running


LEASE_S = 6.0  # a busy machine may stand still for two seconds
# For those who wait for the end of the lease.
short_lease = pytest.mark.parametrize("server", [{"fence_s": LEASE_S}], indirect=True, ids=["short"])


@pytest.fixture
def agent(server: ScriptedServer, tmp_path: Path) -> Iterator[AgentProcess]:
    with running_agent(tmp_path / "agent", server.url, paths=[str(Path(__file__).parent)]) as running:
        yield running


def start_program(server: ScriptedServer, tmp_path: Path, echo: str = "") -> tuple[tuple[int, int], int, Path]:
    """A program that runs until it is told to end: its attempt, its process, and the file that ends it."""
    go = tmp_path / "go"
    text = f"echo $$ > {tmp_path}/pid; while [ ! -e {go} ]; do {'echo ' + echo if echo else ':'}; sleep 0.02; done"
    ref = server.order(server.define(command=("/bin/sh", "-c", text)))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    return ref, int((tmp_path / "pid").read_text()), go


def test_tasks_survive_the_death_of_the_exchange_side_and_are_adopted(
    server: ScriptedServer, agent: AgentProcess, tmp_path: Path
) -> None:
    ref, pid, go = start_program(server, tmp_path)
    boots = [register.boot for register in server.registered]
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()
    server.wait(lambda: len(server.registered) > len(boots))
    assert server.registered[-1].boot == boots[-1]
    assert alive(pid)
    go.touch()
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.SUCCEEDED


def test_a_node_that_is_not_drained_any_more_takes_tasks_though_its_exchange_side_died_meanwhile(
    server: ScriptedServer, agent: AgentProcess
) -> None:
    """The one that follows hears nothing new, and the supervisor is drained still: it gave back whatever came, for ever."""
    program = server.define(command=("true",))
    server.drains = True
    drained = server.order(program)
    server.wait(lambda: drained in server.returned)
    os.kill(agent.pid, signal.SIGSTOP)
    server.drains = False
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()
    server.wait(lambda: len(server.registered) >= 2)
    ref = server.order(program)
    server.wait(lambda: server.is_over(ref))
    assert ref in server.finished


def test_an_adopted_agent_is_replaced_by_the_next_one_that_is_started(
    server: ScriptedServer, agent: AgentProcess, tmp_path: Path
) -> None:
    _, pid, _ = start_program(server, tmp_path)
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()
    server.wait(lambda: len(server.registered) >= 2)
    with running_agent(tmp_path / "agent", server.url):
        server.wait(lambda: len(server.registered) >= 3)
        assert not alive(pid)
        assert server.registered[-1].boot != server.registered[0].boot


def test_when_the_supervisor_dies_its_tasks_die_and_a_new_boot_begins(
    server: ScriptedServer, agent: AgentProcess, tmp_path: Path
) -> None:
    ref, pid, _ = start_program(server, tmp_path)
    os.kill(agent.supervisor(), signal.SIGKILL)
    server.wait(lambda: len(server.registered) >= 2)
    assert not alive(pid)
    assert server.registered[1].boot != server.registered[0].boot
    assert ref not in server.finished
    again = server.order(server.define(command=("true",)), task=ref[0], attempt=2)
    server.wait(lambda: again in server.finished)


def test_tasks_have_the_usual_nice_value_when_both_processes_of_their_agent_died_in_turn(server: ScriptedServer, tmp_path: Path) -> None:
    """The supervisor is prompt, and the exchange side that it started was; what that one started took it for usual."""
    if not is_root():
        pytest.skip("nobody is prompt")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, asked := USUAL + 5)
    with running_agent(tmp_path / "agent", server.url) as agent:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        server.wait(lambda: server.registered)
        supervisor = agent.supervisor()
        os.kill(agent.pid, signal.SIGKILL)
        agent.process.wait()
        server.wait(lambda: len(server.registered) >= 2)
        (exchange,) = [pid for pid in tree.children(supervisor) if b"adopt" in command_line(pid)]
        assert os.getpriority(os.PRIO_PROCESS, exchange) == asked
        os.kill(supervisor, signal.SIGKILL)
        server.wait(lambda: len(server.registered) >= 3)
        ref = server.run(server.define(command=("nice",)))
        assert server.text(ref) == f"{asked}\n"


def supervisors_gone(log: Path) -> list[str]:
    """What is told of them, with the time at the beginning."""
    return [line for line in log.read_text().splitlines() if "agent.supervisor_gone" in line]


DIES = "import signal, sys; from headway.agent import main; main._SUPERVISE = {!r}; " + _RUN


@pytest.mark.parametrize(
    ("supervisor", "how"), [("raise SystemExit(3)", "died: exit code 3"), ("import os; os.kill(os.getpid(), 9)", "died: signal 9, Killed")]
)
def test_supervisors_that_die_at_once_are_started_ever_more_slowly_and_it_is_said_how_they_died(
    tmp_path: Path, supervisor: str, how: str
) -> None:
    """There were ten in a second, for ever."""
    settings = Settings(data_dir=str(tmp_path), url="http://127.0.0.1:9", node_name="test-node", cpus=2.0)
    words = [sys.executable, "-c", DIES.format(supervisor), msgspec.json.encode(settings).decode()]
    log = tmp_path / "log"
    with log.open("w") as to, subprocess.Popen(words, stderr=to) as agent:
        try:
            until(lambda: len(supervisors_gone(log)) >= 5)
            agent.terminate()
            assert agent.wait(30) == 0, "it is not kept from its end by a pause"
        finally:
            agent.kill()
    told = supervisors_gone(log)
    assert all(f'how="{how}"' in line for line in told)
    times = [datetime.fromisoformat(line.partition("=")[2].partition(" ")[0]).timestamp() for line in told]
    assert len(times) <= 6
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause >= least for pause, least in zip(pauses, main.PAUSES_S, strict=False)), pauses
    assert main.PAUSES_S[:4] == (0.0, 0.25, 0.5, 1.0)


def test_who_takes_the_place_of_a_supervisor_that_lived_for_a_while_comes_at_once() -> None:
    deaths, pauses = 0, []
    for lived_s in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, main.HEALTHY_S, 0.1):
        deaths, pause = main.another(deaths, lived_s)
        pauses.append(pause)
    assert pauses == [*main.PAUSES_S, main.PAUSES_S[-1], 0.0, main.PAUSES_S[1]]


ALONE = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(600)"


def test_what_runs_ends_without_anybodys_help_when_agent_and_supervisor_are_killed_at_once(
    server: ScriptedServer, agent: AgentProcess, tmp_path: Path
) -> None:
    """Also what has no mark, no parent and no session any more, where there are groups."""
    _, pid, _ = start_program(server, tmp_path)
    hides = cgroups.available() is not None
    if hides:
        server.order(server.define(command=("/bin/sh", "-c", f"env -i {sys.executable} -I -c '{ALONE}' {tmp_path}; sleep 600")))
        until(lambda: len(_named(str(tmp_path))) == 1)
    both = [agent.pid, agent.supervisor()]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in both:
            os.kill(one, number)
    agent.process.wait()
    until(lambda: not alive(pid))
    until(lambda: not marked_processes(agent))
    if hides:
        until(lambda: not _named(str(tmp_path)))
    with running_agent(tmp_path / "agent", server.url) as again:
        ref = server.run(server.define(command=("true",)))
        assert server.outcome(ref) is Outcome.SUCCEEDED
        assert again.stop() == 0


def test_who_ends_what_is_left_is_replaced_when_it_is_killed(server: ScriptedServer, agent: AgentProcess, tmp_path: Path) -> None:
    if cgroups.available() is None:
        pytest.skip("without groups nobody finds what has left everything")
    server.order(server.define(command=("/bin/sh", "-c", f"env -i {sys.executable} -I -c '{ALONE}' {tmp_path}; sleep 600")))
    supervisor = agent.supervisor()
    until(lambda: any(pid in tree.children(supervisor) for pid in _named(str(tmp_path))), what="it has left its parents")
    (first,) = survivors(agent)
    os.kill(first, signal.SIGKILL)
    until(lambda: [pid for pid in survivors(agent) if pid != first])
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in (agent.pid, supervisor):
            os.kill(one, number)
    agent.process.wait()
    until(lambda: not _named(str(tmp_path)), seconds=60)


def survivors(agent: AgentProcess) -> list[int]:
    found = [child for child in tree.children(agent.supervisor()) if b'exec "$PYTHON"' in command_line(child)]
    return [pid for pid in found if (of := tree.stat(pid)) is not None and of.session == pid]


def _named(word: str) -> list[int]:
    """Processes of our Python with this word as their last."""
    found = []
    for pid in tree.table():
        words = command_line(pid).decode(errors="replace").split("\0")
        if words[-2:-1] == [word] and words[1] == "-I":
            found.append(pid)
    return found


@short_lease
def test_a_frozen_supervisor_is_killed_with_its_tasks_when_the_lease_is_over(
    server: ScriptedServer, agent: AgentProcess, tmp_path: Path
) -> None:
    _, pid, _ = start_program(server, tmp_path)
    os.kill(agent.supervisor(), signal.SIGSTOP)
    server.wait(lambda: len(server.registered) >= 2)
    assert not alive(pid)
    assert server.registered[1].boot != server.registered[0].boot


@short_lease
def test_a_frozen_exchange_side_is_fenced_by_the_supervisor(server: ScriptedServer, agent: AgentProcess, tmp_path: Path) -> None:
    ref, pid, _ = start_program(server, tmp_path)
    (survivor,) = survivors(agent)
    os.killpg(survivor, signal.SIGSTOP)  # it would kill the supervisor, and all with it, a moment later
    os.kill(agent.pid, signal.SIGSTOP)
    until(lambda: not alive(pid))
    os.killpg(survivor, signal.SIGCONT)
    late = server.order(server.define(command=("true",)))  # may be waiting in the frozen process' socket
    os.kill(agent.pid, signal.SIGCONT)
    server.wait(lambda: late in server.finished)
    assert server.registered[-1].boot != server.registered[0].boot
    assert ref not in server.finished


@short_lease
def test_an_agent_that_is_cut_off_ends_its_tasks_and_comes_back_as_a_new_boot(
    server: ScriptedServer, agent: AgentProcess, tmp_path: Path
) -> None:
    _, pid, _ = start_program(server, tmp_path)
    server.deaf = True
    until(lambda: not alive(pid))
    server.deaf = False
    server.wait(lambda: len(server.registered) >= 2)
    assert agent.process.poll() is None
    assert server.registered[1].boot != server.registered[0].boot


@short_lease
@pytest.mark.usefixtures("agent")
def test_while_the_database_is_away_a_server_may_ask_to_hold_on(server: ScriptedServer, tmp_path: Path) -> None:
    ref, pid, go = start_program(server, tmp_path)
    server.renew, server.hold = False, True
    beyond_the_lease(server)
    assert alive(pid)
    go.touch()
    server.wait(lambda: ref in server.finished)


def beyond_the_lease(server: ScriptedServer) -> None:
    """Heartbeats come in here after the lease of before is over."""
    since, beats = boottime(), len(server.heartbeats)
    server.wait(lambda: boottime() > since + 1.5 * LEASE_S and len(server.heartbeats) > beats)


@short_lease
def test_a_server_that_asks_to_hold_on_and_can_store_no_report_is_not_left_for_another(server: ScriptedServer, tmp_path: Path) -> None:
    with ScriptedServer(fence_s=LEASE_S) as other, running_agent(tmp_path / "agent", f"{server.url},{other.url}"):
        ref, pid, go = start_program(server, tmp_path, echo="tick")
        server.renew, server.hold = False, True
        server.unavailable = lambda said: not said.heartbeat and bool(said.output or said.started)
        other.unavailable = lambda said: True  # it does not know the agent, and cannot look it up
        beyond_the_lease(server)
        assert alive(pid)
        server.unavailable, server.renew = (lambda said: False), True
        go.touch()
        server.wait(lambda: ref in server.finished)
        assert not other.registered


@short_lease
def test_a_server_that_neither_renews_nor_asks_to_hold_on_is_left_for_another(server: ScriptedServer, tmp_path: Path) -> None:
    with ScriptedServer(fence_s=LEASE_S) as other, running_agent(tmp_path / "agent", f"{server.url},{other.url}"):
        ref, pid, go = start_program(server, tmp_path)
        server.renew = False
        beyond_the_lease(other)
        assert alive(pid)
        go.touch()
        other.wait(lambda: ref in other.finished)
        assert not other.registered, "it is the same boot"


@pytest.mark.parametrize("server", [{"fence_s": 600.0}], indirect=True, ids=["long"])  # so that it is not the end of the lease
@pytest.mark.usefixtures("agent")
def test_an_agent_declared_lost_kills_everything_and_registers_anew(server: ScriptedServer, tmp_path: Path) -> None:
    _, pid, _ = start_program(server, tmp_path)
    server.lost = True
    server.wait(lambda: len(server.registered) >= 2)
    assert not alive(pid)


@pytest.mark.usefixtures("agent")
def test_a_repeated_order_runs_once_and_a_lower_attempt_never(server: ScriptedServer, tmp_path: Path) -> None:
    count = server.define(command=("/bin/sh", "-c", f"echo $HEADWAY_ATTEMPT >> {tmp_path}/runs"))
    ref = server.order(count, task=5000, attempt=2)
    server.wait(lambda: ref in server.finished)
    first = server.finished.pop(ref)
    server.order(count, task=5000, attempt=2)
    older = server.order(count, task=5000, attempt=1)
    last = server.order(count, task=5001, attempt=1)
    server.wait(lambda: last in server.finished)
    assert (tmp_path / "runs").read_text().split() == ["2", "1"]
    server.wait(lambda: ref in server.finished)
    server.wait(lambda: older in server.finished)
    assert server.finished[ref] == first  # a server that has lost it hears it again
    assert server.outcome(older) is Outcome.PRE_EMPTED


@pytest.mark.usefixtures("agent")
def test_a_higher_attempt_waits_for_the_end_of_the_lower(server: ScriptedServer, tmp_path: Path) -> None:
    first, pid, _ = start_program(server, tmp_path)
    check = f"kill -0 {pid} 2>/dev/null && echo overlap || echo alone"
    second = server.order(server.define(command=("/bin/sh", "-c", check)), task=first[0], attempt=2)
    server.wait(lambda: second in server.finished)
    assert server.text(second) == "alone\n"
    assert server.outcome(first) is Outcome.PRE_EMPTED


@pytest.mark.usefixtures("agent")
def test_a_task_that_is_paused_between_two_stages_does_not_begin_the_next(server: ScriptedServer) -> None:
    stages = (Stage("first", ("true",)), Stage("second", ("echo", "second")))
    held = True
    server.unavailable = lambda said: held and bool(said.stages)  # until this is on record, the second does not begin
    ref = server.order(server.define(stages=stages))
    server.wait(lambda: server.put_off)
    pause = server.tell(ref, "pause")
    after = server.order(server.define(command=("true",)))
    server.wait(lambda: after in server.received)  # and so is the pause
    held = False
    server.wait(lambda: server.answers(pause) == ["paused"])
    server.run(server.define(command=("/bin/sleep", "0.5")))
    assert server.text(ref) == ""
    assert server.control(ref, "resume") == "resumed"
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.SUCCEEDED
    assert server.text(ref) == "second\n"


@pytest.mark.usefixtures("agent")
def test_output_that_a_server_cannot_store_does_not_hold_up_the_end_of_a_task(server: ScriptedServer) -> None:
    server.refuses = lambda said: any(b"poison" in piece.data for piece in said.output)
    poisoned = server.run(server.define(command=("echo", "poison")))
    healthy = server.run(server.define(command=("echo", "fine")))
    assert server.outcome(poisoned) is Outcome.SUCCEEDED
    assert (server.text(poisoned), server.text(healthy)) == ("", "fine\n")


def test_sigterm_gives_back_what_waits_and_lets_the_rest_end(server: ScriptedServer, agent: AgentProcess, tmp_path: Path) -> None:
    ref, _, go = start_program(server, tmp_path)
    big = server.define(command=("true",), resources=_whole_node())
    waiting = server.order(big)
    server.wait(lambda: any(held == waiting for beat in server.heartbeats for held in beat.held or []))
    agent.process.terminate()
    server.wait(lambda: waiting in server.returned)
    go.touch()
    assert agent.process.wait(120) == 0
    assert server.outcome(ref) is Outcome.SUCCEEDED
    assert server.heartbeats[-1].draining
    assert not marked_processes(agent)


def test_a_second_sigterm_ends_what_runs_as_pre_empted(server: ScriptedServer, agent: AgentProcess, tmp_path: Path) -> None:
    ref, pid, _ = start_program(server, tmp_path)
    agent.process.terminate()
    server.wait(lambda: server.heartbeats[-1].draining)
    agent.process.terminate()
    assert agent.process.wait(120) == 0
    assert server.outcome(ref) is Outcome.PRE_EMPTED
    assert not alive(pid)


def test_an_agent_whose_exchange_side_is_away_when_it_is_asked_to_end_ends(agent: AgentProcess, server: ScriptedServer) -> None:
    server.wait(lambda: server.registered)
    supervisor = agent.supervisor()
    os.kill(supervisor, signal.SIGSTOP)  # it hears both at once
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()
    os.kill(supervisor, signal.SIGTERM)
    os.kill(supervisor, signal.SIGCONT)
    until(lambda: not marked_processes(agent), seconds=60, what="the agent ends")


@pytest.mark.parametrize("asked", ["supervisor", "exchange side"])
def test_an_agent_that_was_asked_to_end_ends_though_its_exchange_side_is_killed_meanwhile(
    server: ScriptedServer, agent: AgentProcess, tmp_path: Path, asked: str
) -> None:
    ref, _, go = start_program(server, tmp_path)
    os.kill(agent.supervisor() if asked == "supervisor" else agent.pid, signal.SIGTERM)
    server.wait(lambda: server.heartbeats[-1].trouble)
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()
    server.wait(lambda: len(server.registered) >= 2)
    go.touch()
    until(lambda: not marked_processes(agent), seconds=60, what="the agent ends")
    assert server.outcome(ref) is Outcome.SUCCEEDED


def test_an_agent_that_never_reached_a_server_ends_when_asked(tmp_path: Path) -> None:
    with running_agent(tmp_path, "http://127.0.0.1:9", drain_s=1.0) as agent:
        agent.supervisor()
        assert agent.stop() == 0
        assert not marked_processes(agent)


def test_two_agents_of_one_node_on_one_folder_are_refused(server: ScriptedServer, agent: AgentProcess, tmp_path: Path) -> None:
    server.wait(lambda: server.registered)
    with running_agent(tmp_path / "agent", server.url) as second:
        assert second.process.wait(120) != 0
    assert agent.process.poll() is None


def _whole_node() -> object:
    from headway.domain.resources import Resources

    return Resources(cpus_milli=2000)
