"""A crowd of processes stands still while somebody looks at its disk, and is looked at when its memory says that it wrote (G3)."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.agent import disk, disk_freeze
from headway.agent.disk import CROWD, Watched, check
from headway.agent.disk_filling import Filling
from headway.agent.disk_freeze import Standstill
from headway.agent.disk_guard import Guard
from headway.agent.disk_hold import Holder
from headway.agent.disk_process import ENTRY, adopt
from headway.agent.disk_watch import DiskWatch
from tests.support.waiting import until

MIB = 2**20
ROOTS = [root for root in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")) if os.access(root / "cgroup.controllers", os.R_OK)]
ANSWERS = "import sys\nfor word in sys.stdin: print('done', flush=True)"


@pytest.fixture
def group() -> Iterator[Path]:
    if not ROOTS or not os.access(ROOTS[0] / "cgroup.procs", os.W_OK):
        pytest.skip("this machine lets us make no groups of version 2")
    made = ROOTS[0] / f"headway-test-{os.getpid()}"
    made.mkdir()
    yield made
    until(lambda: not (made / "cgroup.procs").read_text().strip())
    made.rmdir()


@pytest.fixture
def process(group: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", ANSWERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        (group / "cgroup.procs").write_text(str(running.pid))
        say(running)
        yield running
        running.kill()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def stands(group: Path) -> bool:
    return "frozen 1" in (group / "cgroup.events").read_text()


def watch_of(process: subprocess.Popen[str], folder: Path, group: Path) -> Watched:
    watched = Watched((str(folder),), MIB, lambda: [process.pid])
    watched.freezer, watched.crowded = Standstill(str(group)), True
    return watched


def test_who_is_in_the_group_stands_still_without_a_signal_and_goes_on(process: subprocess.Popen[str], group: Path) -> None:
    freezer = Standstill(str(group))
    assert freezer.freeze() == {process.pid}
    assert stands(group)
    assert "State:\tT" not in Path(f"/proc/{process.pid}/status").read_text()
    freezer.go_on(lambda: False)
    say(process)


def test_who_is_frozen_can_be_killed(process: subprocess.Popen[str], group: Path) -> None:
    Standstill(str(group)).freeze()
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def test_a_group_that_is_gone_holds_nobody_and_says_so(tmp_path: Path) -> None:
    freezer = Standstill(str(tmp_path / "gone"))
    assert freezer.freeze() == set()
    freezer.go_on(lambda: False)


def test_a_pause_that_comes_during_a_look_outlives_it(process: subprocess.Popen[str], group: Path, tmp_path: Path) -> None:
    watched, paused = watch_of(process, tmp_path, group), [False]
    watched.frozen = lambda: paused[0]
    guard = Guard(lambda watched: None, Holder(able=False))
    guard.begin(watched)
    guard.stop(watched)
    assert stands(group)
    paused[0] = True
    guard.end()
    assert stands(group)
    Standstill(str(group)).go_on(lambda: False)
    say(process)


def test_who_was_stopped_for_a_look_while_a_freezer_paused_it_runs_when_that_lets_go(
    process: subprocess.Popen[str], group: Path, tmp_path: Path
) -> None:
    """Whoever resumes it knows of no signal."""
    watches = DiskWatch()
    watch = watches.add((str(tmp_path),), MIB, Group(str(group)), None)  # type: ignore[arg-type]
    watched = watch_of(process, tmp_path, group)
    watched.crowded = False
    adopt(watched, watch.number, watch.at, watches._shared, Holder(able=False))
    guard = Guard(lambda watched: None, Holder(able=False))
    guard.begin(watched)
    guard.stop(watched)
    watch.pause(True, by_signals=False)
    Standstill(str(group)).freeze()
    guard.end()
    assert stands(group)
    watch.pause(False)
    Standstill(str(group)).go_on(lambda: False)
    say(process)


def test_a_crowd_that_was_frozen_for_a_look_while_it_was_paused_by_signals_runs_when_it_is_resumed(
    process: subprocess.Popen[str], group: Path, tmp_path: Path
) -> None:
    """Whoever resumes it knows of no freezer."""
    watches = DiskWatch()
    watch = watches.add((str(tmp_path),), MIB, Group(str(group)), None)  # type: ignore[arg-type]
    watched = watch_of(process, tmp_path, group)
    adopt(watched, watch.number, watch.at, watches._shared, Holder(able=False))
    guard = Guard(lambda watched: None, Holder(able=False))
    guard.begin(watched)
    guard.stop(watched)
    watch.pause(True, by_signals=False)
    watch.pause(True)
    process.send_signal(signal.SIGSTOP)
    guard.end()
    watch.pause(False)
    process.send_signal(signal.SIGCONT)
    until(lambda: not stands(group))
    say(process)


@pytest.mark.parametrize("pauses", [1, 2, 3, 4])
def test_whatever_is_said_while_it_is_let_go_on_the_last_word_counts(process: subprocess.Popen[str], group: Path, pauses: int) -> None:
    said = iter([False] + [number % 2 == 1 for number in range(1, pauses + 1)])
    last = pauses % 2 == 1
    freezer = Standstill(str(group))
    freezer.freeze()
    freezer.go_on(lambda: next(said, last))
    assert ("1" in (group / "cgroup.freeze").read_text()) is last
    freezer.go_on(lambda: False)
    say(process)


def test_who_is_in_no_group_yet_is_stopped_by_a_signal(process: subprocess.Popen[str], group: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ANSWERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        say(other)
        watched = watch_of(process, tmp_path, group)
        watched.pids = lambda: [process.pid, other.pid]
        guard = Guard(lambda watched: None, Holder(able=False))
        guard.begin(watched)
        guard.stop(watched)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        assert stands(group)
        guard.end()
        say(process)
        say(other)
        other.kill()


def test_few_are_stopped_by_signals(process: subprocess.Popen[str], group: Path, tmp_path: Path) -> None:
    """Whoever freezes waits for those who move somebody from one group to another."""
    watched = watch_of(process, tmp_path, group)
    watched.crowded = False
    guard = Guard(lambda watched: None, Holder(able=False))
    guard.begin(watched)
    guard.stop(watched)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert not stands(group)
    guard.end()
    say(process)


def test_a_watch_that_takes_over_lets_go_whom_the_one_before_it_froze(
    process: subprocess.Popen[str], group: Path, tmp_path: Path
) -> None:
    watched = watch_of(process, tmp_path, group)
    Standstill(str(group)).freeze()
    shared, number = mmap.mmap(-1, ENTRY.size), 7
    ENTRY.pack_into(shared, 0, number, 0, 0, -number, 0)
    adopt(watched, number, 0, shared, Holder(able=False))
    say(process)


class Group:
    """As a slot's, as far as the watch asks for it."""

    place, clock, memory = "", "", ""

    def __init__(self, folder: str) -> None:
        self.folder = self.freezer = folder


