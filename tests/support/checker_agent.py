"""An agent spoken by hand over HTTP, in JSON: what it says, how often and in which order is the test's choice."""

from __future__ import annotations

import asyncio
import base64
import itertools
from typing import Any

import msgspec

from headway.wire import PROTOCOL
from headway.wire.http import Http, Response
from tests.support.cluster import AGENT_TOKEN, Server

_numbers = itertools.count(1)


class HandAgent:
    """One boot of one node. The node has a label of its own, so that a test's tasks come to it alone."""

    def __init__(self, server: Server, name: str | None = None) -> None:
        number = next(_numbers)
        self.http = Http(server.url, token=AGENT_TOKEN)
        self.name = name or f"by-hand-{number}"
        self.boot = f"boot-{number}"
        self.id = 0
        self.sequence = 0
        self.held: set[tuple[int, int]] = set()

    async def join(self) -> HandAgent:
        capacity = {"cpus_milli": 4000, "memory": 2**33, "disk": 2**40, "labels": {"hand": self.name, "sandbox": "yes"}}
        body = {"name": self.name, "boot": self.boot, "capacity": capacity, "protocol": PROTOCOL, "version": "by hand"}
        answer = await self.http.request("POST", "/v1/nodes", body=msgspec.json.encode(body))
        assert answer.status == 201, answer.body
        self.id = msgspec.json.decode(answer.body)["id"]
        return self

    def only_here(self, cpus: float = 0.1) -> dict[str, Any]:
        """Resources that no other node has."""
        return {"cpus": cpus, "memory": 2**20, "disk": 2**20, "labels": {"hand": self.name}}

    async def post(self, **fields: Any) -> Response:
        """One exchange, whatever comes of it. `boot` and `sequence` may be overridden."""
        self.sequence += 1
        body = {"boot": self.boot, "sequence": self.sequence, **fields}
        for done in (*fields.get("finished", ()), *fields.get("returned", ())):
            self.held.discard(tuple(done[:2]))
        return await self.http.request("POST", f"/v1/nodes/{self.id}/exchange", body=msgspec.json.encode(body))

    async def say(self, **fields: Any) -> dict[str, Any]:
        answer = await self.post(**fields)
        assert answer.status == 200, answer.body
        said: dict[str, Any] = msgspec.json.decode(answer.body)
        return said

    async def orders(self, count: int) -> list[tuple[int, int]]:
        """Poll until so many orders came; they are acknowledged."""
        got: list[tuple[int, int]] = []
        async with asyncio.timeout(90):
            while len(got) < count:
                answer = await self.say(wait_s=1.0, heartbeat=True, held=sorted(self.held))
                new = [(order[0], order[1]) for order in answer.get("orders", []) if (order[0], order[1]) not in self.held]
                self.held.update(new)
                got += new
                await self.say(received=sorted(self.held))
        return got

    async def close(self) -> None:
        await self.http.close()


def succeeded(ref: tuple[int, int], result: str = "1") -> list[Any]:
    """A Finished: id, attempt, outcome, started, ended, result."""
    return [*ref, 0, 1, 2, base64.b64encode(result.encode()).decode()]


def failed(ref: tuple[int, int], error: str | None = '{"type": "E", "message": "boom"}') -> list[Any]:
    return [*ref, 1, 1, 2, None, 1, error]
