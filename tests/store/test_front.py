"""Submissions and exchanges are read beside the framework: what they look like on the wire, whole, broken and one after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.api.serve import _listen, _Server, _uvicorn
from headway.control.core import Core
from tests.support.engine import ScriptedAgent, engine, function
from tests.support.waiting import eventually

TOKEN = "front-token"
LIMIT = 20_000
TASK = msgspec.json.encode(function(input={"n": 1}))


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        async with asyncio.timeout(30):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def closed(self) -> bool:
        async with asyncio.timeout(30):
            return await self.reader.read(1) == b""


class Served:
    def __init__(self, core: Core, port: int) -> None:
        self.core, self.port = core, port

    async def connect(self) -> Wire:
        return Wire(*await asyncio.open_connection("127.0.0.1", self.port))

    async def stored(self) -> int:
        async with self.core.database.cold() as connection:
            return int(await connection.fetchval("select count(*) from task"))


def post(path: str, body: bytes, *more: str, length: int | None = None, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: x", f"authorization: Bearer {TOKEN}", "content-type: application/json", *more]
    return "\r\n".join([*lines, f"content-length: {len(body) if length is None else length}", "", ""]).encode() + body


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode()


@asynccontextmanager
async def serving(dsn: str) -> AsyncIterator[Served]:
    async with engine(dsn, max_body=LIMIT, port=0) as core:
        await core.access.add(TOKEN, "admin")
        sock = _listen(core.settings)
        server = _Server(_uvicorn(core, core.settings), core)
        running = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield Served(core, sock.getsockname()[1])
        finally:
            server.end()
            await running


@pytest.fixture
async def served(dsn: str) -> AsyncIterator[Served]:
    async with serving(dsn) as there:
        yield there


async def test_a_body_that_is_too_large_is_refused_and_the_connection_goes_on(served: Served) -> None:
    wire = await served.connect()
    wire.say(post("/v1/tasks", b"[" + b" " * LIMIT + b"]"))
    status, headers, body = await wire.answer()
    assert (status, headers["content-type"]) == (413, "application/problem+json")
    assert msgspec.json.decode(body)["code"] == "too_large"
    assert await served.stored() == 0
    wire.say(post("/v1/tasks", TASK))
    assert (await wire.answer())[0] == 201


async def test_it_is_refused_before_all_of_it_has_come(served: Served) -> None:
    wire = await served.connect()
    wire.say(post("/v1/tasks", b"[" + b" " * LIMIT, length=10 * LIMIT))
    assert (await wire.answer())[0] == 413


async def test_a_client_that_leaves_in_the_middle_of_its_body_stores_nothing(served: Served) -> None:
    wire = await served.connect()
    wire.say(post("/v1/tasks", TASK, length=len(TASK) + 1))
    await wire.writer.drain()
    wire.writer.close()
    other = await served.connect()
    other.say(post("/v1/tasks", TASK))
    assert (await other.answer())[0] == 201
    assert await served.stored() == 1


async def test_a_client_that_leaves_after_its_body_has_stored_it(served: Served) -> None:
    wire = await served.connect()
    wire.say(post("/v1/tasks", TASK))
    await wire.writer.drain()
    wire.writer.close()
    assert await eventually(served.stored) == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/v1/tasks"), 200),
        (get("/v1/tasks", "DELETE"), 405),
        (post("/v1/tasks?a=b", TASK), 201),
        (post("/v1/tasks/1/cancel", b""), 404),
        (post("/v1/nodes/one/exchange", b"{}"), 404),
        (post("/v1/nodes/99999999999/exchange", b'{"boot": "b", "sequence": 1}'), 404),
        (get("/livez"), 200),
    ],
)
async def test_everything_else_goes_to_the_framework(served: Served, request_: bytes, status: int) -> None:
    wire = await served.connect()
    wire.say(request_)
    assert (await wire.answer())[0] // 100 == status // 100


async def test_a_path_and_a_method_that_are_not_there_are_named(served: Served) -> None:
    wire = await served.connect()
    wire.say(get("/v1/nope"))
    assert b"there is nothing at /v1/nope" in (await wire.answer())[2]
    wire.say(get("/v1/tasks", "DELETE"))
    assert b"DELETE is not a method of /v1/tasks" in (await wire.answer())[2]


async def test_a_body_may_come_in_pieces_and_in_chunks(served: Served) -> None:
    wire = await served.connect()
    for piece in (post("/v1/tasks", TASK)[i : i + 7] for i in range(0, len(post("/v1/tasks", TASK)), 7)):
        wire.say(piece)
        await wire.writer.drain()
    assert (await wire.answer())[0] == 201
    head = f"POST /v1/tasks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    half = len(TASK) // 2
    wire.say(head, *(b"%x\r\n%b\r\n" % (len(part), part) for part in (TASK[:half], TASK[half:])), b"0\r\n\r\n")
    assert (await wire.answer())[0] == 201


async def test_requests_sent_ahead_are_answered_in_their_order(served: Served) -> None:
    wire = await served.connect()
    wire.say(post("/v1/tasks", TASK) + get("/livez") + post("/v1/tasks", b"{") + get("/v1/nowhere") + post("/v1/tasks", TASK))
    assert [(await wire.answer())[0] for _ in range(5)] == [201, 200, 400, 404, 201]
    assert await served.stored() == 2


async def test_a_request_sent_ahead_may_come_in_parts(served: Served) -> None:
    wire = await served.connect()
    second = post("/v1/tasks", TASK)
    wire.say(post("/v1/tasks", TASK) + second[:-5])
    assert (await wire.answer())[0] == 201
    wire.say(second[-5:])
    assert (await wire.answer())[0] == 201


async def test_who_asks_before_sending_is_told_to_go_on(served: Served) -> None:
    wire = await served.connect()
    head = post("/v1/tasks", TASK, "expect: 100-continue")
    wire.say(head[: -len(TASK)])
    assert (await wire.answer())[0] == 100
    wire.say(TASK)
    assert (await wire.answer())[0] == 201


async def test_who_does_not_keep_the_connection_sees_it_closed(served: Served) -> None:
    wire = await served.connect()
    wire.say(post("/v1/tasks", TASK, version="1.0"))
    status, headers, _ = await wire.answer()
    assert (status, headers["connection"]) == (201, "close")
    assert await wire.closed()


async def test_a_stranger_is_refused(served: Served) -> None:
    wire = await served.connect()
    wire.say(post("/v1/tasks", TASK).replace(TOKEN.encode(), b"wrong"))
    status, headers, _ = await wire.answer()
    assert (status, headers["www-authenticate"]) == (401, "bearer")
    assert await served.stored() == 0


async def test_a_stranger_is_refused_before_a_large_body_is_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise anybody could fill the server's memory, one connection after another."""
    monkeypatch.setattr("headway.api.front.LARGEST", 1_000)
    wire = await served.connect()
    wire.say(post("/v1/tasks", b"[", length=LIMIT - 1).replace(TOKEN.encode(), b"somebody"))
    assert (await wire.answer())[0] == 401
    assert await served.stored() == 0


