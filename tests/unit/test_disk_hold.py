"""Holding the threads of a task on one CPU, and letting them go (G3)."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.agent.disk import Watched
from headway.agent.disk_guard import Guard
from headway.agent.disk_hold import Hold, Holder, go_on, stop
from headway.agent.disk_members import One
from headway.agent.disk_process import ENTRY, adopt
from headway.agent.disk_watch import Watch
from headway.agent.freeze import Freezer
from tests.support.waiting import until

CPUS = os.sched_getaffinity(0)
STARTS = """
import subprocess, sys, threading
for word in sys.stdin:
    if word == "thread\\n": threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("done", flush=True)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        say(running, "hello")
        yield running
        running.kill()


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def where(pid: int) -> list[set[int]]:
    return [os.sched_getaffinity(thread) for thread in One(pid).threads()]


@pytest.mark.skipif(len(CPUS) < 2, reason="on one CPU everything is held")
def test_all_threads_are_held_also_those_that_left_and_each_goes_back_to_where_it_was(process: subprocess.Popen[str]) -> None:
    here, elsewhere = min(CPUS), max(CPUS)
    os.sched_setaffinity(process.pid, {elsewhere})
    hold = Hold(here, One(process.pid).threads, CPUS)
    hold.keep()
    assert where(process.pid) == [{here}]
    say(process, "thread")
    os.sched_setaffinity(process.pid, CPUS)
    hold.keep()
    assert where(process.pid) == [{here}, {here}]
    hold.release()
    assert where(process.pid) == [CPUS, CPUS]  # the first had gone there by itself; the second knew no other place


def test_one_that_has_ended_is_held_by_nobody(process: subprocess.Popen[str]) -> None:
    hold = Hold(min(CPUS), lambda: [process.pid], CPUS)
    hold.keep()
    process.kill()
    process.wait()
    hold.keep()
    hold.release()


def test_who_is_stopped_for_a_look_goes_on_and_who_was_stopped_before_does_not(process: subprocess.Popen[str]) -> None:
    with subprocess.Popen(["sleep", "600"]) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        by_us = stop([process.pid, stopped.pid])
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        go_on(by_us, lambda: False)
        say(process, "hello")
        assert Path(f"/proc/{stopped.pid}/stat").read_text().split()[2] == "T"
        stopped.kill()


def test_whoever_is_to_be_stopped_is_not_asked_for_what_may_have_to_wait(
    process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stat` of a process in the middle of an exec keeps whoever reads it waiting, 0.3 s for one with 6 GiB; the others went on."""
    plain = open

    def refuse(path: str, *words: Any) -> Any:
        assert not path.endswith("/stat")
        return plain(path, *words)

    monkeypatch.setattr("builtins.open", refuse)
    by_us = stop([process.pid])
    monkeypatch.undo()
    assert by_us == [process.pid]
    go_on(by_us, lambda: False)
    say(process, "hello")


def test_a_watch_that_takes_over_wakes_who_was_stopped_by_the_one_before_it(process: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    shared, number = mmap.mmap(-1, ENTRY.size), 7
    ENTRY.pack_into(shared, 0, number, 0, 0, -number, 0)
    watched = Watched((str(tmp_path),), 2**20, One(process.pid).pids, One(process.pid).threads)
    adopt(watched, number, 0, shared, Holder(able=False))
    say(process, "hello")


class Paused:
    """A task that the supervisor can pause by signals alone, and that the watch looks at meanwhile."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.freezer = pid, Freezer()
        self.shared = mmap.mmap(-1, ENTRY.size)
        ENTRY.pack_into(self.shared, 0, 7, 0, 0, 0, 0)
        self.watch = Watch(self.shared, 7, 0, (str(folder),), 2**20, b"", "")
        self.watched = self.look_after()
        self.guard = Guard(lambda watched: None, Holder(able=False))

    def look_after(self) -> Watched:
        watched = Watched(self.watch.folders, self.watch.limit, One(self.pid).pids, One(self.pid).threads)
        adopt(watched, 7, 0, self.shared, Holder(able=False))
        return watched

    def pause(self) -> None:
        self.watch.pause(True)
        self.freezer.freeze("task", [self.pid], None)

    def resume(self) -> None:
        self.watch.pause(False)
        self.freezer.thaw("task", [self.pid], None)

    def stop_for_a_look(self) -> None:
        self.guard.begin(self.watched)
        self.guard.stop(self.watched)
        until(self.stands)

    def stands(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0] == "T"


@pytest.fixture
def paused(process: subprocess.Popen[str], tmp_path: Path) -> Paused:
    return Paused(process.pid, tmp_path)


def test_a_pause_that_comes_while_it_is_stopped_for_a_look_is_not_undone_by_the_end_of_the_look(
    paused: Paused, process: subprocess.Popen[str]
) -> None:
    paused.stop_for_a_look()
    paused.pause()
    paused.guard.end()
    assert paused.stands()  # a signal that lets it go on would have done so at once
    paused.resume()
    say(process, "hello")


def test_nor_by_a_watch_that_takes_over(paused: Paused, process: subprocess.Popen[str]) -> None:
    paused.stop_for_a_look()
    paused.pause()
    paused.look_after()
    assert paused.stands()
    paused.resume()
    say(process, "hello")


@pytest.mark.parametrize("pauses", [1, 2, 3, 4])
def test_whatever_is_said_while_it_is_let_go_on_the_last_word_counts(process: subprocess.Popen[str], pauses: int) -> None:
    """Each pause and each resumption comes between a look at what is wanted and the signal that follows from it."""
    os.kill(process.pid, signal.SIGSTOP)
    said = iter([False] + [number % 2 == 1 for number in range(1, pauses + 1)])
    last = pauses % 2 == 1
    go_on([process.pid], lambda: next(said, last))
    if last:
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] == "T")
        os.kill(process.pid, signal.SIGCONT)
    say(process, "hello")
