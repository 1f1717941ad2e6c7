"""Tables of descriptors of the threads that start programs (agent.descriptors), with real threads and programs."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.agent import slots
from headway.agent.descriptors import BELL, NOTHING, Fetched, can_part, part, ring
from headway.agent.group import Limits
from headway.agent.link import Terms
from headway.agent.places import Places
from headway.agent.slots import Slot
from headway.agent.spawn import Launch, close_all, launch, pipes
from tests.support.confined import need_groups

MANY = 200
INSTANCE = os.urandom(8).hex()  # another for each process of the tests: who makes the groups of one ends what is in them


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    need_groups()
    places = Places(str(tmp_path), INSTANCE, Terms(), 10)
    taken = places.slots.take(Limits(), isolated=False)
    assert taken is not None
    yield taken
    places.close()


@pytest.fixture
def crowd() -> Iterator[list[int]]:
    """Open files of this process that no program shall hear of."""
    fds = [os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC) for _ in range(MANY)]
    yield fds
    close_all(fds)


def ran(argv: list[str], slot: Slot, **more: Any) -> tuple[int, bytes]:
    """How it ended, and what it printed."""
    [(ours, theirs)] = pipes(1)
    program = Launch(argv, {}, "/", theirs, theirs, slot, **more)
    launch(program)
    assert program.error == 0
    os.close(theirs)
    code = os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1])
    said = os.read(ours, 4096)
    os.close(ours)
    return code, said


def in_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_the_thread_of_a_slot_has_few_descriptors_however_many_the_process_has(slot: Slot, crowd: list[int]) -> None:
    assert can_part()
    assert slot.parted
    assert len(os.listdir("/proc/self/fd")) > MANY
    table = f"/proc/self/task/{slot.thread}/fd"
    assert len(os.listdir(table)) <= BELL + 3
    assert not any("status" in os.readlink(f"{table}/{name}") for name in os.listdir(table))


def test_a_program_gets_what_was_opened_after_its_thread_parted_and_nothing_stays_with_the_thread(slot: Slot) -> None:
    before = os.listdir(f"/proc/self/task/{slot.thread}/fd")
    told = os.memfd_create("told")
    os.write(told, b"words\n")
    os.lseek(told, 0, os.SEEK_SET)
    assert ran(["/bin/sh", "-c", "cat <&5"], slot, passes=((told, 5),)) == (0, b"words\n")
    os.close(told)
    assert ran(["/bin/sh", "-c", "ls /proc/self/fd"], slot) == (0, b"0\n1\n2\n3\n")  # the last is the list's own
    assert os.listdir(f"/proc/self/task/{slot.thread}/fd") == before


def test_a_descriptor_that_is_gone_is_told_and_its_thread_goes_on(slot: Slot) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    gone = os.dup(null)
    os.close(gone)
    program = Launch(["/bin/true"], {}, "/", null, null, slot, passes=((gone, 11),))
    launch(program)
    assert (program.error, program.pid) == (errno.EBADF, -1)
    assert ran(["/bin/true"], slot) == (0, b"")
    os.close(null)


def test_where_descriptors_cannot_be_fetched_threads_share_those_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crowd: list[int]
) -> None:
    need_groups()
    monkeypatch.setattr(slots, "part", lambda kept: False)
    places = Places(str(tmp_path), INSTANCE, Terms(), 10)
    taken = places.slots.take(Limits(), isolated=False)
    assert taken is not None
    assert not taken.parted
    assert not taken.compiled
    assert ran(["/bin/echo", "words"], taken) == (0, b"words\n")
    places.close()


def test_a_bell_is_heard_whoever_rings() -> None:
    bell = os.eventfd(0, os.EFD_CLOEXEC)
    ring(bell)
    assert os.eventfd_read(bell) == 1
    assert in_a_thread(lambda: (part((bell, bell, bell)), ring(bell))) == (True, None)
    assert os.eventfd_read(bell) == 1
    os.close(bell)


def test_without_a_table_of_its_own_a_thread_uses_the_numbers_of_the_process() -> None:
    shared, own = Fetched(parted=False), Fetched(parted=True)
    assert [shared.number(fd) for fd in (7, 300)] == [7, 300]
    assert [own.number(fd) for fd in (7, 300)] == [BELL + 3, BELL + 4]
    assert shared.fetch() == 0
    assert shared.nothing == NOTHING


def test_a_variable_with_a_nul_is_refused(slot: Slot) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for env in ({"A": "1\0B=2"}, {"A\0B": "1", "C": "2"}):
        program = Launch(["/bin/true"], env, "/", null, null, slot)
        launch(program)
        assert (program.error, program.pid) == (errno.EINVAL, -1)
    os.close(null)
