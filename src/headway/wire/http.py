"""A small HTTP/1.1 client for one origin, shared by the Python client, the CLI and the agent.

It does what Headway needs and no more: kept-alive connections, each used by one request at a time; bodies by length, by
chunks or until the end of the connection; TLS; streaming. docs/decisions/0003-own-http-client.md has the numbers that
decided for it.

Transport trouble is a builtin ConnectionError or TimeoutError. `NotSent` is the ConnectionError that promises that no
byte of the request left this process, so that anything may be tried again after it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from headway.errors import ConfigError
from headway.version import VERSION
from headway.wire import PROTOCOL, PROTOCOL_HEADER
from headway.wire.keep_alive import keep_alive

IDLE_S = 30.0  # longer unused, a connection may have been dropped silently on the way
STREAM_BUFFER = 256 * 1024  # bytes of a stream that nobody has read yet; above it the peer is slowed down
IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
# What would let a path or a value write headers of its own. Said by what is allowed: the other way round, sets that reach
# to the end of Unicode, takes 13 ms to compile.
_UNSAFE = re.compile(r"[^\x21-\x7e]")
_UNSAFE_VALUE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
CLOSED = "closed by the server"  # the end of a connection that was not answered: TLS is spoken there, perhaps


class NotSent(ConnectionError):
    """No connection: nothing of the request was sent."""


class Stale(ConnectionError):
    """A kept-alive connection ended before anything was received; whether the server acted is unknown."""


@dataclass(slots=True)
class Response:
    """An answer; header names are in lower case. A streamed answer has an empty body."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class Http:
    """Requests to one origin. At most `limit` at once; more of them wait for their turn. Streams are not counted."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        tls_ca: str | None = None,
        connect_timeout: float = 5.0,
        limit: int = 128,
    ) -> None:
        parts = urlsplit(base_url)
        self._socket = parts.path if parts.scheme == "unix" else ""  # unix:/path/of/socket, as inside a sandbox
        if not self._socket and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"{base_url!r} is not an http:// or https:// address")
        self.base_url = base_url.rstrip("/")
        self._host, self._prefix = parts.hostname or "", "" if self._socket else parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = _tls_context(tls_ca) if parts.scheme == "https" else None
        self._connect_timeout = connect_timeout
        host = parts.netloc.rpartition("@")[2] or "headway"
        fixed = {"host": host, "user-agent": f"headway/{VERSION}", PROTOCOL_HEADER: str(PROTOCOL)}
        if token is not None:
            fixed["authorization"] = f"Bearer {token}"
        self._fixed_head = _header_lines(fixed)
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._room = asyncio.Semaphore(limit)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        timeout: float | None = 30.0,
        idempotent: bool | None = None,
    ) -> Response:
        """The whole answer, whatever its status. `idempotent` (default: by method) allows a second try on a fresh
        connection when a kept-alive one turns out to be dead."""
        message = self._message(method, path, body, content_type, headers)
        again = method in IDEMPOTENT if idempotent is None else idempotent
        try:
            async with asyncio.timeout(timeout), self._room:
                try:
                    return await self._ask(self._reusable() or await self._connect(), message)
                except Stale:
                    if not again:
                        raise
                    return await self._ask(await self._connect(), message)
        except TimeoutError:
            raise TimeoutError(f"{method} {self.base_url}{path}: no answer within {timeout} s") from None

    def stream(self, method: str, path: str, *, headers: dict[str, str] | None = None, timeout: float | None = 30.0) -> Streamed:
        """The head of the answer, at the latest after `timeout`, and its body piece by piece as long as it comes."""
        return Streamed(self, self._message(method, path, b"", "", headers), f"{method} {self.base_url}{path}", timeout)

    async def begin(self, message: bytes, what: str, timeout: float | None) -> tuple[_Connection, Response]:
        """A connection of its own, and the head of the answer."""
        try:
            async with asyncio.timeout(timeout):
                connection = await self._connect()
                try:
                    return connection, await connection.send(message, whole=False)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError:
            raise TimeoutError(f"{what}: no answer within {timeout} s") from None

    async def close(self) -> None:
        """Close every connection; requests under way end with ConnectionError."""
        connections = list(self._open)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed
        self._idle.clear()

    def _message(self, method: str, path: str, body: bytes, content_type: str, headers: dict[str, str] | None) -> bytes:
        if _UNSAFE.search(path) or not path.startswith("/"):
            raise ValueError(f"{path!r} is not a path: it begins with a slash and is percent-encoded")
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fixed_head}"
        if headers:
            head += _header_lines(headers)
        if body:
            head += f"content-type: {content_type}\r\n"
        if body or method not in IDEMPOTENT:
            head += f"content-length: {len(body)}\r\n"
        return head.encode("latin-1") + b"\r\n" + body

    async def _ask(self, connection: _Connection, message: bytes) -> Response:
        try:
            response = await connection.send(message)
        except BaseException:  # cancelled or timed out too: an answer may still come and must not meet the next request
            connection.close()
            raise
        if connection.reusable():
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def _reusable(self) -> _Connection | None:
        """The most recently used idle connection, so that the others may grow old and go."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and time.monotonic() - connection.used_at < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self._dial(loop)
        except TimeoutError:
            raise NotSent(f"{self.base_url}: no connection within {self._connect_timeout} s") from None
        except OSError as error:
            raise NotSent(f"{self.base_url}: {error.strerror or error}") from error
        return connection

    async def _dial(self, loop: asyncio.AbstractEventLoop) -> tuple[asyncio.BaseTransport, _Connection]:
        if self._socket:
            return await loop.create_unix_connection(lambda: _Connection(loop, self._open), self._socket)
        return await loop.create_connection(lambda: _Connection(loop, self._open), self._host, self._port, ssl=self._tls)


