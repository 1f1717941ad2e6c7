"""`headway events`: where it begins, and how it goes on when the server was away (J6 I3)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from urllib.parse import parse_qs, urlsplit

from tests.support.scripted_http import Request, Server, reply, serving

EVENTS = [
    {"id": f"{n}-1", "kind": "task.succeeded", "tenant": "default", "at": "2026-11-15T03:00:00Z", "tasks": [str(n)], "data": {}}
    for n in range(3)
]


def stream(*events: dict[str, object]) -> bytes:
    body = "".join(f"id: {event['id']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    return reply(200, body, content_type="text/event-stream")


async def headway(server: Server, *words: str) -> tuple[int, str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway.cli.main", *words, env={**env, "HEADWAY_URL": server.url},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_events_go_on_after_the_last_one_when_the_server_comes_back() -> None:
    asked: list[dict[str, list[str]]] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(request.path)
        if url.path == "/readyz":
            writer.write(reply(200))
            return
        asked.append(parse_qs(url.query))
        if len(asked) == 1:
            writer.write(stream(*EVENTS[:2])[:-10])  # the second is cut off: it comes again
            await writer.drain()
            raise ConnectionError("the server goes away")
        if len(asked) == 2:
            writer.write(stream(EVENTS[1]))  # and ends in order
        elif len(asked) == 3:
            writer.write(stream(EVENTS[2]))
        else:
            writer.write(reply(401, b'{"code": "unauthorized", "detail": "the key has expired"}', content_type="application/problem+json"))

    async with serving(answer) as server:
        code, out, err = await headway(server, "events", "-f", "-o", "quiet")
    assert (code, out.split()) == (77, ["0-1", "1-1", "2-1"])
    assert "the key has expired" in err
    assert [query.get("after") for query in asked] == [None, ["0-1"], ["1-1"], ["2-1"]]


async def test_a_beginning_may_be_a_moment() -> None:
    seen: list[str] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        seen.append(request.path)
        writer.write(stream(EVENTS[0]))

    async with serving(answer) as server:
        assert (await headway(server, "events", "--since", "2026-01-01T00:00:00Z"))[0] == 0
        code, _, err = await headway(server, "events", "--since", "yesterday")
    (since,) = parse_qs(urlsplit(seen[0]).query)["since"]
    assert float(since) > 86_400
    assert code == 64
    assert "is no time" in err
