"""One POST to an address a tenant chose: resolved once, checked, and connected to exactly what was checked (J6).

A name that changes its address between check and use gains nothing; redirects are not followed; little of the answer is read.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from headway.domain.addresses import Network
from headway.policy.webhook import refused
from headway.version import VERSION

HEAD_LIMIT = 16 * 1024
BODY_LIMIT = 1024
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_RETRY_AFTER = re.compile(rb"^retry-after:[ \t]*(\d{1,6})[ \t]*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Posted:
    """What came of it: a status, or why there is none."""

    status: int | None
    error: str | None = None
    wait_s: float | None = None

    @property
    def good(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


async def post(url: str, body: bytes, headers: dict[str, str], *, allowed: Sequence[Network], timeout: float) -> Posted:
    try:
        async with asyncio.timeout(timeout):
            return await _post(url, body, headers, allowed)
    except TimeoutError:
        return Posted(None, f"no answer within {timeout:g} s")
    except (OSError, ssl.SSLError, UnicodeError) as error:
        return Posted(None, f"{type(error).__name__}: {error}"[:300])


async def _post(url: str, body: bytes, headers: dict[str, str], allowed: Sequence[Network]) -> Posted:
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    address, why = await _resolve(host, port, allowed)
    if address is None:
        return Posted(None, why)
    reader, writer = await asyncio.open_connection(
        address, port, limit=HEAD_LIMIT, ssl=_trusting() if secure else None, server_hostname=host if secure else None
    )
    try:
        writer.write(_request(parts.netloc, parts.path or "/", parts.query, headers, body))
        await writer.drain()
        return await _answer(reader)
    finally:
        writer.transport.abort()


@cache
def _trusting() -> ssl.SSLContext:
    """The machine's own list of authorities, read once: it costs 10 ms and more."""
    return ssl.create_default_context()


async def _resolve(host: str, port: int, allowed: Sequence[Network]) -> tuple[str | None, str]:
    """The first of the name's addresses that may be reached."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    why = f"{host} has no address"
    for *_, place in found:
        address = str(place[0])
        refusal = refused(address, allowed)
        if refusal is None:
            return address, ""
        why = f"not allowed: {refusal}"
    return None, why


def _request(netloc: str, path: str, query: str, headers: dict[str, str], body: bytes) -> bytes:
    target = path + (f"?{query}" if query else "")
    lines = {
        "host": netloc, "user-agent": f"headway/{VERSION}", "content-length": str(len(body)), "connection": "close",
        "content-type": "application/cloudevents+json; charset=utf-8", **headers,
    }  # fmt: skip
    head = f"POST {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    return head.encode("ascii") + body


async def _answer(reader: asyncio.StreamReader) -> Posted:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return Posted(None, "the head of the answer is too long")
    except asyncio.IncompleteReadError as cut:
        head = cut.partial
    match = _STATUS.match(head)
    if match is None:
        return Posted(None, "the answer is not HTTP")
    status = int(match[1])
    if 200 <= status < 300:
        return Posted(status)
    if 300 <= status < 400:
        return Posted(status, f"HTTP {status}: redirects are not followed")
    wait = _RETRY_AFTER.search(head.replace(b"\r\n", b"\n"))
    text = (await reader.read(BODY_LIMIT)).decode(errors="replace").replace("\x00", "").strip()
    said = f": {text[:200]}" if text else ""
    return Posted(status, f"HTTP {status}{said}", float(wait[1]) if wait else None)
