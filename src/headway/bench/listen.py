"""A subscriber of the event stream, in a process of its own: reads everything, counts it, and says so at the end.

stdin   a Plan; its end means stop
stdout  `ready` once the stream is open; at the end a Heard
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import msgspec
import uvloop

from headway.wire.http import Http

MARK = b"\ndata:"


class Plan(msgspec.Struct):
    url: str
    token: str


class Heard(msgspec.Struct):
    events: int
    bytes: int


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    plan = msgspec.json.decode(await lines.readline(), type=Plan)
    heard = Heard(0, 0)
    listening = asyncio.create_task(_listen(plan, heard))
    stop = asyncio.create_task(lines.readline())
    await asyncio.wait({listening, stop}, return_when=asyncio.FIRST_COMPLETED)
    if listening.done():
        listening.result()
        raise SystemExit("the server ended the event stream")
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening
    print(msgspec.json.encode(heard).decode(), flush=True)


async def _listen(plan: Plan, heard: Heard) -> None:
    http = Http(plan.url, token=plan.token)
    try:
        async with http.stream("GET", "/v1/events") as (answer, pieces):
            if answer.status != 200:
                raise SystemExit(f"the event stream was refused: {answer.status}")
            print("ready", flush=True)
            rest = b""
            async for piece in pieces:
                heard.bytes += len(piece)
                joined = rest + piece  # a mark may lie across two pieces
                heard.events += joined.count(MARK)
                rest = joined[-(len(MARK) - 1) :]
    finally:
        await http.close()


if __name__ == "__main__":
    uvloop.run(main())
