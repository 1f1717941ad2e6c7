"""Who ends what a killed supervisor left is waited for by the next one, and woken if it stands still (H2 H7)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from headway.agent import survivor
from tests.unit.test_agent_spawn import ENOUGH, left, opened
from tests.unit.test_no_processes import nothing_left


def test_a_survivor_that_was_stopped_is_woken_by_the_next_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivor, "WAIT_S", 120.0)
    instance = f"test-{os.getpid()}"
    first = survivor.start(instance, str(tmp_path))
    os.kill(first.pid, signal.SIGSTOP)
    os.close(first.pipe)  # as when the supervisor is killed
    began = time.monotonic()
    second = survivor.start(instance, str(tmp_path))
    took = time.monotonic() - began
    second.dismiss()
    first.timer.close()
    for one in (first, second):
        os.waitpid(one.pid, 0)
    assert took < 100, "it was waited for until patience was over"


def test_a_survivor_that_cannot_be_started_leaves_no_descriptor_and_no_lock(tmp_path: Path) -> None:
    """Each try left some, once a second, until nothing could be opened; and the lock, for which the next one waits."""
    instance = f"test-{os.getpid()}"
    before = opened()
    for count in range(ENOUGH):
        try:
            with left(count):
                started = survivor.start(instance, str(tmp_path), wait_s=0.0)
        except OSError:
            assert opened() == before
        else:
            break
    assert count >= 7
    started.dismiss()
    os.waitpid(started.pid, 0)
    assert opened() == before


def test_a_survivor_for_which_there_is_no_process_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened()
    monkeypatch.setattr(survivor.os, "posix_spawn", nothing_left)
    with pytest.raises(BlockingIOError):
        survivor.start(f"test-{os.getpid()}", str(tmp_path), wait_s=0.0)
    assert opened() == before
