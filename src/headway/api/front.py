"""The way around the framework for the call that decides how many tasks come in: their submission.

Routing, signature, scopes and response objects of the framework were half of what a single submission cost. The functions called here are
the very handlers of the routes, and so are the errors; only how a request is read and an answer is written differs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from litestar import Litestar, Response
from litestar.types import Receive, Scope, Send

from headway.api import problems, tasks
from headway.errors import HeadwayError, TooLarge


class Disconnected(Exception):
    """The client went away before it had said everything."""


class LeanRequest:
    """As much of a request as a handler looks at."""

    __slots__ = ("_limit", "_receive", "app", "headers", "method", "scope")

    def __init__(self, app: Litestar, scope: Scope, receive: Receive, limit: int) -> None:
        self.app, self.scope, self.method = app, scope, "POST"
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._receive, self._limit = receive, limit

    async def body(self) -> bytes:
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = cast(bytes, message.get("body", b""))
            size += len(chunk)
            if size > self._limit:
                raise TooLarge(f"the body has more than {self._limit} bytes", hint="send the tasks in several requests")
            chunks.append(chunk)
            more = bool(message.get("more_body", False))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class Front:
    """Stands before the application."""

    def __init__(self, app: Litestar, *, max_body: int) -> None:
        self.app = app
        self._max_body = max_body
        self._submit = cast(Callable[[Any], Awaitable[Response[bytes]]], tasks.submit.fn)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = cast(dict[str, Any], scope)
        if asked["type"] == "http" and asked["path"] == "/v1/tasks" and asked["method"] == "POST":
            await self._answer(LeanRequest(self.app, scope, receive, self._max_body), send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, request: LeanRequest, send: Send) -> None:
        try:
            response = await self._submit(request)
        except Disconnected:
            return
        except HeadwayError as error:
            response = problems.on_headway_error(cast(Any, request), error)
        except Exception as error:
            response = problems.on_unexpected(cast(Any, request), error)
        body = response.content
        headers = [(b"content-type", str(response.media_type).encode()), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
        await send({"type": "http.response.start", "status": response.status_code or 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
