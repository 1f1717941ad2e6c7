"""One conversation with a server: finding it, asking, and turning its problems back into our errors.

Commands write `talk(terminal, ask)` with an async function that gets the Server. The server is the one named by --url,
HEADWAY_URL or the settings file; else the `headway up` that runs in the data folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headway.cli.terminal import Terminal
from headway.client import inside
from headway.client.discovery import Place, find
from headway.client.problems import error_from
from headway.errors import InvalidInput, Unavailable
from headway.wire.http import CLOSED, Http, NotSent, Response

T = TypeVar("T")
P = TypeVar("P", bound="Paged")
PAGE = 1000
PATIENCE_S = 30.0  # with a server that went away: a restart takes seconds
PAUSE_S = 0.3
# By the reason that OpenSSL gives: the module ssl is loaded by none but those who speak TLS.
TLS_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "HEADWAY_TLS_CA names the authority that signed its certificate",
    "WRONG_VERSION_NUMBER": "that server does not speak TLS: its address begins with http://",
}
# Of a certificate that its authority did sign, by OpenSSL's number.
_OTHER_NAME = "its certificate names other addresses than this one: use one of those, or make one that names this too"
CERTIFICATE_HINTS = {
    9: "its certificate is of the future: is the clock of this machine right?",
    10: "its certificate is too old (or the clock of this machine wrong): make a new one for the server and restart that",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}


class Paged(Protocol):
    next: str | None


class Server:
    """The server's API, typed by what the caller expects back."""

    def __init__(self, place: Place, *, tls_ca: str | None = None) -> None:
        urls = [url.strip() for url in place.url.split(",") if url.strip()]  # several equal ones: any will do
        self.inside = inside.of(place.token)  # set when the command is run by a task
        self._https = [Http(url, token=place.token, tls_ca=tls_ca) for url in urls]
        self._at = 0
        self._met = False  # it answered once: the address is right

    @property
    def url(self) -> str:
        return self._http.base_url

    @property
    def _http(self) -> Http:
        return self._https[self._at % len(self._https)]

    async def get(self, path: str, kind: type[T], *, timeout: float | None = 30.0, **query: Any) -> T:
        return await self.send("GET", with_query(path, query), kind, timeout=timeout)

    async def pages(self, path: str, kind: type[P]) -> list[P]:
        """Every page of a list that has a cursor."""
        found = [await self.get(path, kind, limit=PAGE)]
        while found[-1].next is not None:
            found.append(await self.get(path, kind, limit=PAGE, cursor=found[-1].next))
        return found

    async def post(
        self, path: str, kind: type[T], body: Any = None, *, timeout: float | None = 30.0, repeatable: bool = False
    ) -> T:
        content = b"" if body is None else msgspec.json.encode(body)
        return await self.send("POST", path, kind, content, timeout=timeout, repeatable=repeatable)

    async def send(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        timeout: float | None = 30.0,
        repeatable: bool = False,
    ) -> T:
        """One request; its answer as `kind`, or the error behind the problem it answered with. Looks, and what else is `repeatable`,
        may be asked twice."""
        response = await self._answer(method, path, body, content_type, timeout, repeatable=repeatable or method == "GET")
        return msgspec.json.decode(response.body, type=kind)

    async def watch(self, path: str, kind: type[T], *, seen: str | None, wait: float) -> tuple[T, str | None]:
        """What is there once it differs from what was `seen`, or after `wait` seconds; and the mark to give next time."""
        path = with_query(path, {"wait": wait, "seen": seen})
        response = await self._answer("GET", path, b"", "application/json", wait + 30.0, repeatable=True)
        return msgspec.json.decode(response.body, type=kind), response.headers.get("etag")

    async def _answer(
        self, method: str, path: str, body: bytes, content_type: str, timeout: float | None, *, repeatable: bool
    ) -> Response:
        """A server that cannot be reached is passed over for the next. What a task asks may be asked twice (its submissions have
        keys), and it had better be: a server that restarts is no reason for a task to fail, nor for who follows one to leave."""
        patience = Patience(self.inside is not None or (repeatable and self._met))
        tried = 0
        while True:
            try:
                response = await self._http.request(method, path, body=body, content_type=content_type, timeout=timeout)
            except (ConnectionError, TimeoutError) as error:
                tried += 1
                untried = isinstance(error, NotSent) and tried < len(self._https)
                if not untried and patience.is_over():
                    raise no_answer(self.url, error) from error
                self._at += 1
                if not untried:
                    await asyncio.sleep(PAUSE_S)
                continue
            self._met = True
            if response.status == 503 and not patience.is_over():
                await asyncio.sleep(PAUSE_S)
                continue
            if response.status >= 400:
                raise error_from(response)
            return response

    async def is_back(self) -> bool:
        """Wait for a server that went away while it was listened to; False when it never answered, or does not come back."""
        patience = Patience(self._met)
        while not patience.is_over():
            self._at += 1
            await asyncio.sleep(PAUSE_S)
            try:
                if (await self._http.request("GET", "/readyz", timeout=PATIENCE_S)).status < 400:
                    return True
            except (ConnectionError, TimeoutError):
                continue
        return False

    async def lines(
        self, path: str, *, behind: Callable[[bytes], str | None] | None = None, **query: Any
    ) -> AsyncIterator[bytes]:
        """The lines of a streamed answer, as they come. When the server goes away and `behind` tells the position of a line, it is
        asked for what comes after the last one. An older server tells no positions: as many lines as came are then passed over."""
        last: bytes | None = None
        came, patience = 0, Patience(behind is not None)
        while True:
            after = behind(last) if last is not None and behind is not None else None
            passed = came if after is None else 0
            try:
                async for line in self._lines(path, {**query, "after": after}):
                    patience = Patience(behind is not None)
                    if passed:
                        passed -= 1
                        continue
                    last, came = line, came + 1
                    yield line
                return
            except Unavailable:
                if not self._met or patience.is_over():
                    raise
                self._at += 1
                await asyncio.sleep(PAUSE_S)

    async def _lines(self, path: str, query: dict[str, Any]) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self.pieces(path, **query):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if line:
                    yield line
        if rest:
            yield rest

    async def pieces(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        """The bytes of a streamed answer, as they come."""
        try:
            async with self._http.stream("GET", with_query(path, query)) as (response, pieces):
                if response.status >= 400:
                    response.body = b"".join([piece async for piece in pieces])
                    raise error_from(response)
                self._met = True
                async for piece in pieces:
                    yield piece
        except (ConnectionError, TimeoutError) as error:
            raise no_answer(self.url, error) from error

    async def close(self) -> None:
        for http in self._https:
            await http.close()


def talk(terminal: Terminal, ask: Callable[[Server], Awaitable[T]]) -> T:
    """Run `ask` with the server, and hang up."""
    return asyncio.run(_talk(terminal, ask))


async def _talk(terminal: Terminal, ask: Callable[[Server], Awaitable[T]]) -> T:
    settings = terminal.settings()
    place = find(settings)
    if place is None:
        raise Unavailable(
            f"no server is configured, and no `headway up` runs in {settings.data_dir}",
            hint="start one with `headway up`, or name one with --url or HEADWAY_URL",
        )
    server = Server(place, tls_ca=settings.tls_ca)
    try:
        return await ask(server)
    finally:
        await server.close()


class Patience:
    """With a server that does not answer, from the first time on that it does not."""

    def __init__(self, is_patient: bool) -> None:
        self._until = None if is_patient else 0.0

    def is_over(self) -> bool:
        if self._until is None:
            self._until = time.monotonic() + PATIENCE_S
        return time.monotonic() >= self._until


def no_answer(url: str, error: Exception) -> Unavailable:
    hint = CERTIFICATE_HINTS.get(getattr(error.__cause__, "verify_code", 0)) or TLS_HINTS.get(
        getattr(error.__cause__, "reason", ""),
        "is it running? `headway up` starts one on this machine; --url or HEADWAY_URL names another",
    )
    reason = str(error).removeprefix(f"{url}: ") or type(error).__name__
    if url.startswith("http://") and reason.endswith(CLOSED):
        hint = "does it speak TLS? Its address begins with https:// then"
    return Unavailable(f"no server answers at {url}: {reason}", hint=hint)


def task_path(task_id: str, *rest: str) -> str:
    """The path of a task, whatever the user typed as its id."""
    if not task_id:  # a variable of a script that was not set: the path would be that of the list
        raise InvalidInput("the id of the task is empty", field="id")
    return "/".join(["/v1/tasks", quote(task_id, safe=""), *rest])


def tree_path(tree_id: str, *rest: str) -> str:
    if not tree_id:
        raise InvalidInput("the id of the tree is empty", field="id")
    return "/".join(["/v1/trees", quote(tree_id, safe=""), *rest])


def with_query(path: str, query: dict[str, Any]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path
