"""How many nodes one server serves: `python bench/nodes.py [--nodes 100,500,1000,2000] [--seconds 10] [--tasks 200]`.

Imaginary nodes in this process, each with a heartbeat a second and an open poll as a real agent has them; they run nothing, but answer that
what they were ordered has ended. First they only live, then tasks come, so many a second, one CPU each, spread over the fleet. Printed for
each size: CPU of the server and of the rest (PostgreSQL) in per cent of a core, how long a heartbeat takes until it is committed, and how
long a task takes from its submission to its order. Nodes that are lost though they beat are counted: there should be none. The machine
carries the nodes too, so the server has only a part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

import msgspec

from headway.bench.instance import Instance, throw_away
from headway.bench.processes import cpu_seconds, tree
from headway.domain.resources import Capacity
from headway.version import VERSION
from headway.wire import PROTOCOL
from headway.wire.exchange import MSGPACK, Exchange, Finished, Orders, Register, Registered, encode_msgpack
from headway.wire.http import Http

GIB = 2**30
POLL_S = 10.0
TOGETHER = 20  # registrations at once
TURN_S = 0.1  # between two submissions


@dataclass
class Seen:
    """What happened in one phase."""

    beats_s: list[float] = field(default_factory=list)
    orders_s: list[float] = field(default_factory=list)
    late: int = 0  # heartbeats that took longer than the time between two
    lost: int = 0
    put_off: int = 0  # answers that the server had no time


class Node:
    """One imaginary node: the exchange of an agent without anything behind it."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.name = fleet, f"imaginary-{number}"
        self.boot = f"{self.name}-{time.time_ns()}"
        self.http = Http(fleet.instance.url, token=fleet.instance.token)
        self.sequence = 0
        self.path = ""

    async def join(self) -> None:
        capacity = Capacity(4000, 16 * GIB, 100 * GIB, labels={"imaginary": "yes"})
        register = Register(self.name, self.boot, capacity, PROTOCOL, VERSION)
        answer = await self._ask("/v1/nodes", msgspec.json.encode(register), {"content_type": "application/json"})
        self.path = f"/v1/nodes/{msgspec.json.decode(answer, type=Registered).id}/exchange"

    async def live(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._poll())

    async def _beat(self) -> None:
        due = time.monotonic() + random.random()
        while True:
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            began = time.monotonic()
            answer = await self._say(heartbeat=True, held=[])
            took = time.monotonic() - began
            seen = self.fleet.seen
            seen.beats_s.append(took)
            seen.late += took > 1.0
            seen.lost += answer.lost or not answer.renewed
            due = max(due + 1.0, time.monotonic())

    async def _poll(self) -> None:
        while True:
            answer = await self._say(wait_s=POLL_S)
            if answer.orders:
                now = time.time()
                self.fleet.seen.orders_s += [now - float(order.input) for order in answer.orders]
                refs = [(order.id, order.attempt) for order in answer.orders]
                ms = int(now * 1000)
                await self._say(received=refs, finished=[Finished(*ref, 0, ms, ms) for ref in refs])

    async def _say(self, **fields: object) -> Orders:
        self.sequence += 1
        said = Exchange(self.boot, self.sequence, now_ms=int(time.time() * 1000), **fields)  # type: ignore[arg-type]
        answer = await self._ask(self.path, encode_msgpack(said), {"content_type": MSGPACK, "headers": {"accept": MSGPACK}})
        return msgspec.msgpack.decode(answer, type=Orders)

    async def _ask(self, path: str, body: bytes, words: dict[str, Any]) -> bytes:
        """The same again, as an agent does, when the server has no time for it."""
        while True:
            answer = await self.http.request("POST", path, body=body, timeout=60, idempotent=True, **words)
            if answer.status < 300:
                return answer.body
            if answer.status != 503:
                raise RuntimeError(f"{self.name}: {answer.status} {answer.body[:200]!r}")
            self.fleet.seen.put_off += 1
            await asyncio.sleep(0.5)


class Fleet:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.nodes: list[Node] = []
        self.seen = Seen()
        self._lives: list[asyncio.Task[None]] = []

    async def grow(self, size: int) -> None:
        """They join and live. A node that fails ends the measurement."""
        new = [Node(self, number) for number in range(len(self.nodes), size)]
        room = asyncio.Semaphore(TOGETHER)

        async def joined(node: Node) -> None:
            async with room:
                await node.join()
            self._lives.append(asyncio.create_task(node.live()))

        await asyncio.gather(*(joined(node) for node in new))
        self.nodes += new

    def check(self) -> None:
        for life in self._lives:
            if life.done():
                life.result()

    async def end(self) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)


async def phase(fleet: Fleet, seconds: float, tasks_per_s: float) -> str:
    instance = fleet.instance
    [server] = instance.roots
    fleet.seen = Seen()
    began, all_before, server_before = time.monotonic(), cpu_seconds([server]), own(server)
    for turn in range(round(seconds / TURN_S)):
        if tasks_per_s:
            await instance.call("POST", "/v1/tasks", [task(time.time())] * round(tasks_per_s * TURN_S))
        await asyncio.sleep(max(began + (turn + 1) * TURN_S - time.monotonic(), 0.0))
    fleet.check()
    passed, everything = time.monotonic() - began, cpu_seconds([server]) - all_before
    ours = own(server) - server_before
    seen = fleet.seen
    parts = [
        f"server {ours / passed:5.1%}", f"the rest {(everything - ours) / passed:5.1%}",
        f"{len(seen.beats_s) / passed:6.0f} beats/s, ms {spread(seen.beats_s)}, late {seen.late}, lost {seen.lost}, put off {seen.put_off}",
    ]  # fmt: skip
    if tasks_per_s:
        parts.append(f"{len(seen.orders_s) / passed:5.0f} tasks/s, to the order ms {spread(seen.orders_s)}")
    return "; ".join(parts)


def task(now: float) -> dict[str, object]:
    return {"command": ["true"], "input": now, "resources": {"cpus": 1, "labels": {"imaginary": "yes"}}}


def own(root: int) -> float:
    """CPU seconds of this process alone."""
    return next(stat.ticks for stat in tree([root]) if stat.pid == root) / 100


def spread(values: list[float]) -> str:
    if len(values) < 2:
        return "-"
    cuts = quantiles(values, n=100)
    return f"p50 {cuts[49] * 1000:.1f} p99 {cuts[98] * 1000:.1f}"


async def measure(sizes: list[int], seconds: float, tasks_per_s: float) -> None:
    async with throw_away("--cpus", "0.1") as instance:
        fleet = Fleet(instance)
        try:
            for size in sizes:
                began = time.monotonic()
                await fleet.grow(size)
                joined = time.monotonic() - began
                await asyncio.sleep(2.0)
                print(f"{size} nodes (joined in {joined:.1f} s): {await phase(fleet, seconds, 0.0)}", flush=True)
                if tasks_per_s:
                    print(f"{size} nodes, with tasks: {await phase(fleet, seconds, tasks_per_s)}", flush=True)
        finally:
            await fleet.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", default="100,500,1000,2000")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--tasks", type=float, default=200.0, help="a second")
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(measure([int(size) for size in asked.nodes.split(",")], asked.seconds, asked.tasks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
