"""Descriptors that are made for a program: when there are not enough, nothing is left of them, and somebody is told (H7 H11)."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headway.agent import process as process_module
from headway.agent.containers import Containers
from headway.agent.granted import Granted
from headway.agent.group import Group, Limits
from headway.agent.handing import side_by_side
from headway.agent.link import Terms
from headway.agent.loggers import Loggers
from headway.agent.loop import Loop
from headway.agent.output import Capture
from headway.agent.places import Places
from headway.agent.process import Process, Spawner, clean_environment
from headway.agent.reports import Outbox
from headway.agent.runner_box import RunnerBoxes
from headway.agent.runners import Runners
from headway.agent.signals import RunnerEnded
from headway.agent.spawn import Launch, call_for, close_all, complete, launch, pipes
from headway.agent.spools import Spools
from headway.domain.resources import Resources
from headway.domain.task import Definition
from headway.wire.exchange import Order
from tests.support.confined import need_sandbox

INSTANCE = os.urandom(8).hex()  # another for each process of the tests: who makes the groups of one ends what is in them
ENOUGH = 40


def opened() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in found if os.path.lexists(f"/proc/self/fd/{fd}")}  # without the list's own


@contextlib.contextmanager
def left(count: int) -> Iterator[None]:
    """Only so many descriptors can be opened: all numbers below are taken."""
    highest, taken = max(opened()), [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < highest:
        taken.append(os.dup(taken[0]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        close_all(taken)


class Node:
    """What a supervisor starts programs with, without a supervisor."""

    def __init__(self, folder: Path) -> None:
        self.terms, self.told = Terms(sandbox_dir=str(folder / "box")), list[Any]()
        env, loop, outbox = clean_environment(os.environ, INSTANCE), Loop(), Outbox()
        self.places = Places(str(folder), INSTANCE, self.terms, 10)
        containers = Containers([], self.terms, INSTANCE, env, str(folder), "life")
        loggers, spools = Loggers(self.terms, str(folder), env, loop, outbox), Spools(self.terms, str(folder), env)
        granted = Granted({}, {}, containers, loggers, spools)
        self.spawner = Spawner(env, granted, self.places)
        boxes = RunnerBoxes(self.places, granted)
        self.runners = Runners(loop, outbox, self.terms, env, granted, boxes, self.told.append)
        self.runners.tokens = self.spawner.tokens


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.places.close()


@pytest.mark.parametrize("count", range(6))
def test_pipes_are_all_there_or_none(count: int) -> None:
    before = opened()
    with left(count), pytest.raises(OSError, match="Too many open files"):
        pipes(3)
    assert opened() == before


def test_the_ends_to_read_from_do_not_block() -> None:
    made = pipes(2)
    assert [(os.get_blocking(ours), os.get_blocking(theirs)) for ours, theirs in made] == [(False, True)] * 2
    close_all(fd for pair in made for fd in pair)


@pytest.mark.parametrize("isolation", ["", "sandbox"])
def test_an_attempt_that_cannot_be_prepared_leaves_no_descriptor(node: Node, tmp_path: Path, isolation: str) -> None:
    if isolation:
        need_sandbox(tmp_path / "probe")
    definition = Definition(name="true", command=("/bin/true",), isolation=isolation, resources=Resources(disk=2**20))
    process = Process(Order(1, 1, 1, b"null", ""), Capture(1, 1, 1000), 0.0, 0)
    process.place = node.places.take(definition)
    node.places.make_ready(process.place)
    failed = 0
    for count in range(ENOUGH):
        before = opened()
        try:
            with left(count):
                program = node.spawner.prepare(process, definition, alone=False)
        except OSError:
            failed += 1
            assert opened() == before
            assert process.stdout == process.stderr == process.status == -1
        else:
            process.close()
            close_all((program.stdout, program.stderr, *(ours for ours, _ in program.passes)))
            assert opened() == before
            break
    assert failed >= (6 if isolation else 4)


def test_a_program_for_which_no_descriptor_is_left_is_told_and_not_raised() -> None:
    null, before = os.open(os.devnull, os.O_RDWR), opened()
    program = Launch(["/bin/true"], {}, "/", null, null, largest_file=2**20)
    with left(1):
        launch(program)
    assert (program.error, program.pid) == (errno.EMFILE, -1)
    assert opened() == before
    os.close(null)


class Held:
    """A group of version 2, as far as a start knows it."""

    def __init__(self, place: Path) -> None:
        self.place, self.folder = str(place), str(place.parent)


def at_a_door(node: Node, place: Path) -> Launch:
    """A program that must be moved into its group, by `place`, before it begins; it would leave a file there."""
    slot = node.places.slots.take(Limits(), isolated=False)
    assert slot is not None
    null = os.open(os.devnull, os.O_RDWR)
    return Launch(["/usr/bin/touch", f"{place}.began"], {}, "/", null, null, replace(slot, group=cast(Group, Held(place))))


def test_a_program_is_moved_into_its_group_though_no_descriptor_is_left_by_then(node: Node, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    program = at_a_door(node, tmp_path / "cgroup.procs")
    call = call_for(program)
    with left(0):
        side_by_side([call])
        complete(program)
    assert program.error == 0
    assert (tmp_path / "cgroup.procs").read_text() == str(program.pid)
    assert os.waitpid(program.pid, 0)[1] == 0
    assert (tmp_path / "cgroup.procs.began").exists()


def test_a_program_for_whose_group_no_descriptor_is_left_is_told_and_not_started(node: Node, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    program, before = at_a_door(node, tmp_path / "cgroup.procs"), opened()
    for count in range(3):
        with left(count):
            launch(program)
        assert (program.error, program.pid) == (errno.EMFILE, -1)
        assert opened() == before


def test_a_program_that_cannot_be_moved_into_its_group_is_ended_before_it_begins(node: Node, tmp_path: Path) -> None:
    """It went on where nothing limits it, and the supervisor died."""
    program, before = at_a_door(node, Path("/dev/full")), opened()
    program.argv[1] = str(tmp_path / "began")
    launch(program)
    assert program.error == errno.ENOSPC
    assert os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "began").exists()
    assert opened() == before


def test_a_start_that_fails_at_its_end_is_the_end_of_that_task_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = Definition(name="true", command=("/bin/true",))
    process = Process(Order(1, 1, 1, b"null", ""), Capture(1, 1, 1000), 0.0, 0)
    process.place = node.places.take(definition)
    node.places.make_ready(process.place)
    before = opened()
    program = node.spawner.prepare(process, definition, alone=False)

    def fails(program: Launch) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(process_module, "complete", fails)
    assert "Too many open files" in (node.spawner.begun(process, definition, program) or "")
    process.close()
    assert opened() == before


def test_a_runner_for_which_no_descriptor_is_left_ends_with_the_reason(node: Node) -> None:
    for count in range(ENOUGH):
        before = opened()
        with left(count):
            node.runners.start(count, "python", None, {})
        if not node.told:
            break
        [ended] = node.told
        node.told.clear()
        assert isinstance(ended, RunnerEnded)
        assert (ended.runner, "Too many open files" in ended.why) == (count, True)
        assert {fd for fd in opened() - before if not os.readlink(f"/proc/self/fd/{fd}").startswith("/sys/fs/cgroup")} == set()
    assert count > 5
    groups = [os.readlink(f"/proc/self/fd/{fd}").partition(f"headway-{INSTANCE}/")[2] for fd in opened()]
    slots = {group.partition("/")[0] for group in groups if group}
    assert len(slots) <= 1  # those that were left half-way are gone
    for pid in node.runners.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    node.runners.drop_all()
