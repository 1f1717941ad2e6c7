"""The way of isolated tasks to the server: subtasks, once, checkpoints, without a network (C4 H10 H11).

A process of its own that holds nothing worth stealing: no token, no key. It takes connections from a socket that every sandbox sees, lets
through what a running task may ask for (ROUTES) and only with the token of an attempt, and passes the answer back. Whose token it is, and
whether that attempt still runs, the server decides. One request to a connection; each user of a slot has so many at a time and so many a
second. It ends when nobody has asked for a while; the supervisor keeps the socket and starts another (door.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import struct
import sys
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headway.agent import tree
from headway.agent.door import BELOW, LISTEN_FD
from headway.wire import PROTOCOL_HEADER
from headway.wire.task_token import PREFIX

IDLE_S = 60.0
HEAD_S, WHOLE_S, CONNECT_S = 10.0, 900.0, 5.0
HEAD = 16 * 1024
PIECE = 64 * 1024
ALL, EACH = 256, 16  # connections: in all, and of one user
RATE, BURST = 50.0, 100.0  # requests a second of one user; who asks more often waits
_ID = r"/v1/tasks/[0-9]{1,19}"
ROUTES = {
    "GET": re.compile(rf"{_ID}(/attempts|/logs|/checkpoint)?"),
    "PUT": re.compile(rf"{_ID}/checkpoint"),
    "POST": re.compile(rf"/v1/tasks|/v1/tasks/wait|/v1/uploads|{_ID}/(cancel|once)"),
}
PASSED = frozenset({"authorization", "content-type", "content-length", "accept", "idempotency-key", "expect", PROTOCOL_HEADER.lower()})
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(r"[\x21-\x7e]+")
_TOKEN = re.compile(rf"Bearer {PREFIX}[0-9]+_[0-9]+_[0-9a-f]+")
_LENGTH = re.compile(r"[0-9]{1,12}")


class Refused(Exception):
    """Not let through: a status, its code as servers say it, and why."""

    def __init__(self, status: str, code: str, why: str) -> None:
        super().__init__(why)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Asked:
    """A request that may pass, without what it said beside it."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def length(self) -> int:
        return int(self.headers.get("content-length", "0"))


def read_head(head: bytes) -> Asked:
    """The head of a request; Refused unless it is one that a task may make."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1" or not _TARGET.fullmatch(words[1]):
        raise Refused("400 Bad Request", "invalid_input", "not a request of HTTP/1.1")
    method, target = words[0], words[1]
    route = ROUTES.get(method)
    if route is None or not route.fullmatch(target.partition("?")[0]):
        raise Refused("403 Forbidden", "forbidden", f"a sandboxed task may not ask for {method} {target[:200]}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        wrong = not colon or name in headers or name == "transfer-encoding" or name != name.strip()
        if wrong or _CONTROL.search(value):  # a line break alone would be the end of a header to some servers
            raise Refused("400 Bad Request", "invalid_input", f"a header that is not taken: {name[:50]}")
        headers[name] = value.strip()
    headers = {name: value for name, value in headers.items() if name in PASSED}
    if not _TOKEN.fullmatch(headers.get("authorization", "")):
        raise Refused("401 Unauthorized", "unauthorized", "the token of the attempt is needed: Authorization: Bearer $HEADWAY_TOKEN")
    if not _LENGTH.fullmatch(headers.get("content-length", "0")):
        raise Refused("400 Bad Request", "invalid_input", "a length that is none")
    return Asked(method, target, headers)


@dataclass
class Peer:
    """One user of a slot."""

    connections: int = 0
    free_at: float = 0.0


@dataclass
class Relay:
    urls: list[str]
    tls: ssl.SSLContext | None
    peers: dict[int, Peer] = field(default_factory=dict)
    open: int = 0

    async def serve(self, listener: socket.socket) -> None:
        """Until nobody has come for a while."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    sock, _ = await loop.sock_accept(listener)
            except TimeoutError:
                if not self.open:
                    return
                continue
            except OSError:  # no descriptors: some connection must end first
                await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self._connection(sock))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _connection(self, sock: socket.socket) -> None:
        uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        peer = self.peers.setdefault(uid, Peer())
        if self.open >= ALL or peer.connections >= EACH:
            sock.close()
            return
        self.open += 1
        peer.connections += 1
        try:
            reader, writer = await asyncio.open_connection(sock=sock, limit=PIECE)
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(WHOLE_S):
                    await self._pace(peer)
                    await self._request(reader, writer)
            writer.close()
        finally:
            self.open -= 1
            peer.connections -= 1

    async def _pace(self, peer: Peer) -> None:
        now = asyncio.get_running_loop().time()
        peer.free_at = max(peer.free_at, now - BURST / RATE) + 1 / RATE
        await asyncio.sleep(max(peer.free_at - now, 0.0))

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            if len(head) > HEAD:
                raise Refused("431 Request Header Fields Too Large", "too_large", "the head of the request is too long")
            asked = read_head(head)
            there_reader, there_writer, begin = await self._connect()
        except Refused as refused:
            writer.write(_answer(refused))
            await writer.drain()
            return
        try:
            there_writer.write(_head(asked, *begin))
            sending = asyncio.create_task(_send(reader, there_writer, asked.length))
            try:
                while data := await there_reader.read(PIECE):
                    writer.write(data)
                    await writer.drain()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            there_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, tuple[str, str]]:
        """To the first server that takes it: a connection, the name it is called by, and where its paths begin."""
        why = ""
        for url in self.urls:
            parts = urlsplit(url)
            secure = parts.scheme == "https"
            try:
                async with asyncio.timeout(CONNECT_S):
                    port = parts.port or (443 if secure else 80)
                    pair = await asyncio.open_connection(parts.hostname, port, ssl=self.tls if secure else None)
            except (OSError, TimeoutError) as error:  # also a certificate that is not to be believed
                why = f": {error}" if str(error) else ": it does not answer"
            else:
                return (*pair, (parts.netloc.rpartition("@")[2], parts.path.rstrip("/")))
        raise Refused("503 Service Unavailable", "unavailable", f"no server can be reached{why}")


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int) -> None:
    while left > 0 and (data := await reader.read(min(PIECE, left))):
        left -= len(data)
        writer.write(data)
        await writer.drain()


def _head(asked: Asked, host: str, prefix: str) -> bytes:
    headers = {"host": host, "connection": "close", **asked.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{asked.method} {prefix}{asked.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def _answer(refused: Refused) -> bytes:
    status, title = refused.status.split(" ", 1)
    problem = {"type": "about:blank", "title": title, "status": int(status), "code": refused.code, "detail": str(refused)}
    body = json.dumps(problem).encode()
    head = f"HTTP/1.1 {refused.status}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body


def main() -> None:
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(PermissionError):  # it is more already
        os.setpriority(os.PRIO_PROCESS, 0, int(os.environ.get(BELOW, "5")))
    tls_ca, *urls = sys.argv[1:]
    secure = any(url.startswith("https:") for url in urls)
    tls = ssl.create_default_context(cafile=tls_ca or None) if secure else None
    asyncio.run(Relay(urls, tls).serve(socket.socket(fileno=LISTEN_FD)))
