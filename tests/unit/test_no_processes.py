"""A machine that has no process or descriptor to give for a while: what the supervisor needs is tried again, and nothing ends it (I1)."""

from __future__ import annotations

import errno
import gc
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from headway.agent import disk_watch, scratch, spools
from headway.agent.disk_watch import DiskWatch
from headway.agent.link import Channel, Terms
from headway.agent.loop import Loop
from headway.agent.scratch import Scratch
from headway.agent.spools import Spools
from headway.agent.uplink import Uplink


def nothing_left(*_: Any, **__: Any) -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def open_files() -> int:
    gc.collect()  # what an earlier test let go is closed now, and not while we look
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("call", ["os.posix_spawn", "os.dup", "socket.socketpair"])
def test_an_exchange_side_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    ours, theirs = socket.socketpair()
    uplink = Uplink(Loop(), Channel(ours), 0, lambda frames: None)
    uplink._disconnected(uplink._channel)  # type: ignore[arg-type]
    theirs.close()
    before = open_files()
    monkeypatch.setattr(f"headway.agent.uplink.{call}", nothing_left)
    assert not uplink.start(100.0)
    assert uplink.down
    assert uplink.restart_at > 100.0
    assert open_files() == before


@pytest.mark.parametrize("call", ["os.posix_spawn", "os.dup", "socket.socketpair"])
def test_a_watch_on_disks_that_ended_comes_back_when_there_are_processes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    watch = DiskWatch()
    watch.start()
    first = watch.pid
    watch.add((str(tmp_path),), 2**20, None, os.getpid())
    os.kill(first, 9)
    os.waitpid(first, 0)
    with monkeypatch.context() as without:
        before = open_files()
        without.setattr(f"headway.agent.disk_watch.{call}", nothing_left)
        watch.ended(first)
        assert not watch.pid
        assert open_files() == before - 1  # without the socket of the one that ended
    monkeypatch.setattr(disk_watch, "AGAIN_S", 0.0)
    watch._again_at = 0.0
    watch.look_after()
    second = watch.pid
    assert second not in (0, first)
    watch.close()
    os.waitpid(second, 0)


def test_a_folder_that_nobody_can_remove_now_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Scratch(str(tmp_path / "scratch"))
    first, second = folders.take(), folders.take()
    for folder in (first, second):
        for number in range(scratch.QUICK + 1):
            Path(folder, str(number)).touch()
    with monkeypatch.context() as without:
        without.setattr(scratch.os, "posix_spawnp", nothing_left)
        folders.give_back(first)
    folders.give_back(second)
    for pid in folders.removers:
        os.waitpid(pid, 0)
    assert os.listdir(tmp_path / "scratch") == []


def test_an_output_that_cannot_be_stored_now_is_kept_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "7-1"
    kept.touch()
    waiting = Spools(Terms(output_store="file:///nowhere"), str(tmp_path), {})
    waiting.finished(kept)
    with monkeypatch.context() as without:
        without.setattr(spools.os, "posix_spawn", nothing_left)
        waiting.tick(100.0)
    assert list(waiting._waiting) == [kept]
    assert waiting._again_at > 100.0
