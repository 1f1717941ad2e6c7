"""What lies in a task's folders, counted whole and by what is new (G3)."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.agent import disk, disk_count
from headway.agent.disk_count import AT_ONCE, ENTRY, MANY, SETTLED_NS, Nameless, Seen, count, count_again, count_new, unchanged
from headway.agent.disk_guard import Guard
from headway.agent.disk_hold import Holder
from headway.agent.disk_watch import DiskWatch
from headway.agent.group import Limits
from headway.agent.places import LOOK_S, Place
from headway.agent.scratch import Scratch

LIMIT = 2**30
ENTRIES = 2000


def settle(*folders: Path) -> None:
    """As if they had been changed a while ago."""
    then = time.time_ns() - 10 * SETTLED_NS
    for folder in folders:
        os.utime(folder, ns=(then, then))


def test_what_came_and_what_went_is_counted_by_the_names(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "stays").write_bytes(bytes(3 * ENTRY))
    (below / "goes").write_bytes(b"x")
    seen = count((str(tmp_path),), LIMIT)
    assert seen.total == count((str(tmp_path),), LIMIT).total
    (below / "goes").unlink()
    for n in range(10):
        os.link(tmp_path / "stays", tmp_path / f"link{n}")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_bytes(bytes(ENTRY))
    count_new(seen, LIMIT)
    again = count((str(tmp_path),), LIMIT)
    assert (seen.total, seen.entries, seen.folders) == (again.total, again.entries, again.folders)


def test_what_has_grown_is_found_in_parts(tmp_path: Path) -> None:
    for n in range(AT_ONCE + 50):
        (tmp_path / str(n)).touch()
    seen = count((str(tmp_path),), LIMIT)
    for n in range(AT_ONCE + 50):
        (tmp_path / str(n)).write_bytes(bytes(3 * ENTRY))
    (tmp_path / "0").unlink()
    assert not count_again(seen)
    assert count_again(seen)
    count_new(seen, LIMIT)
    assert seen.total == count((str(tmp_path),), LIMIT).total


@pytest.mark.parametrize("kind", ["files", "folders"])
def test_a_quick_look_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A task of millions of files that failed kept its supervisor for seconds, and its lease is three. Of folders a thousand take 35 ms."""
    below = tmp_path / "below"
    below.mkdir()
    for n in range(ENTRIES):
        (below / str(n)).touch() if kind == "files" else (below / str(n)).mkdir()
    place = Place(str(tmp_path), Scratch(str(tmp_path / "scratch")), None, Limits(), LIMIT)
    place.disk = DiskWatch().add((str(tmp_path),), LIMIT, None, 1)
    clock = itertools.count(step=10 * LOOK_S / ENTRIES)
    monkeypatch.setattr(disk_count, "time", SimpleNamespace(monotonic=lambda: next(clock), time_ns=time.time_ns))
    assert ENTRIES / 25 * ENTRY <= place.on_disk() <= ENTRIES / 5 * ENTRY
    assert count((str(tmp_path),), LIMIT).total >= ENTRIES * ENTRY


