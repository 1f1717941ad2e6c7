"""What the machine does without Headway, measured in between: its drift shows as a ratio, spawning has a yardstick."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import asyncpg

SPAWN_FLOOR = """
import os, sys, time
true, env = "/bin/true", {}
end = time.monotonic() + float(sys.argv[1])
count = 0
while time.monotonic() < end:
    for _ in range(20):
        os.waitpid(os.posix_spawn(true, [true], env), 0)
    count += 20
print(count)
"""
CPU_S = 0.1
COMMITS = 100


@dataclass(frozen=True)
class Floor:
    """The machine at one moment: rounds of a fixed loop, and single-row commits with fsync."""

    loops_per_s: float
    commits_per_s: float

    def against(self, other: Floor) -> float:
        """How quick this moment was beside another: the mean of both ratios."""
        return (self.loops_per_s / other.loops_per_s + self.commits_per_s / other.commits_per_s) / 2


async def measure(connection: asyncpg.Connection) -> Floor:
    return Floor(loops_per_s=_loops(), commits_per_s=await _commits(connection))


def spawns_per_s(seconds: float) -> float:
    """`posix_spawn` and `waitpid` of /bin/true, one loop for each core, each in a process of its own.

    The loops run in bare interpreters: a small parent forks quickest, and a floor must flatter nobody.
    """
    command = [sys.executable, "-S", "-E", "-c", SPAWN_FLOOR, str(seconds)]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)]
    counts = [int(loop.communicate()[0]) for loop in loops]
    return sum(counts) / seconds


def _loops() -> float:
    count, end = 0, time.perf_counter() + CPU_S
    while time.perf_counter() < end:
        sum(range(2000))
        count += 1
    return count / CPU_S


async def _commits(connection: asyncpg.Connection) -> float:
    """A logged table of our own: a temporary one would not wait for the disk."""
    await connection.execute("create schema if not exists headway_bench")
    await connection.execute("create table if not exists headway_bench.floor (at timestamptz, filler text)")
    try:
        began = time.perf_counter()
        for _ in range(COMMITS):
            await connection.execute("insert into headway_bench.floor values (now(), repeat('x', 100))")
        return COMMITS / (time.perf_counter() - began)
    finally:
        await connection.execute("drop schema headway_bench cascade")
