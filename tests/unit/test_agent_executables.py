"""Programs that come back without pipes to read, or without an end though they have ended (agent.executables)."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import tree
from headway.agent.clock import boottime
from headway.agent.executables import Executables, reap
from headway.agent.loop import Loop
from headway.agent.meter import QUIET_S
from headway.agent.reports import Outbox
from headway.domain.lifecycle import Outcome
from headway.domain.task import Definition
from headway.wire.exchange import Finished, Order
from tests.support.confined import need_starter
from tests.support.packages import need
from tests.support.waiting import until
from tests.unit.test_agent_spawn import INSTANCE, Node, left

# Its child traces it, and does not let it go when it ends.
TRACED = """
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <unistd.h>
int main(void)
{
    int told[2];
    char word = 0;
    pid_t me = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (pipe(told))
        return 1;
    if (fork() == 0) {
        ptrace(PTRACE_SEIZE, me, 0, 0);
        write(told[1], &word, 1);
        pause();
    }
    return read(told[0], &word, 1) != 1;
}
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    need_starter()
    made = Node(tmp_path)
    yield made
    made.places.close()


@pytest.fixture
def executables(node: Node) -> Executables:
    return Executables(Loop(), Outbox(), node.spawner, node.places, INSTANCE, 1000)


def start(executables: Executables, *command: str) -> None:
    assert executables.spawn([(Order(1, 1, 1, b"null", ""), Definition(name="one", command=command))]) == []


def come(executables: Executables) -> list[Finished]:
    """What is told when something has come back, and a tick at once after it."""
    starts = executables.starts
    while not starts.listen_for(1):
        starts._poll.poll(100)
        starts.hush()
    told = executables.ended([])
    executables.tick(boottime() + QUIET_S)
    return told


def end(executables: Executables) -> Finished:
    told: list[Finished] = []
    while not told:
        told = executables.ended(reap())
        executables.tick(boottime() + QUIET_S)
    [finished] = told
    return finished


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] - taken[0] < len(taken) + 20:  # until there is no hole below
        taken.append(os.dup(taken[0]))
        if len(taken) > 200:
            break
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_a_program_whose_pipes_found_no_room_is_ended_and_its_output_says_why(executables: Executables) -> None:
    start(executables, "/bin/sleep", "600")
    until(lambda: executables.starts.listen_for(1))
    with no_descriptor_left():
        told = come(executables)
    finished = told[0] if told else end(executables)
    assert finished.outcome is Outcome.SIGNAL
    assert "too many open files to read on what this prints" in (finished.error or "")


def test_one_that_ended_by_itself_before_its_pipes_found_no_room_ends_nobody_else(executables: Executables) -> None:
    start(executables, "/bin/sleep", "0.2")
    until(lambda: executables.starts.listen_for(1))  # it lives, and was handed over
    [(process, _)] = executables._starting.values()
    assert process.place is not None
    assert process.place.slot is not None
    os.waitid(os.P_PID, int(Path(f"/proc/self/task/{process.place.slot.thread}/children").read_text()), os.WEXITED | os.WNOWAIT)
    exits = reap()
    with no_descriptor_left():
        [finished] = executables.ended(exits)
        executables.tick(boottime())
        assert executables._places.waiting  # whether somebody lives there cannot be seen now
    assert "Too many open files" in (finished.error or "")
    executables.tick(boottime())
    assert not executables._places.waiting


def test_a_program_is_ended_by_force_though_no_descriptor_is_left_to_look_for_others_of_it(executables: Executables) -> None:
    start(executables, "/bin/sleep", "600")
    executables.wait_for_starts()
    with left(0):
        executables.end(1, force=True)
    [process] = executables.running()
    until(lambda: (of := tree.stat(process.pid)) is None or of.zombie, seconds=10)
    assert end(executables).outcome is Outcome.SIGNAL


def test_a_program_that_is_held_by_its_own_tracer_when_it_ends_is_over_when_that_one_is(executables: Executables, tmp_path: Path) -> None:
    need("gcc")
    (tmp_path / "traced.c").write_text(TRACED)
    subprocess.run(["gcc", "-w", "-o", tmp_path / "traced", tmp_path / "traced.c"], check=True)
    start(executables, str(tmp_path / "traced"))
    assert come(executables) == []
    assert executables.ended(reap()) == []
    executables.tick(boottime() + QUIET_S)
    [process] = executables.running()
    assert process.place is not None
    assert process.place.slot is not None
    for pid in process.place.slot.pids():
        if pid != process.pid:
            os.kill(pid, 9)
    assert end(executables).outcome is Outcome.SUCCEEDED
