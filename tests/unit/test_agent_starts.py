"""Programs that are being started while the supervisor goes on (agent.starts), with real programs."""

from __future__ import annotations

import os
import select
import threading

import pytest

from headway.agent.handing import Calls, side_by_side
from headway.agent.spawn import Launch
from headway.agent.starter import Starter
from headway.agent.starts import Starts

PATIENCE_S = 60.0


@pytest.fixture
def null():
    fd = os.open(os.devnull, os.O_RDWR)
    yield fd
    os.close(fd)


def program(null: int, argv: list[str], **more) -> Launch:
    return Launch(argv, {}, "/", null, null, **more)


def exit_code(launch: Launch) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(launch.pid, 0)[1])


def test_all_that_were_given_begin_and_each_is_taken_once(null):
    starts, given, begun = Starts(Starter()), [program(null, ["/bin/sh", "-c", f"exit {number}"]) for number in range(20)], []
    starts.give(given)
    starts.wait(lambda: begun.extend(starts.take()))
    assert sorted(map(id, begun)) == sorted(map(id, given))
    assert [exit_code(one) for one in given] == list(range(20))
    assert starts.take() == []
    assert starts.over(starts.turn)


def test_one_that_cannot_begin_is_told_with_its_error(null):
    starts, begun = Starts(Starter()), []
    starts.give([program(null, ["/does/not/exist"])])
    starts.wait(lambda: begun.extend(starts.take()))
    assert [(one.error, one.pid) for one in begun] == [(2, -1)]


def test_the_last_of_a_turn_may_begin_later_than_what_is_done_next(null, tmp_path):
    """Here one waits for a pipe that nobody has opened; the others have begun, and those after it begin meanwhile."""
    os.mkfifo(tmp_path / "pipe")
    starts = Starts(Starter())
    quick = [program(null, ["/bin/true"]) for _ in range(3)]
    starts.give([*quick, slow := program(null, ["/bin/true"], opens=((0, str(tmp_path / "pipe")),))])
    first = starts.turn
    begun = starts.take()
    assert slow not in begun
    assert [exit_code(one) for one in begun] == [0] * len(begun)
    assert not starts.over(first)
    writer = threading.Thread(target=lambda: os.close(os.open(tmp_path / "pipe", os.O_WRONLY)))
    writer.start()
    assert select.select([starts.woken], [], [], PATIENCE_S)[0]
    starts.hush()
    begun += starts.take()
    writer.join(PATIENCE_S)
    assert set(begun) == {*quick, slow}
    assert exit_code(slow) == 0
    assert starts.over(first)


def test_work_that_is_handed_to_threads_is_all_done_before_side_by_side_returns():
    queues, done = [Calls() for _ in range(4)], []

    def serve(calls: Calls) -> None:
        while (work := calls.get()) is not None:
            work[0]()
            work[1]()

    threads = [threading.Thread(target=serve, args=(calls,)) for calls in queues]
    for thread in threads:
        thread.start()
    for round_ in range(200):
        side_by_side(
            [(calls, lambda number=number, round_=round_: done.append((round_, number))) for number, calls in enumerate(queues)]
        )
        assert sorted(done[-4:]) == [(round_, number) for number in range(4)]
    for calls, thread in zip(queues, threads, strict=True):
        calls.put(None)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