class Streamed:
    """An answer that comes piece by piece; left, its connection is closed.

    Not written as a generator: when a loop ends with streams half read, it closes all generators at once, and one inside another in
    the wrong order.
    """

    def __init__(self, http: Http, message: bytes, what: str, timeout: float | None) -> None:
        self._http, self._asked = http, (message, what, timeout)

    async def __aenter__(self) -> tuple[Response, AsyncIterator[bytes]]:
        self._connection, response = await self._http.begin(*self._asked)
        return response, self._connection.pieces()

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()


class _Connection(asyncio.Protocol):
    """One connection and the one answer it waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, siblings: set[_Connection]) -> None:
        self._loop = loop
        self._siblings = siblings
        self._parser = HttpResponseParser(self)
        self._waiter: asyncio.Future[Response] | None = None
        self._wake: asyncio.Future[None] | None = None  # a reader of a stream waits for the next piece
        self.closed: asyncio.Future[None] = loop.create_future()
        self.alive = False
        self.used_at = 0.0
        self._used = False
        self._begin(whole=True)

    def _begin(self, *, whole: bool) -> None:
        self._whole = whole
        self._headers: dict[str, str] = {}
        self._pieces: deque[bytes] = deque()
        self._unread = 0
        self._received = False
        self._headed = False
        self._complete = False
        self._keep = False
        self._error: ConnectionError | None = None

    # -- what Http calls

    async def send(self, message: bytes, *, whole: bool = True) -> Response:
        """Send a request; the answer, or only its head when not `whole`."""
        if not self.alive:
            raise NotSent("the connection was closed by the server")
        self._begin(whole=whole)
        self._waiter = self._loop.create_future()
        self._transport.write(message)
        return await self._waiter

    def reusable(self) -> bool:
        """After an answer: may another request follow on this connection?"""
        self.used_at = time.monotonic()
        self._used = True
        return (
            self.alive
            and self._complete
            and not self._transport.is_closing()
            and self._keep
            and self._transport.get_write_buffer_size() == 0  # answered before it had read the request
        )

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. An end that is not the end of the answer is a ConnectionError."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._unread -= len(piece)
                yield piece
            if self._complete:
                return
            if self._error is not None:
                raise self._error
            self._transport.resume_reading()
            self._wake = self._loop.create_future()
            await self._wake

    def close(self) -> None:
        self.alive = False
        if self._complete:
            self._transport.close()
        else:
            self._transport.abort()  # what is left of the answer is of no interest

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being a subclass
        self.alive = True
        self._siblings.add(self)
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._complete:
            self.close()  # nobody asked
            return
        self._received = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the answer is not HTTP/1.1: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        self._siblings.discard(self)
        if self._headed and not self._complete and error is None and self._ends_with_connection():
            self.on_message_complete()
        elif not self._complete:
            kind = Stale if self._used and not self._received else ConnectionError
            self._fail(kind(f"the connection ended before the answer did: {error or CLOSED}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

    def _fail(self, error: ConnectionError) -> None:
        self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # -- what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self._headed = True
        if not self._whole:
            self._answer(b"")

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        if not self._whole:
            self._unread += len(piece)
            if self._unread > STREAM_BUFFER:
                self._transport.pause_reading()
            self._wake_reader()

    def on_message_complete(self) -> None:
        if not self._headed:  # 100 Continue and its like: the answer is still to come
            self._headers = {}
            return
        self._complete = True
        self._keep = self._parser.should_keep_alive()  # forgotten by the parser after this call
        if self._whole:
            self._answer(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
        self._wake_reader()

    def _answer(self, body: bytes) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(Response(self._parser.get_status_code(), self._headers, body))


def _header_lines(headers: dict[str, str]) -> str:
    for name, value in headers.items():
        if _UNSAFE.search(name) or _UNSAFE_VALUE.search(value):
            raise ValueError(f"{name}: not a header's value")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _tls_context(ca: str | None) -> Any:
    import ssl  # only who speaks TLS pays for loading it

    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # of TLS too
        reason = error.strerror or error
        raise ConfigError(f"the authority {ca} cannot be read: {reason}", hint="tls_ca (HEADWAY_TLS_CA) names a PEM file") from None
