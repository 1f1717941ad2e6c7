"""Who ends what a killed supervisor left is waited for by the next one, and woken if it stands still (H2 H7)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from headway.agent import survivor


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
