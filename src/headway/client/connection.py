"""Requests that are tried again while that is safe and the patience lasts.

Safe means: the request changes nothing, or carries a key that makes a second one harmless (`repeatable`), or certainly
had no effect (nothing was sent, or a limit was exceeded). Everything else is told to the caller, who alone knows
whether to try again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from headway.client import context
from headway.client.problems import error_from
from headway.errors import LimitExceeded, Unavailable, VersionMismatch
from headway.wire.http import Http, NotSent, Response

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


class Connection:
    """One server, or several equal ones: when one is not reachable the next is asked."""

    def __init__(self, urls: list[str], *, token: str | None = None, tls_ca: str | None = None, patience: float = 30.0) -> None:
        self._servers = [Http(url, token=token, tls_ca=tls_ca) for url in urls]
        self._at = 0
        self._met = False
        self._closed = False
        self.patience = patience

    @property
    def url(self) -> str:
        return self._servers[self._at].base_url

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        timeout: float | None = 30.0,
        repeatable: bool | None = None,
    ) -> T:
        """The answer as `kind`, or the error behind the problem. `repeatable` is by method when not said."""
        target = with_query(path, query)
        return read(await self.send(method, target, body=body, headers=headers, timeout=timeout, repeatable=repeatable), kind)

    async def send(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        timeout: float | None = 30.0,
        repeatable: bool | None = None,
    ) -> Response:
        """The answer as it came, for who needs its headers."""
        if method != "GET":
            context.check_loaded()
        again = method == "GET" if repeatable is None else repeatable
        attempt = Patience(self.patience)
        while True:
            self._check_open()
            try:
                response = await self._servers[self._at].request(
                    method, target, body=body, headers=headers, timeout=timeout, idempotent=again
                )
            except ConnectionError as error:
                await self.after_loss(error, attempt, again=again)
                continue
            self._met = True
            if response.status < 400:
                return response
            await _after_refusal(response, attempt, again=again)

    async def lines(self, path: str, query: Mapping[str, Any] | None = None, **headers: str) -> AsyncIterator[bytes]:
        """The lines of a streamed answer as they come. Nothing is tried again: only the caller knows where it was, and
        tells it to `after_loss`."""
        self._check_open()
        server = self._servers[self._at]
        async with server.stream("GET", with_query(path, query), headers=headers) as (response, pieces):
            self._met = True
            if response.status >= 400:
                response.body = b"".join([piece async for piece in pieces])
                raise error_from(response)
            rest = b""
            async for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line
            if rest:
                yield rest

    async def close(self) -> None:
        self._closed = True
        for server in self._servers:
            await server.close()

    def _check_open(self) -> None:
        """A closed one would open connections again that nobody closes."""
        if self._closed:
            raise RuntimeError("this AsyncClient is closed: make a new one")

    async def after_loss(self, error: Exception, attempt: Patience, *, again: bool) -> None:
        """Wait for the next try, at the next server, or give up: at once if nobody ever answered, for then the address is likely
        wrong."""
        unheard = isinstance(error, NotSent) and not self._met and len(self._servers) == 1
        if unheard or not (again or isinstance(error, NotSent)):
            raise error
        self._at = (self._at + 1) % len(self._servers)
        await attempt.pause(error)


class Patience:
    """Longer and longer pauses until the time is over; then the trouble itself is raised."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._next = FIRST_PAUSE

    async def pause(self, trouble: Exception, at_least: float = 0.0) -> None:
        pause = max(at_least, self._next * random.uniform(0.5, 1.0))
        self._next = min(self._next * 2, LONGEST_PAUSE)
        if time.monotonic() + pause > self._until:
            raise trouble
        await asyncio.sleep(pause)


async def _after_refusal(response: Response, attempt: Patience, *, again: bool) -> None:
    """Wait as long as the server asks, when it is only busy; any other answer is the answer."""
    error = error_from(response)
    # "Not available" may mean that the database went away in the middle, or that a gateway gave up on the server:
    # whether it was done is then unknown. A limit is checked before anything is done.
    if not (isinstance(error, LimitExceeded) or (again and isinstance(error, Unavailable))):
        raise error
    await attempt.pause(error, at_least=float(error.extra.get("retry_after", 0.0)))


def read(response: Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.body, type=kind)
    except msgspec.DecodeError as error:
        raise VersionMismatch(
            f"the server's answer is not what this client understands: {error}", hint="do their versions fit together?"
        ) from error


def with_query(path: str, query: Mapping[str, Any] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path
