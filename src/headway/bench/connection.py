"""One kept-alive HTTP/1.1 connection at the smallest price: bytes out, status and body back.

The load generators share the machine with what they measure, so each microsecond of theirs is missing there. This knows
only what our server sends to a POST: a status line and a body of known length.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast
from urllib.parse import urlsplit


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a whole request; the answer's status and body."""
        if self._transport is None:
            raise ConnectionError("the server closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the connection was lost: {exc or 'closed by the server'}"))

    def data_received(self, data: bytes) -> None:
        self._data += data
        found = parse(self._data)
        if found is not None and self._answer is not None and not self._answer.done():
            self._data.clear()
            self._answer.set_result(found)


def parse(data: bytes | bytearray) -> tuple[int, bytes] | None:
    """The status and body once all of it is there."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(data[:end]).lower()
    status = int(head[9:12])
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        raise ConnectionError("an answer without content-length")
    stop = head.find(b"\r\n", at + 2)
    length = int(head[at + 17 : stop if stop > 0 else None])
    start = end + 4
    return (status, bytes(data[start : start + length])) if len(data) >= start + length else None


async def connect(url: str) -> Connection:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, parts.hostname or "", port, ssl=secure)
    return connection
