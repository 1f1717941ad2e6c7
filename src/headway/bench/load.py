"""The load generator: a process of its own, told by a line what to send, and told when.

    stdin   a Plan; then `go`, later perhaps `pause` and `resume`; its end means stop
    stdout  `ready` once all is encoded and connected; at the end a Sent

Everything is encoded before it says ready. Times are CLOCK_MONOTONIC, which all processes of a machine share; `stamps`
are Unix time, to be compared with what the tasks themselves saw.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from urllib.parse import urlsplit

import msgspec
import uvloop

from headway.bench import bodies
from headway.bench.connection import Connection, connect
from headway.wire.views.tasks import Accepted, AcceptedMany

POOL = 48  # different bodies, sent over and over: 500 tasks of 230 bytes each make 5 MB
SAMPLE = 256  # ids kept to be read back by HTTP
PUSHED_BACK = (429, 503)


class Plan(msgspec.Struct):
    """What to send, to whom, how fast and for how long."""

    url: str
    tokens: list[str]  # requests go round among them: one for each tenant
    kind: str  # one of bodies.KINDS
    per_request: int = 1
    connections: int = 1
    seconds: float | None = None
    tasks: int | None = None
    every_s: float | None = None  # open loop: a request every so often, whether or not the last is answered


class Sent(msgspec.Struct):
    """What was sent and acknowledged."""

    began: float
    acknowledged: float
    tasks: int
    first_id: int
    last_id: int
    pushed_back: int  # answers 429 and 503; the request was sent again
    sample: list[str]
    stamps: dict[str, int]  # id -> Unix ns before the request was sent (paced plans only)


class Generator:
    """Sends what the plan says and keeps the books."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.going = asyncio.Event()
        self.stopped = False
        self.tasks = 0
        self.claimed = 0
        self.pushed_back = 0
        self.first_id, self.last_id = 0, 0
        self.sample: list[str] = []
        self.stamps: dict[str, int] = {}
        self._one = msgspec.json.Decoder(Accepted)
        self._many = msgspec.json.Decoder(AcceptedMany)
        self._deadline = float("inf")

    async def prepare(self) -> None:
        plan = self.plan
        host = urlsplit(plan.url).netloc
        made = [bodies.KINDS[plan.kind](plan.per_request) for _ in range(POOL)]
        whole = [
            bodies.request(host=host, token=plan.tokens[at % len(plan.tokens)], path="/v1/tasks", body=made[at % len(made)])
            for at in range(max(POOL, len(plan.tokens)))
        ]
        self._requests = itertools.cycle(whole)
        self.connections = [await connect(plan.url) for _ in range(plan.connections)]

    async def run(self) -> Sent:
        await self.going.wait()
        began = time.monotonic()
        if self.plan.seconds is not None:
            self._deadline = began + self.plan.seconds
        if self.plan.every_s is None:
            await asyncio.gather(*(self._closed_loop(connection) for connection in self.connections))
        else:
            await self._open_loop(self.plan.every_s)
        acknowledged = time.monotonic()
        for connection in self.connections:
            connection.close()
        return Sent(
            began=began, acknowledged=acknowledged, tasks=self.tasks, first_id=self.first_id, last_id=self.last_id,
            pushed_back=self.pushed_back, sample=self.sample, stamps=self.stamps,
        )  # fmt: skip

    def _next(self) -> bytes | None:
        """The next request, or None when the plan is fulfilled."""
        if self.stopped or time.monotonic() >= self._deadline:
            return None
        if self.plan.tasks is not None and self.claimed >= self.plan.tasks:
            return None
        self.claimed += self.plan.per_request
        return next(self._requests)

    async def _closed_loop(self, connection: Connection) -> None:
        """The next request after the answer to the last one."""
        while (request := self._next()) is not None:
            await self._send(connection, request)
            if not self.going.is_set():
                await self.going.wait()

    async def _open_loop(self, every_s: float) -> None:
        """Requests at moments that do not depend on the answers; a slow one delays no other."""
        free = list(self.connections)
        sending: set[asyncio.Task[None]] = set()

        async def send(connection: Connection, request: bytes) -> None:
            await self._send(connection, request)
            free.append(connection)

        at = time.monotonic()
        while (request := self._next()) is not None:
            # Uneven steps: an even beat could march in step with a timer of the server.
            at += every_s * random.uniform(0.5, 1.5)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            if not free:
                free.append(await connect(self.plan.url))
            sending.add(asyncio.create_task(send(free.pop(), request)))
            for done in [task for task in sending if task.done()]:
                sending.discard(done)
                done.result()
        await asyncio.gather(*sending)

    async def _send(self, connection: Connection, request: bytes) -> None:
        stamp = time.time_ns()
        status, body = await connection.ask(request)
        while status in PUSHED_BACK:
            self.pushed_back += 1
            await asyncio.sleep(0.05)
            status, body = await connection.ask(request)
        if status not in (200, 201):
            raise SystemExit(f"the server answered {status}: {body[:500].decode(errors='replace')}")
        self._note(body, stamp)

    def _note(self, body: bytes, stamp: int) -> None:
        ids = [self._one.decode(body).id] if self.plan.per_request == 1 else self._many.decode(body).ids
        self.tasks += len(ids)
        first, last = int(ids[0]), int(ids[-1])
        self.first_id = min(self.first_id or first, first)
        self.last_id = max(self.last_id, last)
        if self.plan.every_s is not None:
            self.stamps[ids[0]] = stamp
        if len(self.sample) < SAMPLE:
            self.sample.append(ids[len(self.sample) % len(ids)])


async def _obey(generator: Generator, lines: asyncio.StreamReader) -> None:
    """Do what the lines say; their end ends the generator, so that none outlives the benchmark."""
    while word := (await lines.readline()).strip():
        if word in (b"go", b"resume"):
            generator.going.set()
        elif word == b"pause":
            generator.going.clear()
    generator.stopped = True
    generator.going.set()


async def main() -> None:
    lines = asyncio.StreamReader(limit=2**20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    generator = Generator(msgspec.json.decode(await lines.readline(), type=Plan))
    await generator.prepare()
    print("ready", flush=True)
    obeying = asyncio.create_task(_obey(generator, lines))
    sent = await generator.run()
    print(msgspec.json.encode(sent).decode(), flush=True)
    obeying.cancel()


if __name__ == "__main__":
    uvloop.run(main())
