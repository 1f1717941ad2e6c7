"""CPU time and memory of process trees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headway.bench import processes

ROLLUP = """55d0a000-7ffd1000 ---p 00000000 00:00 0                    [rollup]
Rss:               10244 kB
Pss:                4021 kB
Pss_Dirty:          1000 kB
"""
SPIN = "import time\nwhile time.process_time() < 0.5: pass\n"


def test_pss_is_read_and_nothing_that_begins_like_it() -> None:
    assert processes.parse_pss(ROLLUP) == 4021 * 1024


def test_a_rollup_without_pss_is_an_error() -> None:
    with pytest.raises(ValueError, match="Pss"):
        processes.parse_pss("Rss: 1 kB\nPss_Anon: 2 kB\n")


def test_a_process_may_have_any_name() -> None:
    text = "42 (a) (b c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5"
    assert processes.parse_stat(text) == processes.Stat(pid=42, parent=7, ticks=124)


def test_a_tree_holds_grandchildren_and_nobody_else() -> None:
    script = "import subprocess, sys; subprocess.run(['cat'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"ready\n")
        child.stdin.flush()
        child.stdout.readline()  # the grandchild runs
        found = {stat.pid for stat in processes.tree([child.pid])}
        child.stdin.close()
    assert child.pid in found
    assert len(found) == 2
    assert os.getpid() not in found


def test_the_time_of_a_child_that_ended_is_not_lost() -> None:
    before = processes.cpu_seconds([os.getpid()])
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert processes.cpu_seconds([os.getpid()]) - before > 0.4  # each of its parts is cut to whole ticks


def test_memory_of_a_tree_grows_with_its_processes() -> None:
    alone = processes.pss_bytes([os.getpid()])
    with subprocess.Popen([sys.executable, "-c", "x = bytearray(64 << 20); print(1, flush=True); input()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        together = processes.pss_bytes([os.getpid()])
        child.stdin.close()
    assert together - alone > 60 << 20
