"""The processes around a measurement: load generators and listeners, started ready, ended in any case."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from headway.bench import listen, load
from headway.errors import Unavailable

T = TypeVar("T")


class Companion:
    """A process that speaks in lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")

    async def answer(self, kind: type[T]) -> T:
        return msgspec.json.decode(await self.line(), type=kind)

    async def line(self) -> bytes:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise Unavailable("a load generator ended before its work was done", hint="its message is above")
        return line

    def finish(self) -> None:
        """No more orders: it ends by itself and says what it did."""
        assert self._process.stdin is not None
        self._process.stdin.close()


@contextlib.asynccontextmanager
async def generator(plan: load.Plan) -> AsyncIterator[Companion]:
    """A load generator that waits for `go`."""
    async with _started("headway.bench.load", msgspec.json.encode(plan)) as companion:
        yield companion


@contextlib.asynccontextmanager
async def listener(url: str, token: str) -> AsyncIterator[Companion]:
    """A subscriber of the event stream."""
    async with _started("headway.bench.listen", msgspec.json.encode(listen.Plan(url, token))) as companion:
        yield companion


@contextlib.asynccontextmanager
async def _started(module: str, plan: bytes) -> AsyncIterator[Companion]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26
    )
    companion = Companion(process)
    try:
        companion.say(plan.decode())
        if await companion.line() != b"ready\n":
            raise Unavailable(f"{module} did not get ready")
        yield companion
    finally:
        if process.returncode is None:
            companion.finish()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()
