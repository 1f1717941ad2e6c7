"""A runner whose folder is full begins nothing more: the supervisor knows only by their number which orders come back (G3 I1)."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import msgspec
import pytest

from headway.agent import runner as runner_module
from headway.agent.link import Frames
from headway.agent.runner import Printed, Runner


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
