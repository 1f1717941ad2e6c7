"""What a busy machine takes from a function is not taken for the function's own (H3)."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from headway.agent import run_delay
from headway.agent.run_delay import RunDelay
from tests.support.waiting import until

BUSY = "while True: pass"


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.skipif(not os.path.exists(run_delay.COUNTERS), reason="this kernel does not count it")
def test_the_wait_for_a_cpu_beside_somebody_else_is_counted() -> None:
    usual = os.sched_getaffinity(0)
    cpu = min(usual)
    busy = subprocess.Popen([sys.executable, "-S", "-c", BUSY], preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    try:
        os.sched_setaffinity(0, {cpu})
        delay = RunDelay()

        def waited() -> bool:
            spin(0.02)
            return delay.since() > 1_000_000

        until(waited)
    finally:
        os.sched_setaffinity(0, usual)
        busy.kill()
        busy.wait()


def test_a_kernel_that_does_not_count_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_delay, "COUNTERS", "/nowhere")
    assert RunDelay().since() == 0


def test_a_function_that_closes_what_is_not_its_own_changes_nothing() -> None:
    delay = RunDelay()
    if delay._file >= 0:
        os.close(delay._file)
    assert delay.since() == 0