def test_a_group_that_a_killed_watch_froze_goes_on_when_its_task_has_ended(process: subprocess.Popen[str], group: Path) -> None:
    """Else the next task in it would never begin."""
    watches = DiskWatch()
    watch = watches.add((str(group),), MIB, Group(str(group)), None)  # type: ignore[arg-type]
    Standstill(str(group)).freeze()
    ENTRY.pack_into(watches._shared, watch.at, watch.number, 0, 0, -watch.number, 0)
    watches.remove(watch)
    say(process)


def test_so_does_one_that_was_left_frozen_because_its_task_was_paused(process: subprocess.Popen[str], group: Path) -> None:
    watches = DiskWatch()
    watch = watches.add((str(group),), MIB, Group(str(group)), None)  # type: ignore[arg-type]
    watch.pause(True)
    Standstill(str(group)).freeze()
    watches.remove(watch)
    until(lambda: not stands(group))
    say(process)


# --- when it is due

VERSIONS: dict[str, Callable[[int, int], str]] = {
    "1": lambda cached, dirty: f"cache {cached}\nrss 5\ndirty {dirty}\nwriteback 0\ntotal_cache 9\n",
    "2": lambda cached, dirty: f"anon 5\nfile {cached}\nfile_mapped 0\nfile_dirty 0\nfile_writeback {dirty}\n",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_came_into_memory_is_summed_up_and_what_went_takes_nothing_away(tmp_path: Path, version: str) -> None:
    file, tells = tmp_path / "memory.stat", VERSIONS[version]
    file.write_text(tells(1000, 500))
    filling = Filling(str(file))
    filling.begin()
    seen = []
    for cached, dirty in ((1000, 500), (3000, 500), (2000, 500), (2500, 0), (2500, 4000)):
        file.write_text(tells(cached, dirty))
        seen.append(filling.grown())
    assert seen == [0, 2000, 2000, 2500, 4000]
    filling.begin()
    assert filling.grown() == 0


def test_a_file_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    filling = Filling(str(tmp_path / "gone"))
    filling.begin()
    assert filling.grown() == 0


class Crowd:
    """More processes than are asked one by one, and a folder that they may have written into."""

    def __init__(self, folder: Path, group: Path) -> None:
        self.folder, self.memory = folder / "task", folder / "memory.stat"
        self.folder.mkdir()
        self.say(0)
        self.running = [subprocess.Popen(["sleep", "600"]) for _ in range(CROWD + 1)]
        for one in self.running:
            (group / "cgroup.procs").write_text(str(one.pid))
        self.watched = Watched((str(self.folder),), 64 * MIB, lambda: [one.pid for one in self.running])
        self.watched.freezer, self.watched.filling = Standstill(str(group)), Filling(str(self.memory))
        self.watched.pids = self.pids
        self.asked = 0
        self.ended: list[bool] = []  # whether it stood still then
        self.guard = Guard(lambda watched: self.ended.append(stands(group)), Holder(able=False))
        self.holder = Holder(able=False)

    def pids(self) -> list[int]:
        return [one.pid for one in self.running]

    def say(self, cached: int) -> None:
        self.memory.write_text(f"cache {cached}\n")

    def look(self) -> bool:
        """Whether it was looked at."""
        before, self.watched.ask_at = self.watched.looked, 0.0
        check(self.watched, time.monotonic(), self.guard, self.holder)
        return self.watched.looked != before

    def end(self) -> None:
        for one in self.running:
            one.kill()
            one.wait()


@pytest.fixture
def crowd(tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    """On a busy machine it takes a while until all of them stand still, and a look does not wait for that for long."""
    monkeypatch.setattr(disk_freeze, "SETTLE_S", 30.0)
    made = Crowd(tmp_path, group)
    yield made
    made.end()


def test_a_crowd_is_looked_at_when_half_of_its_room_came_into_its_memory(crowd: Crowd) -> None:
    assert crowd.look(), "nobody knows it yet"
    crowd.watched.look_at = time.monotonic() + 60
    crowd.say(30 * MIB)
    assert not crowd.look()
    crowd.say(33 * MIB)
    assert crowd.look()


def test_or_into_a_file_that_is_known(crowd: Crowd) -> None:
    """Past the kernel's cache."""
    with open(crowd.folder / "file", "wb", 0) as file:
        assert crowd.look()
        crowd.watched.look_at = time.monotonic() + 60
        file.write(bytes(8 * MIB))
        assert not crowd.look()
        file.write(bytes(26 * MIB))
        assert crowd.look()
    assert crowd.watched.used >= 34 * MIB


def test_what_is_new_in_its_folder_is_not_listed_before_it_stands_still(
    crowd: Crowd, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lists a folder waits for those who make files there: eight of them wrote 200 MiB meanwhile."""
    listed, plain = [], disk.count
    monkeypatch.setattr(disk, "count", lambda *words: listed.append(stands(group)) or plain(*words))
    assert crowd.look()
    crowd.watched.look_at = time.monotonic() + 60
    assert not crowd.look()
    assert listed == [True]


def test_or_when_it_was_not_looked_at_for_long(crowd: Crowd) -> None:
    assert crowd.look()
    crowd.watched.look_at = time.monotonic()
    assert crowd.look()


def test_it_stands_still_meanwhile_and_goes_on(crowd: Crowd, group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stood: list[bool] = []
    monkeypatch.setattr(crowd.watched.nameless, "ask_all", lambda pids: stood.append(stands(group)) or 0)
    assert crowd.look()
    assert stood == [True]
    until(lambda: not stands(group))


def test_who_is_above_the_limit_is_ended_before_it_could_go_on(crowd: Crowd) -> None:
    (crowd.folder / "file").write_bytes(bytes(65 * MIB))
    assert crowd.look()
    assert crowd.watched.over
    assert crowd.ended == [True]


def test_others_are_looked_at_while_freezing_takes_its_time(crowd: Crowd, group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets nobody freeze while it moves somebody from one group to another."""
    relieved, plain = threading.Event(), Standstill.freeze

    def freeze(freezer: Standstill) -> set[int]:
        assert relieved.wait(60)
        return plain(freezer)

    monkeypatch.setattr(Standstill, "freeze", freeze)
    crowd.guard = Guard(lambda watched: None, crowd.holder, lambda watched: relieved.set())
    assert crowd.look()


def test_a_file_without_a_name_is_found_whoever_of_them_has_it(crowd: Crowd) -> None:
    with open(crowd.folder / "gone", "wb", 0) as file:
        crowd.running.append(subprocess.Popen(["sleep", "600"], pass_fds=[file.fileno()]))
        os.unlink(crowd.folder / "gone")
        file.write(bytes(3 * MIB))
    assert crowd.look()
    assert crowd.watched.used >= 3 * MIB


def test_few_processes_are_not_frozen(crowd: Crowd, group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "pids", lambda: [crowd.running[0].pid])
    crowd.watched.pids = crowd.pids
    monkeypatch.setattr(crowd.watched.freezer, "freeze", lambda: pytest.fail("it was frozen"))
    assert crowd.look()
