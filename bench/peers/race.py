"""What every peer does: start workers, prove with a warm-up that they listen, then run the clock.

The clock runs from the first submit to the last task done. This file runs inside the peers' own virtual environment,
so it imports nothing of Headway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol

INPUT_BYTES = 100
WARM_UP = 50  # enough that each worker process has imported, connected and run one
POLL_S = 0.02
PATIENCE_S = 180.0


class Peer(Protocol):
    """One queue, as the race sees it."""

    async def prepare(self) -> None: ...

    async def submit(self, inputs: list[str]) -> None:
        """Hand the tasks over in the quickest way the peer documents."""

    async def all_done(self, count: int) -> bool:
        """Whether all the `count` tasks since `prepare` have ended; cheap, since it is asked many times a second."""

    async def succeeded(self) -> int:
        """How many tasks ended well, counted in the peer's own store."""

    async def close(self) -> None: ...


def main(peer: Callable[[str], Peer], work: Callable[[str], None], *, program: str) -> None:
    """`work WHERE` is one worker process; `race WHERE --tasks N` measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=program)
    parser.add_argument("role", choices=["work", "race"])
    parser.add_argument("where", help="URL of the broker or database")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.role == "work":
        work(options.where)
        return
    crew = [sys.executable, "-W", "ignore", program, "work", options.where]
    print(json.dumps(asyncio.run(_race(peer(options.where), crew, tasks=options.tasks, workers=options.workers))))


async def _race(peer: Peer, command: list[str], *, tasks: int, workers: int) -> dict[str, float]:
    await peer.prepare()
    crew = _hire(command, workers)
    try:
        await peer.submit(_inputs(WARM_UP))
        await _until(peer, WARM_UP, crew)
        inputs = _inputs(tasks)
        began = time.perf_counter()
        await peer.submit(inputs)
        submitted = time.perf_counter()
        await _until(peer, WARM_UP + tasks, crew)
        ended = time.perf_counter()
        succeeded = await peer.succeeded()
    finally:
        _dismiss(crew)
        await peer.close()
    if succeeded != WARM_UP + tasks:
        raise SystemExit(f"{succeeded} of {WARM_UP + tasks} tasks succeeded: no figure")
    return {"tasks": tasks, "seconds": ended - began, "submit_seconds": submitted - began}


async def _until(peer: Peer, count: int, crew: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await peer.all_done(count):
        if time.monotonic() > deadline:
            raise SystemExit(f"only {await peer.succeeded()} of {count} tasks were done after {PATIENCE_S:.0f} s")
        if dead := [worker.returncode for worker in crew if worker.poll() is not None]:
            raise SystemExit(f"a worker ended by itself with {dead[0]}")
        await asyncio.sleep(POLL_S)


def _hire(command: list[str], count: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]


def _dismiss(crew: list[subprocess.Popen[bytes]]) -> None:
    for worker in crew:
        worker.terminate()
    for worker in crew:
        try:
            worker.wait(timeout=5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _inputs(count: int) -> list[str]:
    noise = os.urandom(INPUT_BYTES // 2 * count).hex()
    return [noise[at : at + INPUT_BYTES] for at in range(0, len(noise), INPUT_BYTES)]