def test_a_folder_that_went_away_counts_no_more(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (below / "file").write_bytes(bytes(ENTRY))
    seen = count((str(tmp_path),), LIMIT)
    (below / "file").unlink()
    below.rmdir()
    count_new(seen, LIMIT)
    assert (seen.total, seen.entries) == (0, 0)


def test_a_folder_is_unchanged_only_if_that_is_sure(tmp_path: Path) -> None:
    soon = time.time_ns() + 60 * 10**9  # a machine that stands still between two lines must not make it older
    os.utime(tmp_path, ns=(soon, soon))
    assert not unchanged(count((str(tmp_path),), LIMIT))  # changed a moment ago: one more change might have the same time
    settle(tmp_path)
    seen = count((str(tmp_path),), LIMIT)
    assert unchanged(seen)
    (tmp_path / "new").touch()
    assert not unchanged(seen)


def test_names_below_a_folder_of_very_many_are_not_remembered_and_count_all_the_same(tmp_path: Path) -> None:
    import headway.agent.disk_count as module

    for n in range(20):
        (tmp_path / str(n)).touch()
    before, module.KNOWN = module.KNOWN, 10
    try:
        seen = count((str(tmp_path),), LIMIT)
    finally:
        module.KNOWN = before
    assert not seen.whole
    assert seen.total == 20 * ENTRY


def test_looks_at_a_folder_of_very_many_take_a_part_of_the_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each round it was counted whole: a task with a hundred thousand small files had the watch's CPU, before everything else."""
    looks: list[int] = []
    monkeypatch.setattr(disk, "count", lambda folders, limit: looks.append(limit) or many())
    monkeypatch.setattr(disk, "written", lambda pids: 0)
    watched = disk.Watched((str(tmp_path),), LIMIT, lambda: [2**30])  # nobody: it is stopped when it may be above its limit
    watched.seen, watched.took, watched.look_at = many(), 10 * disk.DEAR_S, time.monotonic() + 600
    holder = Holder(able=False)
    guard = Guard(lambda watched: None, holder)
    disk.check(watched, watched.ask_at, guard, holder)
    assert looks == []
    disk.check(watched, watched.look_at, guard, holder)
    assert looks == [LIMIT]
    monkeypatch.setattr(disk, "written", lambda pids: 2 * LIMIT)  # it may be above its limit by now
    watched.took, watched.look_at = 10 * disk.DEAR_S, time.monotonic() + 6000
    disk.check(watched, watched.ask_at, guard, holder)
    assert looks == [LIMIT, LIMIT]


def many() -> Seen:
    """What was seen of more entries than are remembered."""
    seen = Seen()
    seen.whole, seen.total = False, ENTRY
    return seen


def test_one_that_makes_more_files_than_anyone_thought_may_make_twice_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet machine made more links than were thought possible: it was looked at too late, and 19 % above its limit."""
    found = Seen()
    found.entries, found.total = 1_000_000, 0
    monkeypatch.setattr(disk, "count", lambda folders, limit: found)
    watched = disk.Watched((str(tmp_path),), LIMIT, lambda: [2**30])
    holder = Holder(able=False)
    watched.looked -= 1.0  # all these came within a second
    disk.check(watched, watched.ask_at, Guard(lambda watched: None, holder), holder)
    assert watched.making == pytest.approx(2 * 1_000_000 * ENTRY, rel=0.5)
    watched.took = 0.5
    assert watched.is_near(2**30, fast=True)
    assert not watched.is_near(2**30, fast=False)


def test_a_few_files_of_a_fast_writer_are_never_too_dear_to_look_at(tmp_path: Path) -> None:
    """What processes say they wrote lacks what they are in the middle of: eight of them were 11 % above their limit."""
    watched = disk.Watched((str(tmp_path),), LIMIT, list)
    watched.took, watched.seen.entries = 10 * disk.DEAR_S, 70
    assert watched.dear  # it does not write: then it costs less not to look
    watched.fast_at = watched.looked
    assert not watched.dear
    watched.seen.entries = 100 * disk.FEW
    assert watched.dear


@pytest.mark.parametrize(("gib", "held"), [(0.25, True), (0.5, True), (4, False), (100, False)])
def test_one_that_lives_close_to_a_large_limit_and_does_not_write_is_not_held(tmp_path: Path, gib: float, held: bool) -> None:
    """What it can write before the next look, were that late, is little of such a limit: it keeps all its CPUs."""
    watched = disk.Watched((str(tmp_path),), int(gib * 2**30), list)
    room = 20 * 2**20
    watched.used = watched.limit - room
    assert watched.is_near(room, fast=False) is held
    assert watched.is_near(room, fast=True)
    watched.took, watched.seen.entries = 10 * disk.DEAR_S, 10 * disk.FEW
    assert watched.is_near(room, fast=False)  # a look at so many files takes long


def test_of_many_processes_a_part_is_asked_each_time_and_those_first_that_had_removed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of five hundred, each time, would keep the watch from all other tasks."""
    pids = list(range(1, 8 * MANY + 1))
    holder, size, asked = pids[-1], 100, list[int]()

    def removed(pid: int) -> dict[tuple[int, int], int]:
        asked.append(pid)
        return {(1, 1): size} if pid == holder else {}

    monkeypatch.setattr("headway.agent.disk_count._removed", removed)
    nameless = Nameless()
    found = [nameless.ask(pids) for _ in range(9)]
    assert found[-1] == 100, "it was its turn at last"
    assert set(asked) == set(pids)
    assert len(asked) <= 9 * 2 * MANY
    size = 300
    assert nameless.ask(pids) == 300, "who had one is asked each time"
    assert nameless.ask_all(pids) == 300
    assert nameless.ask(pids[:-1]) == 0, "its process has ended"


def test_who_has_no_wall_any_more_is_watched_as_everybody(tmp_path: Path) -> None:
    watched = disk.Watched((str(tmp_path),), LIMIT, lambda: [2**30], walled=True)
    holder = Holder(able=False)
    guard = Guard(lambda watched: None, holder)
    near: list[bool] = []
    for stands in (True, False, True):  # somebody removes a large snapshot beside it, and the kernel counts nothing any more
        watched.stands = lambda stands=stands: stands
        disk.check(watched, watched.ask_at, guard, holder)
        near.append(watched.is_near(0, fast=True))
    assert near == [False, True, True]


class Acting(Guard):
    """Acts when it is told, as if it had found the task running."""

    def act(self) -> None:
        self._acted = True


def counts(monkeypatch: pytest.MonkeyPatch, guard: Acting, *found: tuple[int, int]) -> None:
    """Each look finds so many bytes in so many entries, and during the first one the guard acts."""
    left = list(found)

    def look(folders: tuple[str, ...], limit: int) -> Seen:
        if len(left) == len(found):
            guard.act()
        seen = Seen()
        seen.total, seen.entries = left.pop(0)
        return seen

    monkeypatch.setattr(disk, "count", look)


def test_a_look_in_which_the_task_was_stopped_is_repeated_while_it_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on with the room of the look's beginning, and had written that already."""
    guard = Acting(lambda watched: None, Holder(able=False))
    counts(monkeypatch, guard, (LIMIT // 2, 1), (2 * LIMIT, 1))
    watched = disk.Watched((str(tmp_path),), LIMIT, lambda: [2**30])
    disk.check(watched, watched.ask_at, guard, Holder(able=False))
    assert watched.over
    assert watched.used == 2 * LIMIT


def test_one_of_many_files_that_was_stopped_during_a_look_gets_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another long look would keep it standing for as long again."""
    guard = Acting(lambda watched: None, Holder(able=False))
    counts(monkeypatch, guard, (LIMIT // 2, disk.FEW + 1))
    watched = disk.Watched((str(tmp_path),), LIMIT, lambda: [2**30])
    now = watched.ask_at
    disk.check(watched, now, guard, Holder(able=False))
    assert watched.used == LIMIT // 2
    assert watched.ask_at == now + disk.SHORTEST_S


def test_a_file_that_is_removed_and_open_in_two_processes_counts_once() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(2**20))
        file.flush()
        with subprocess.Popen(["sleep", "600"], stdin=file) as other:
            try:
                assert Nameless().ask([os.getpid(), other.pid]) == Nameless().ask_all([os.getpid()]) >= 2**20
            finally:
                other.kill()


def test_a_file_that_is_closed_while_its_process_is_asked_hides_none_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that opened and closed files all the time kept a removed one from being counted."""
    closed, scandir = os.open(os.devnull, os.O_RDONLY), os.scandir

    class Closing:
        """What was listed is there no more when it is asked for."""

        def __init__(self, path: str) -> None:
            self._entries = scandir(path)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return self._one_after_another()

        def __exit__(self, *_: object) -> None:
            self._entries.close()

        def _one_after_another(self) -> Iterator[os.DirEntry[str]]:
            listed = list(self._entries)
            assert str(closed) in [entry.name for entry in listed]
            os.close(closed)
            yield from sorted(listed, key=lambda entry: entry.name != str(closed))

    with tempfile.TemporaryFile() as file:
        file.write(bytes(2**20))
        file.flush()
        monkeypatch.setattr("headway.agent.disk_count.os.scandir", Closing)
        found = Nameless().ask([os.getpid()])
        monkeypatch.undo()
    assert found >= 2**20
