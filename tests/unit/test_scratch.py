"""Folders for attempts: what one attempt leaves, the next never sees."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

import headway.agent.scratch as scratch_module
from headway.agent import niceness
from headway.agent.scratch import CHECKPOINT, REMOVERS, SETTLED_NS, TOGETHER, Scratch, put
from headway.agent.walls import Walls
from tests.support.waiting import until


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(str(tmp_path / "scratch"))


def settled(scratch: Scratch) -> str:
    """A folder that was used before and whose change time is old enough to tell something."""
    path = scratch.take()
    scratch.give_back(path)
    settles = os.stat(f"{path}/{CHECKPOINT}").st_ctime_ns + SETTLED_NS
    until(lambda: time.time_ns() > settles)
    assert scratch.take() == path
    return path


def test_a_folder_nobody_touched_is_known_as_such_and_used_again(scratch: Scratch) -> None:
    path = settled(scratch)
    assert scratch.untouched(path)
    scratch.give_back(path)
    assert scratch.take() == path


@pytest.mark.parametrize("name", ["result", "checkpoint/state", ".hidden"])
def test_a_file_of_one_attempt_is_gone_for_the_next(scratch: Scratch, name: str) -> None:
    path = settled(scratch)
    Path(path, name).write_text("mine")
    scratch.give_back(path)
    path = scratch.take()
    assert os.listdir(path) == [CHECKPOINT]
    assert os.listdir(f"{path}/{CHECKPOINT}") == []


def test_a_result_is_noticed_also_when_its_own_times_are_old(scratch: Scratch) -> None:
    path = settled(scratch)
    Path(path, "result").write_text("1")
    for changed in (f"{path}/result", path):
        os.utime(changed, (0, 0))
    assert not scratch.untouched(path)


def test_a_folder_that_was_changed_just_before_it_was_taken_is_looked_into(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within one tick of the clock may carry the same time."""
    monkeypatch.setattr(scratch_module, "SETTLED_NS", 600 * 10**9)  # just before, also on a busy machine
    path = scratch.take()
    Path(path, "result").write_text("1")
    scratch.give_back(path)
    path = scratch.take()
    assert not scratch.untouched(path)
    Path(path, "result").write_text("2")
    scratch.give_back(path)
    assert os.listdir(scratch.take()) == [CHECKPOINT]


def test_a_link_in_place_of_the_checkpoint_folder_changes_nothing_elsewhere(scratch: Scratch, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o750)
    path = settled(scratch)
    os.rmdir(f"{path}/{CHECKPOINT}")
    os.symlink(kept, f"{path}/{CHECKPOINT}")
    scratch.give_back(path)
    assert kept.stat().st_mode & 0o777 == 0o750
    assert scratch.take() != path


