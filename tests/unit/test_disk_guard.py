"""While a look at a task's folder has to wait, what is known to lie there is counted all the same (G3)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent.disk import Watched
from headway.agent.disk_count import ENTRY, count
from headway.agent.disk_guard import Guard, at_least
from headway.agent.disk_hold import Holder
from headway.agent.disk_members import One
from tests.support.waiting import until

MIB = 2**20
WRITER = """
import os, sys
for path in sys.argv[1:]:
    os.write(os.open(path, os.O_WRONLY | os.O_CREAT), bytes(2**20))
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task").mkdir()
    return tmp_path / "task"


@pytest.fixture
def writer(folder: Path, tmp_path: Path) -> Iterator[int]:
    """A process that has three files of one MiB open: two in the folder, one elsewhere."""
    paths = [folder / "one", folder / "two", tmp_path / "elsewhere"]
    process = subprocess.Popen([sys.executable, "-c", WRITER, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    yield process.pid
    process.communicate()


def test_open_files_of_the_folder_and_known_names_count_once(folder: Path, writer: int) -> None:
    watched = Watched((str(folder),), 100 * MIB, lambda: [writer])
    assert 2 * MIB <= at_least(watched) < 2.5 * MIB
    (folder / "closed").write_bytes(bytes(MIB))
    watched.seen = count(watched.folders, watched.limit)
    assert watched.seen.total >= 3 * MIB
    assert sorted(watched.seen.folders[str(folder)]) == ["closed", "one", "two"]
    assert 3 * MIB <= at_least(watched) < 3.5 * MIB
    (folder / "closed").unlink()
    assert at_least(watched) < 2.5 * MIB


def test_who_is_above_its_limit_while_a_look_lasts_is_told_of(folder: Path, writer: int) -> None:
    told, seen = threading.Event(), []
    guard = Guard(lambda watched: (seen.append(watched), told.set()), Holder(able=False))
    guard.begin(Watched((str(folder),), 100 * MIB, lambda: [writer]))  # has room
    guard.end()
    small = Watched((str(folder),), MIB, lambda: [writer])
    guard.begin(small)
    assert told.wait(60)
    guard.end()
    assert set(map(id, seen)) == {id(small)}
    assert small.over
    assert small.used >= 2 * MIB


class Asked(dict[str, dict[str, int]]):
    """Tells when somebody begins to count."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def items(self):  # type: ignore[no-untyped-def]
        self.told.set()
        return super().items()


def test_the_guard_lives_on_when_a_folder_goes_away(folder: Path, writer: int) -> None:
    told, gone = threading.Event(), Watched((str(folder / "gone"),), MIB, lambda: [writer])
    gone.seen.folders = asked = Asked()
    guard = Guard(lambda watched: told.set(), Holder(able=False))
    guard.begin(gone)
    assert asked.told.wait(60)
    guard.begin(Watched((str(folder),), MIB, lambda: [writer]))
    assert told.wait(60)
    guard.end()


def test_names_that_come_and_go_while_they_are_counted_do_not_end_the_guard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch counts what is new at the same time, in the other thread, and changes the very names that are gone through."""
    for n in range(3):
        (folder / str(n)).touch()
    watched = Watched((str(folder),), MIB, list)
    watched.seen = count(watched.folders, watched.limit)
    known, plain = watched.seen.folders[str(folder)], os.lstat

    def lstat(path: str) -> os.stat_result:
        known[f"new{len(known)}"] = 0
        return plain(path)

    monkeypatch.setattr("headway.agent.disk_guard.os.lstat", lstat)
    assert at_least(watched) == 3 * ENTRY


def test_one_that_stood_still_by_itself_is_not_left_marked_as_stopped_by_a_look(folder: Path) -> None:
    """Else a watch that takes over would wake what somebody else has paused."""
    told: list[bool] = []
    watched = Watched((str(folder),), MIB, list)
    watched.tell_stopped = told.append
    guard = Guard(lambda watched: None, Holder(able=False))
    guard.begin(watched)
    guard.stop(watched)
    guard.end()
    assert told == [True, False]


APPENDER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in range(48): os.write(fd, bytes(2**20))
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU everything is held")
def test_who_comes_close_to_its_limit_while_a_look_lasts_is_held(folder: Path) -> None:
    """A look waited 150 ms for the lock of a folder, and the task wrote on two CPUs meanwhile."""
    holder = Holder(able=True)
    guard = Guard(lambda watched: None, holder)
    words = [sys.executable, "-c", APPENDER, str(folder / "file")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        watched = Watched((str(folder),), 64 * MIB, One(process.pid).pids, One(process.pid).threads)
        told = []
        watched.tell_stopped = told.append
        assert process.stdout.readline() == b"written\n"
        watched.looked = time.monotonic() + 60  # it has written all this since, however late the guard looks
        guard.begin(watched)
        try:
            until(lambda: watched.hold is not None)
            assert os.sched_getaffinity(process.pid) == {watched.hold.cpu}
            until(lambda: told == [False, True])  # held, and then stopped, as the look goes on waiting
        finally:
            guard.end()
            if watched.hold is not None:
                holder.release(watched.hold)
        process.kill()
    assert len(os.sched_getaffinity(0)) > 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU everything is held")
def test_who_could_have_reached_its_limit_while_one_of_its_processes_is_waited_for_is_held(folder: Path) -> None:
    """Asking for the files of a process in the middle of an exec took 440 ms, and the guard would have had to wait with the watch."""
    holder, answered = Holder(able=True), threading.Event()
    guard = Guard(lambda watched: None, holder)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        watched = Watched((str(folder),), 64 * MIB, One(process.pid).pids, One(process.pid).threads)
        guard.begin(watched)
        asks = threading.Thread(target=guard.asking, args=(lambda pids: int(answered.wait()), watched.pids()))
        asks.start()
        try:
            until(lambda: watched.hold is not None)
            assert os.sched_getaffinity(process.pid) == {watched.hold.cpu}
        finally:
            answered.set()
            asks.join()
            guard.end()
            if watched.hold is not None:
                holder.release(watched.hold)
        process.kill()


def test_who_stopped_one_that_ran_during_a_look_says_so_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look goes by it: what it has counted until then is old. It may run while the one that looks waits, and does not otherwise."""
    stopped, holder = threading.Event(), Holder(able=True)
    monkeypatch.setattr("headway.agent.disk_guard.stop", lambda pids: stopped.set() or [])
    watched = Watched((str(folder),), 64 * MIB, list, list)
    watched.hold = holder.hold(watched.threads)
    guard = Guard(lambda watched: None, holder)
    try:
        guard.begin(watched)
        assert stopped.wait(60)
        assert guard.acted()
        assert not guard.end()
        stopped.clear()
        monkeypatch.setattr(guard, "_unused", lambda: 5.0)  # the look has its CPU for itself, however long it takes
        guard.begin(watched)
        guard._look_on(watched, time.monotonic())
        assert not guard.end()
        assert not stopped.is_set()
    finally:
        holder.release(watched.hold)
