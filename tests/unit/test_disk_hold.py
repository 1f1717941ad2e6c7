"""Holding the threads of a task on one CPU, and letting them go (G3)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent.disk_hold import Hold, still
from headway.agent.disk_members import One

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
        os.kill(stopped.pid, 19)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        with still([process.pid, stopped.pid]):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        say(process, "hello")
        assert Path(f"/proc/{stopped.pid}/stat").read_text().split()[2] == "T"
        stopped.kill()
