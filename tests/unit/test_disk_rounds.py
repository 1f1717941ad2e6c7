"""A look at one task that has to wait keeps nobody from looking at the others (G3)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import disk_watch
from headway.agent.disk_watch import DiskWatch
from tests.support.waiting import until

KIB = 2**10
TASK = [sys.executable, "-c", "import sys; sys.stdin.read()"]
# As if every process were in the middle of an exec: whoever asks the kernel for its files has to wait.
EXECS = """
import os, time
from headway.agent import disk_count
ask = disk_count._removed
def removed(pid):
    open(f"{folder}/asked-{pid}", "w").close()
    while not os.path.exists("{folder}/over"): time.sleep(0.01)
    return ask(pid)
disk_count._removed = removed
"""


class Tasks:
    def __init__(self, folder: Path, watch: DiskWatch) -> None:
        self._folder, self._watch = folder, watch
        self.running: list[subprocess.Popen[bytes]] = []

    def begin(self, *, written: int, limit: int) -> subprocess.Popen[bytes]:
        folder = self.folder(len(self.running))
        folder.mkdir()
        (folder / "file").write_bytes(bytes(written))
        task = subprocess.Popen(TASK, stdin=subprocess.PIPE)
        self.running.append(task)
        self._watch.add((str(folder),), limit, None, task.pid)
        self._watch.say()
        return task

    def begin_one_that_is_waited_for(self) -> subprocess.Popen[bytes]:
        task = self.begin(written=KIB, limit=32 * KIB)
        until((self._folder / f"asked-{task.pid}").exists)
        return task

    def folder(self, number: int) -> Path:
        return self._folder / f"task-{number}"

    def wait_for_none_any_more(self) -> None:
        (self._folder / "over").touch()


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    monkeypatch.setattr(disk_watch, "_WATCH", EXECS.replace("{folder}", str(tmp_path)) + disk_watch._WATCH)
    watch = DiskWatch()
    watch.start()
    tasks = Tasks(tmp_path, watch)
    yield tasks
    tasks.wait_for_none_any_more()
    pid = watch.pid
    watch.close()
    os.waitpid(pid, 0)
    for task in tasks.running:
        task.kill()
        task.communicate()


def test_one_above_its_limit_is_ended_while_looks_at_others_have_to_wait(tasks: Tasks) -> None:
    waited_for = [tasks.begin_one_that_is_waited_for() for _ in range(3)]
    above = tasks.begin(written=64 * KIB, limit=32 * KIB)
    until(lambda: above.poll() is not None)
    assert [task.poll() for task in waited_for] == [None, None, None]


def test_one_that_was_waited_for_is_looked_at_again(tasks: Tasks) -> None:
    waited_for = tasks.begin_one_that_is_waited_for()
    (tasks.folder(0) / "more").write_bytes(bytes(64 * KIB))
    tasks.wait_for_none_any_more()
    until(lambda: waited_for.poll() is not None)