async def test_an_agent_exchanges_in_json_and_a_node_that_is_not_there_is_not_found(served: Served) -> None:
    agent = await ScriptedAgent(served.core).join()
    wire = await served.connect()
    said = msgspec.json.encode({"boot": agent.boot, "sequence": 2**40, "heartbeat": True, "held": []})
    wire.say(post(f"/v1/nodes/{agent.id}/exchange", said))
    status, _, body = await wire.answer()
    assert (status, msgspec.json.decode(body)["renewed"]) == (200, True)
    wire.say(post(f"/v1/nodes/{agent.id + 1}/exchange", said))
    assert (await wire.answer())[0] == 404


async def test_a_call_that_waits_is_answered_when_the_server_ends(dsn: str) -> None:
    async with serving(dsn) as served:
        agent = await ScriptedAgent(served.core).join()
        wire = await served.connect()
        wire.say(
            post(f"/v1/nodes/{agent.id}/exchange", msgspec.json.encode({"boot": agent.boot, "sequence": 2**40, "wait_s": 60.0}))
        )

        def waits() -> bool:
            session = served.core.sessions.by_node.get(agent.id)
            return session is not None and bool(session.talks)

        await eventually(waits)
    assert (await wire.answer())[0] == 200
    assert await wire.closed()


async def counted(wire: Wire) -> dict[tuple[str, str, str], float]:
    """How many answers there were by method, route and class of status; how many were timed, with the status "timed"."""
    wire.say(get("/metrics"))
    _, _, body = await wire.answer()
    found: dict[tuple[str, str, str], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            if sample.name in ("headway_http_requests_total", "headway_http_request_seconds_count"):
                found[sample.labels["method"], sample.labels["route"], sample.labels.get("status", "timed")] = sample.value
    return found


async def test_every_answer_is_counted_by_its_route_whichever_way_it_took(dsn: str) -> None:
    async with serving(dsn) as served:
        wire = await served.connect()
        before = await counted(wire)
        chunked = f"POST /v1/tasks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        asked = {
            post("/v1/tasks", TASK): 201,
            post("/v1/tasks", b"{}"): 400,
            chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(TASK), TASK): 201,  # the framework's way
            post("/v1/nodes/77/exchange", b"{}"): 403,
            get("/v1/tasks/4711"): 404,
            get("/v1/tasks/4712"): 404,
            get("/nothing/here"): 404,
            get("/nothing/there"): 404,
        }
        for request, status in asked.items():
            wire.say(request)
            assert (await wire.answer())[0] // 100 == status // 100
        after = await counted(wire)
        news = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key)}
        assert news == {
            ("POST", "/v1/tasks", "2xx"): 2,
            ("POST", "/v1/tasks", "4xx"): 1,
            ("POST", "/v1/tasks", "timed"): 3,
            ("POST", "/v1/nodes/{node}/exchange", "4xx"): 1,
            ("POST", "/v1/nodes/{node}/exchange", "timed"): 1,
            ("GET", "/v1/tasks/{task_id}", "4xx"): 2,
            ("GET", "/v1/tasks/{task_id}", "timed"): 2,
            ("GET", "none", "4xx"): 2,
            ("GET", "none", "timed"): 2,
            ("GET", "/metrics", "2xx"): 1,
            ("GET", "/metrics", "timed"): 1,
        }
