"""A server that does what a test tells it, for agents: it speaks the exchange over HTTP and keeps everything it heard.

It keeps the promises a real server makes: an order is repeated until it was received, a report is answered, a
heartbeat renews the lease, leases that a new boot does not hold are noted as given back. It runs in a thread of its
own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from headway.domain.task import Definition
from headway.wire import PROTOCOL
from headway.wire.exchange import (
    Cancel,
    Control,
    Exchange,
    Finished,
    Notice,
    Order,
    Orders,
    Output,
    Progress,
    Register,
    Registered,
    Started,
    decode_exchange,
    encode_msgpack,
)
from headway.wire.views.answers import Problem

SMALL = Resources(cpus_milli=100, memory=64 * 2**20)


class ScriptedServer:
    def __init__(self, *, heartbeat_s: float = 0.2, fence_s: float = 30.0) -> None:
        # A fence that a busy machine does not reach by standing still; tests of the fence itself ask for a shorter one.
        self.heartbeat_s, self.fence_s = heartbeat_s, fence_s
        self.registered: list[Register] = []
        self.finished: dict[tuple[int, int], Finished] = {}
        self.finishes: list[tuple[int, int]] = []  # every report, repeated ones too
        self.started: list[Started] = []
        self.returned: list[tuple[int, int]] = []
        self.received: set[tuple[int, int]] = set()
        self.put_off = 0  # calls that were answered with 503
        self.output: dict[tuple[int, int], list[Output]] = {}
        self.progress: list[Progress] = []
        self.heartbeats: list[Exchange] = []
        self.deaf = False  # answers nothing: the agent is cut off
        self.other_version = False  # answers every call with 426
        self.renew = True
        self.hold = self.lost = self.drains = False
        self.refuses: Callable[[Exchange], bool] = lambda said: False  # answered with 422, like a report it cannot store
        self.unavailable: Callable[[Exchange], bool] = lambda said: False  # answered with 503, like one whose database is away
        self.url = ""
        self._definitions: dict[int, Definition] = {}
        self._waiting: dict[tuple[int, int], Order] = {}
        self._told: set[int] = set()
        self._cancels: list[Cancel] = []
        self._controls: list[Control] = []
        self.notices: list[Notice] = []
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._orders = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._number = 0

    # --- for tests

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        self._ready.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def define(self, **fields: Any) -> int:
        fields = {"name": "test", "resources": SMALL, **fields}
        return self.add_definition(Definition(**fields))

    def add_definition(self, definition: Definition) -> int:
        number = len(self._definitions) + 1
        self._definitions[number] = definition
        return number

    def order_these(self, orders: list[Order]) -> list[tuple[int, int]]:
        self._loop.call_soon_threadsafe(self._add, orders)
        return [(order.id, order.attempt) for order in orders]

    def order(self, definition: int, value: Any = None, *, task: int | None = None, attempt: int = 1) -> tuple[int, int]:
        return self.order_many(definition, [b"" if value is None else msgspec.json.encode(value)], task, attempt)[0]

    def order_many(self, definition: int, inputs: list[bytes], first: int | None = None, attempt: int = 1) -> list[tuple[int, int]]:
        orders = []
        for data in inputs:
            self._number += 1
            task = first if first is not None else self._number
            orders.append(Order(task, attempt, definition, data))
        return self.order_these(orders)

    def run(self, definition: int, value: Any = None) -> tuple[int, int]:
        """Order one and wait for its end."""
        ref = self.order(definition, value)
        self.wait(lambda: ref in self.finished)
        return ref

    def run_many(self, definition: int, inputs: list[bytes], timeout: float = 120.0) -> list[Finished]:
        """Order all and wait for their ends. What the agent gives back, because it waits behind something long, is ordered again."""
        return self._to_the_end(self.order_many(definition, inputs), [(definition, data) for data in inputs], timeout)

    def run_each(self, calls: list[tuple[int, bytes]], timeout: float = 120.0) -> list[Finished]:
        """The same, each with a definition of its own."""
        return self._to_the_end([self.order_many(definition, [data])[0] for definition, data in calls], calls, timeout)

    def _to_the_end(self, refs: list[tuple[int, int]], calls: list[tuple[int, bytes]], timeout: float) -> list[Finished]:
        until = time.monotonic() + timeout
        while back := self._ended_or_back(refs, until - time.monotonic()):
            for at in back:
                (task, attempt), (definition, data) = refs[at], calls[at]
                (refs[at],) = self.order_many(definition, [data], task, attempt + 1)
        return [self.finished[ref] for ref in refs]

    def _ended_or_back(self, refs: list[tuple[int, int]], timeout: float) -> list[int]:
        """Wait until none is under way, or some came back: which."""
        back: list[int] = []

        def settled() -> bool:
            returned = set(self.returned)
            back[:] = [at for at, ref in enumerate(refs) if ref in returned]
            return bool(back) or all(ref in self.finished for ref in refs)

        self.wait(settled, timeout)
        return back

    def cancel(self, ref: tuple[int, int], grace_s: float = 5.0) -> None:
        self._loop.call_soon_threadsafe(self._cancel, Cancel(*ref, grace_s))

    def control(self, ref: tuple[int, int], word: str, argument: str = "") -> str:
        """Tell the agent to do something to an attempt; returns what it answered."""
        number = self.tell(ref, word, argument)
        self.wait(lambda: self.answers(number))
        return self.answers(number)[0]

    def tell(self, ref: tuple[int, int], word: str, argument: str = "") -> int:
        """The same without waiting for the answer; the control's number."""
        self._number += 1
        self._loop.call_soon_threadsafe(self._controls.append, Control(self._number, *ref, word, argument))
        self._loop.call_soon_threadsafe(self._orders.set)
        return self._number

    def answers(self, number: int) -> list[str]:
        return [notice.kind for notice in self.notices if notice.number == number]

    def wait(self, condition: Callable[[], object], timeout: float = 120.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(condition()), timeout), "it did not happen in time"

    def is_over(self, *refs: tuple[int, int]) -> bool:
        """Whether each has ended here or was given back: an agent does that with what waits for a second, be it for its machine."""
        return all(ref in self.finished or ref in self.returned for ref in refs)

    def outcome(self, ref: tuple[int, int]) -> Outcome:
        return Outcome(self.finished[ref].outcome)

    def error(self, ref: tuple[int, int]) -> dict[str, Any]:
        error: dict[str, Any] = msgspec.json.decode(self.finished[ref].error or "{}")
        return error

    def text(self, ref: tuple[int, int], stream: int = 1) -> str:
        pieces = sorted((piece for piece in self.output.get(ref, []) if piece.stream == stream), key=lambda p: p.sequence)
        return b"".join(piece.data for piece in pieces).decode()

    # --- the server

    def _add(self, orders: list[Order]) -> None:
        for order in orders:
            self._waiting[order.id, order.attempt] = order
        self._orders.set()

    def _cancel(self, cancel: Cancel) -> None:
        self._cancels.append(cancel)
        self._orders.set()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> asyncio.Server:
            return await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=2**27)

        server = self._loop.run_until_complete(start())
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length:" in line), 0)
                body = await reader.readexactly(length)
                if " /v1/nodes " not in head and "/exchange " not in head:  # of a task, or of somebody who carries its checkpoint
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                if self.deaf:
                    await asyncio.sleep(3600)
                if self.other_version:
                    why = Problem("about:blank", "other version", 426, "version_mismatch", "the caller speaks protocol 1, this server 99")
                    said = msgspec.json.encode(why)
                    writer.write(b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: %d\r\n\r\n" % len(said) + said)
                    continue
                if " /v1/nodes " not in head and self.refuses(decode_exchange(body)):
                    writer.write(b"HTTP/1.1 422 Unprocessable\r\ncontent-length: 0\r\n\r\n")
                    continue
                if " /v1/nodes " not in head and self.unavailable(decode_exchange(body)):
                    writer.write(b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n")
                    with self._changed:
                        self.put_off += 1
                        self._changed.notify_all()
                    continue
                answer = self._register(body) if " /v1/nodes " in head else await self._exchange(decode_exchange(body))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/msgpack\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    def _register(self, body: bytes) -> bytes:
        register = msgspec.json.decode(body, type=Register)
        self._told.clear()
        with self._changed:
            self.lost = False
            self.registered.append(register)
            self._changed.notify_all()
        return encode_msgpack(Registered(1, self.heartbeat_s, self.fence_s, 60.0, PROTOCOL, "test"))

    async def _exchange(self, said: Exchange) -> bytes:
        with self._changed:
            self._note(said)
            self._changed.notify_all()
        if said.wait_s and not self._waiting:
            try:
                await asyncio.wait_for(self._orders.wait(), said.wait_s)
            except TimeoutError:
                pass
        answer = Orders(said.sequence, lost=self.lost, hold=self.hold, drain=self.drains)
        if said.wait_s and not self.deaf:
            self._orders.clear()
            answer.orders = list(self._waiting.values())
            new = {order.definition for order in answer.orders} - self._told
            answer.definitions = {number: self._definitions[number] for number in new}
            self._told |= new
            answer.cancels, self._cancels = self._cancels, []
            answer.controls, self._controls = self._controls, []
        answer.renewed = said.heartbeat and self.renew
        return encode_msgpack(answer)

    def _note(self, said: Exchange) -> None:
        self.received.update(said.received)
        for ref in said.received:
            self._waiting.pop(ref, None)
        self._told -= set(said.unknown_definitions)
        for finished in said.finished:
            ref = (finished.id, finished.attempt)
            self.finishes.append(ref)
            self.finished.setdefault(ref, finished)
        for piece in said.output:
            self.output.setdefault((piece.id, piece.attempt), []).append(piece)
        self.started += said.started
        self.returned += said.returned
        self.progress += said.progress
        self.notices += said.notices
        if said.heartbeat:
            self.heartbeats.append(said)