def test_a_file_is_put_beside_what_a_link_leads_to_not_through_it(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept", tmp_path / "input"
    kept.write_text("here")
    link.symlink_to(kept)
    put(str(link), b"new")
    assert (kept.read_text(), link.read_text(), link.is_symlink()) == ("here", "new", False)


@pytest.mark.parametrize("where", ["", f"{CHECKPOINT}/", "folder/"])
def test_links_are_removed_and_what_they_lead_to_stays(scratch: Scratch, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("not the task's")
    path = scratch.take()
    Path(path, "folder").mkdir()
    Path(path, where, "link").symlink_to(outside)
    scratch.give_back(path)
    assert (outside / "file").read_text() == "not the task's"
    assert os.listdir(scratch.take()) == [CHECKPOINT]


def test_a_link_in_the_place_of_a_folder_of_ours_changes_nothing_where_it_leads(scratch: Scratch, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("not the task's")
    path = scratch.take()
    Path(path, CHECKPOINT).rmdir()
    Path(path, CHECKPOINT).symlink_to(outside)
    scratch.give_back(path)
    assert (outside / "file").exists()
    assert outside.stat().st_mode & 0o777 == 0o755
    assert scratch.take() != path


def test_folders_that_were_closed_by_their_task_are_emptied(scratch: Scratch) -> None:
    path = scratch.take()
    Path(path, "file").write_text("mine")
    os.chmod(f"{path}/{CHECKPOINT}", 0)
    os.chmod(path, 0)
    scratch.give_back(path)
    path = scratch.take()
    assert os.listdir(path) == [CHECKPOINT]
    assert [os.stat(folder).st_mode & 0o777 for folder in (path, f"{path}/{CHECKPOINT}")] == [0o700, 0o700]


def test_nothing_that_may_take_long_is_removed_by_the_supervisor_itself(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps whoever removes a folder until it has forgotten each name that was looked for in it: 2 s for two million."""
    monkeypatch.setattr(scratch_module, "QUICK_BYTES", 2**16)
    removed: list[object] = []
    for name in ("rmdir", "unlink"):
        plain = getattr(os, name)
        monkeypatch.setattr(scratch_module.os, name, lambda *a, plain=plain, **k: removed.append(a) or plain(*a, **k))
    paths = [scratch.take() for _ in range(3)]
    Path(paths[0], "folder").mkdir()
    Path(paths[1], "large").write_bytes(bytes(2**17))
    for n in range(scratch_module.QUICK + 1):
        Path(paths[2], str(n)).touch()
    for path in paths:
        scratch.give_back(path)
    assert removed == []
    assert not any(map(os.path.exists, paths))
    assert len(scratch.removers) == 3
    for pid in scratch.removers:
        assert os.waitpid(pid, 0) == (pid, 0)
    assert os.listdir(scratch.root) == []


def test_what_is_removed_is_no_longer_beside_the_others(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a folder goes, nothing can be made or removed beside it."""
    asked: list[str] = []
    monkeypatch.setattr(scratch_module, "_start_removing", lambda paths: asked.extend(paths) or 2**30)
    path = scratch.take()
    Path(path, "folder").mkdir()
    scratch.give_back(path)
    (away,) = asked
    assert os.path.dirname(away) == scratch.root
    (inside,) = Path(away).iterdir()
    assert (inside / "folder").is_dir()


def test_a_few_processes_remove_what_was_left_and_nothing_is_forgotten(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt that left a folder had one, however many there were."""
    started: list[list[str]] = []
    monkeypatch.setattr(scratch_module, "_start_removing", lambda paths: started.append(list(paths)) or 2**30 + len(started))
    paths = [scratch.take() for _ in range(2 * REMOVERS + TOGETHER)]
    for path in paths:
        Path(path, "folder").mkdir()
        scratch.give_back(path)
    assert len(started) == len(scratch.removers) == REMOVERS
    scratch.removed(2**29)  # none of these
    assert len(started) == REMOVERS
    for pid in sorted(scratch.removers):
        scratch.removed(pid)
    assert [len(some) for some in started] == [1] * REMOVERS + [TOGETHER, REMOVERS]
    assert list(itertools.chain(*started)) == [f"{path}.away" for path in paths]


def test_what_removes_folders_is_no_more_important_than_tasks(
    scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0) + 3
    monkeypatch.setattr(niceness, "USUAL", usual)
    (tmp_path / "rm").write_text(f'#!/bin/sh\nnice >{tmp_path}/said\nexec /bin/rm "$@"\n')
    (tmp_path / "rm").chmod(0o700)
    monkeypatch.setattr(scratch_module.os, "defpath", f"{tmp_path}:{os.defpath}")
    path = scratch.take()
    Path(path, "folder").mkdir()
    scratch.give_back(path)
    for pid in scratch.removers:
        os.waitpid(pid, 0)
    assert (tmp_path / "said").read_text() == f"{usual}\n"
    assert os.listdir(scratch.root) == []


def test_a_folder_that_could_not_be_made_whole_leaves_nothing(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.mkdir

    def full(path: str, *rest: int) -> None:
        if path.endswith(CHECKPOINT):
            raise OSError(28, "No space left on device")
        plain(path, *rest)

    monkeypatch.setattr(scratch_module.os, "mkdir", full)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            scratch.take()
    for pid in scratch.removers:
        os.waitpid(pid, 0)
    assert os.listdir(scratch.root) == []


class Kernel(Walls):
    """Walls of a kernel that does nothing, and refuses sometimes."""

    def __init__(self, root: str) -> None:
        super().__init__(root, "")
        self.refuses, self.set = False, dict[str, int]()

    def make(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)
        self._numbers[path] = 1

    def _set(self, path: str, most: int) -> bool:
        if not self.refuses:
            self.set[path] = most
        return not self.refuses


@pytest.fixture
def kernel(scratch: Scratch) -> Kernel:
    scratch._walls = made = Kernel(scratch.root)
    made.clean = lambda path: True  # type: ignore[method-assign]
    return made


def test_a_folder_whose_wall_cannot_be_lifted_is_not_used_again(scratch: Scratch, kernel: Kernel) -> None:
    """The next task met the wall of the one before, and it was told nowhere."""
    path = scratch.take()
    scratch.wall(path, 2**20)
    scratch.give_back(path)
    kernel.refuses = True
    fresh = scratch.take()
    assert fresh not in (path, *kernel.set)
    assert not os.path.exists(path)
    scratch.give_back(fresh)
    assert scratch.take() == fresh, "there was no wall around it"
    for pid in scratch.removers:
        os.waitpid(pid, 0)


def test_a_wall_that_was_lifted_stands_no_more(scratch: Scratch, kernel: Kernel) -> None:
    path = scratch.take()
    scratch.wall(path, 2**20)
    scratch.give_back(path)
    assert scratch.take() == path
    assert kernel.set[path] > 2**60
