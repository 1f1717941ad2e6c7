"""The way around the framework for the two calls that are made for every task: its submission, and the exchange of the agent that runs it.

Routing, signature, scopes, and the messages between server and application were half of what a single submission cost. The functions called
here are the very handlers of the routes, and so are the errors; only how a request is read and an answer is written differs: the body is
collected first, and headers and body leave in one write. What says that it is large, or not how large, goes to the framework, which looks
at the token before it reads: a stranger with many connections fills no memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from litestar import Litestar, Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headway import telemetry
from headway.api import nodes, problems, tasks
from headway.errors import HeadwayError

Handler = Callable[..., Awaitable[Response[bytes]]]
_SUBMIT = cast(Handler, tasks.submit.fn)
_EXCHANGE = cast(Handler, nodes.exchange.fn)
_TASKS, _NODE, _CALLS = b"/v1/tasks", b"/v1/nodes/", b"/exchange"
_ROUTES = {_SUBMIT: "/v1/tasks", _EXCHANGE: "/v1/nodes/{node}/exchange"}  # as the framework calls them
LONGEST_NODE = 10  # digits; a longer number is no node, and the framework says so
LARGEST = 2**20  # bytes of a body that is collected before anybody looks whose it is
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class LeanRequest:
    """As much of a request as a handler looks at."""

    __slots__ = ("_body", "app", "headers", "method", "scope")

    def __init__(self, app: SimpleNamespace, url: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.app, self.method, self.scope = app, "POST", {"path": url.decode("latin-1")}
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        self._body = body

    async def body(self) -> bytes:
        return self._body


class Call:
    """One request and its answer. What uvicorn's protocol looks at has the names of its RequestResponseCycle."""

    __slots__ = ("_answer", "_flow", "chunks", "disconnected", "keep_alive", "message_event", "more_body", "on_response", "queued",
                 "response_complete", "transport")  # fmt: skip

    def __init__(self, front: Front, answer: Callable[[bytes], Awaitable[Response[bytes]]], *, keep_alive: bool) -> None:
        self._answer, self._flow, self.transport = answer, front.flow, front.transport
        self.on_response: Callable[[], None] = front.on_response_complete
        self.keep_alive = keep_alive
        self.chunks: list[bytes] = []
        self.more_body, self.queued, self.disconnected, self.response_complete = True, False, False, False
        self.message_event = asyncio.Event()  # the body is whole, or the client is gone

    async def run_asgi(self, _app: object) -> None:
        """Runs once the body is whole; behind another request of the same connection perhaps before."""
        while self.more_body and not self.disconnected:
            self._flow.resume_reading()
            await self.message_event.wait()
        if self.more_body:
            return
        response = await self._answer(b"".join(self.chunks))
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if not self.disconnected:
            self.write(response)

    def write(self, response: Response[bytes]) -> None:
        self.chunks, self.response_complete = [], True
        lines = [
            STATUS_LINE[response.status_code or 200],
            b"content-type: %b\r\ncontent-length: %d\r\n" % (str(response.media_type).encode(), len(response.content)),
        ]
        lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in response.headers.items()]
        lines += [b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n", response.content]
        self.transport.write(b"".join(lines))
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class Front(HttpToolsProtocol):
    """One connection. Every other request goes to the application, as uvicorn does it."""

    cycle: Any  # a Call, or uvicorn's own

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        core = cast(Litestar, self.config.app).state.core
        self._app = SimpleNamespace(state=SimpleNamespace(core=core))  # looked at often, and the framework's own looks twice
        self._largest: int = min(LARGEST, core.settings.max_body)

    def on_headers_complete(self) -> None:
        answer = self._way() if self.parser.get_method() == b"POST" else None
        if answer is None:
            super().on_headers_complete()
            return
        before = self.cycle
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self.cycle = call = Call(self, answer, keep_alive=keep_alive)
        if before is not None and not before.response_complete:  # answers go out in the order of the requests
            call.queued = True
            self.flow.pause_reading()
            self.pipeline.appendleft((cast(Any, call), self.app))
        elif self.expect_100_continue:
            self.transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        call = self.cycle
        if not isinstance(call, Call):
            super().on_body(body)
        else:
            call.chunks.append(body)

    def on_message_complete(self) -> None:
        call = self.cycle
        if not isinstance(call, Call):
            super().on_message_complete()
        else:
            call.more_body = False
            call.message_event.set()
            if not call.queued:
                self._start_asgi_task(cast(Any, call), self.app)

    def _way(self) -> Callable[[bytes], Awaitable[Response[bytes]]] | None:
        """How to answer here; None for what is not ours."""
        url, headers = self.url, self.headers
        if not self._is_small(headers):
            return None
        if url == _TASKS:
            return lambda body: _answer(LeanRequest(self._app, url, headers, body), _SUBMIT)
        if url.startswith(_NODE) and url.endswith(_CALLS):
            number = url[len(_NODE) : -len(_CALLS)]
            if number.isdigit() and len(number) <= LONGEST_NODE:
                return lambda body: _answer(LeanRequest(self._app, url, headers, body), _EXCHANGE, int(number))
        return None

    def _is_small(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether the body is known to be small. The parser holds it to the length it has said."""
        length = b"0"
        for name, value in headers:
            if name == b"transfer-encoding":
                return False
            if name == b"content-length":
                length = value
        return int(length) <= self._largest


async def _answer(request: LeanRequest, handler: Handler, *arguments: int) -> Response[bytes]:
    began = time.perf_counter()
    try:
        response = await handler(request, *arguments)
    except HeadwayError as error:
        response = problems.on_headway_error(cast(Any, request), error)
    except Exception as error:
        response = problems.on_unexpected(cast(Any, request), error)
    telemetry.answered("POST", _ROUTES[handler], response.status_code or 200, time.perf_counter() - began)
    return response
