"""A runner whose folder is full begins nothing more: the supervisor knows only by their number which orders come back (G3 I1)."""

from __future__ import annotations

import mmap
import socket
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from headway.agent import runner as runner_module
from headway.agent.link import Frames
from headway.agent.places import Place
from headway.agent.reports import Outbox, error_text, items
from headway.agent.reports import rows as rows_of
from headway.agent.runner import Printed, Runner
from headway.agent.runners import RunnerProcess, Runners
from headway.agent.signals import RunnerDid
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import ErrorInfo, Finished, Order, encode_msgpack


def test_what_comes_after_that_goes_back_before_any_of_it_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that runs functions took one meanwhile: it ran twice, and another one never."""
    ours, theirs = socket.socketpair()
    runner = Runner(theirs, memoryview(bytearray(16)).cast("q"), tasks=10, growth=2**30)
    for name in ("_stdout", "_stderr"):
        monkeypatch.setattr(runner_module, name, Printed(runner, 1), raising=False)
    could_begin: list[int] = []
    runner.wake = SimpleNamespace(put=lambda on: could_begin.append(len(runner.todo)))  # type: ignore[assignment]
    runner.full = True
    runner.take(["run", {}, [[7, 1, 5, b""], [8, 1, 5, b""]]])
    assert not any(could_begin)
    assert not runner.todo
    assert [msgspec.msgpack.decode(body) for body in Frames().feed(memoryview(ours.recv(4096)))] == [["back", 2]]
    ours.close()
    theirs.close()


class Looked:
    """A place whose folder holds so much, and which counts how often somebody looks."""

    isolated = True

    def __init__(self, held: int) -> None:
        self.held, self.looks = held, 0
        self.disk = SimpleNamespace(limit=100)

    def on_disk(self) -> int:
        self.looks += 1
        return self.held


class Told:
    """A runner as its supervisor hears it, with tasks from 1 on, and what becomes of what it says."""

    def __init__(self, held: int) -> None:
        self.place, self.news, self.stimuli = Looked(held), Outbox(), list[RunnerDid]()
        ours, theirs = socket.socketpair()
        self.runner = RunnerProcess(1, 0, cast(Place, self.place), ours, mmap.mmap(-1, mmap.PAGESIZE), (-1, -1))
        self.runners = Runners.__new__(Runners)
        self.runners._outbox, self.runners._handle = self.news, self.stimuli.append  # type: ignore[assignment]
        self.runners._read_pipes = lambda runner: None  # type: ignore[method-assign]
        self.runners.batch_of = lambda number: [Order(task, 1, 5, b"") for task in range(len(self.stimuli) + 1, 100)]
        theirs.close()

    def hear(self, ends: list[tuple[Outcome, str | None]]) -> list[int]:
        """Each in a message of its own; returns their outcomes as they are told."""
        first = len(self.stimuli) + 1
        rows = [Finished(task, 1, how, 1, 2, b'"EFBIG"', error=said) for task, (how, said) in enumerate(ends, first)]
        self.runners._hear(self.runner, [encode_msgpack(["did", 1, items([row]), 1, 1, False, []]) for row in rows])
        report = self.news.take()
        assert report is not None
        return [row[2] for part in report.parts for row in rows_of(part.items, part.count)]


FULL = Outcome.ERROR, error_text(ErrorInfo("OSError", "[Errno 27] File too large"))
OTHER = Outcome.ERROR, error_text(ErrorInfo("ValueError", "no"))
WELL = Outcome.SUCCEEDED, None  # its result speaks of a full folder, as every result here does


def test_nobody_looks_into_a_folder_for_ends_that_could_not_be_for_its_limit() -> None:
    """A result that speaks of it, said a thousand times together, kept the supervisor from its lease."""
    told = Told(held=1000)
    assert told.hear([WELL, OTHER]) == [Outcome.SUCCEEDED, Outcome.ERROR]
    assert told.place.looks == 0
    assert not any(did.tired for did in told.stimuli)


def test_the_folder_of_a_runner_is_looked_into_once() -> None:
    told = Told(held=50)
    assert told.hear([FULL] * 20) == [Outcome.ERROR] * 20
    assert told.place.looks == 1
    assert told.stimuli[0].tired, "the next tasks go to another one, in an empty folder"


def test_what_meets_a_folder_that_was_found_full_has_ended_for_that() -> None:
    told = Told(held=100)
    assert told.hear([FULL, WELL, OTHER, FULL]) == [Outcome.DISK_FULL, Outcome.SUCCEEDED, Outcome.ERROR, Outcome.DISK_FULL]
    assert told.place.looks == 1
