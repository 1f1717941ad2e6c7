"""A real HTTP server on a free port that answers as a test tells it to, down to single bytes and torn connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int  # which connection it came on, counted from 1


@dataclass
class Server:
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def drop_connections(self) -> None:
        """Close every connection and wait until they are closed."""
        for writer in list(self.writers):
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a server whose every request is answered by `answer`, which writes raw bytes."""
    server = Server()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        mine = server.connections
        server.writers.add(writer)
        try:
            while request := await _read(reader, mine):
                server.requests.append(request)
                await answer(request, writer)
                await writer.drain()
        except ConnectionError:
            return  # the client hung up, or the test tore the connection
        finally:
            server.writers.discard(writer)
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await server.drop_connections()


def reply(status: int, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of an answer; underscores in header names are dashes."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Words\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


async def _read(reader: asyncio.StreamReader, connection: int) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, connection)


@contextlib.contextmanager
def serving_in_thread(answer: Answer) -> Iterator[Server]:
    """The same beside blocking code: the server has a thread and a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = serving(answer)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
