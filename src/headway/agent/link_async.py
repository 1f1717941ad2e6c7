"""The exchange side's end of the link, for asyncio."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from headway.agent.link import Frames, ToExchange, frame

_decode = msgspec.msgpack.Decoder(ToExchange).decode


class Link(asyncio.Protocol):
    """Sends messages to a supervisor, calls `heard` for each of its own, and `ended` is set when it is gone."""

    def __init__(self) -> None:
        self._heard: Callable[[object], None] = lambda message: None
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    async def connect(self, sock: socket.socket, heard: Callable[[object], None]) -> None:
        """What the supervisor has said already is heard before this returns."""
        self._heard = heard
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._heard(_decode(body))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.ended.set()

    def send(self, message: Any) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
