"""Fetching files that are not on the node: uploads from a server, URLs from hosts that the operator allowed (H1).

A URL's host is checked at every redirect, and the address it turned out to have is checked before anything is sent: link-local
addresses (where clouds keep credentials) are never asked, whatever a name resolves to, and this machine itself only where the
operator wrote the host without a pattern.
"""

from __future__ import annotations

import fnmatch
import hashlib
import http.client
import ipaddress
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from headway.domain.addresses import of_the_node, reached
from headway.domain.units import size_text

TIMEOUT_S = 30.0
REDIRECTS = 5
PIECE = 2**20
_MOVED = (301, 302, 303, 307, 308)


class CannotFetch(Exception):
    """Why something could not be fetched."""


def allowed(host: str, patterns: list[str]) -> bool:
    """Whether the operator lets tasks fetch from this host: a name, or a pattern such as *.example.org."""
    return any(fnmatch.fnmatchcase(host.lower(), pattern.lower()) for pattern in patterns)


def fetch_url(url: str, target: Path, *, hosts: list[str], limit: int) -> str:
    """Fetch a URL into a file; returns the SHA-256 of what came."""
    first, by = url, ""
    for _ in range(REDIRECTS + 1):
        parts = _read(url, by)
        host = parts.hostname or ""
        if not allowed(host, hosts):
            known = ", ".join(hosts) or "none"
            raise CannotFetch(f"this node may not fetch from {host!r}{by}; the operator allows: {known} (setting fetch_hosts)")
        connection = connect(url, None)
        try:
            check_address(connection, host, hosts)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"user-agent": "headway", "accept": "*/*"})
            response = connection.getresponse()
            if response.status in _MOVED and (where := response.getheader("location")):
                url, by = urljoin(url, where), f" (redirected from {first})"
                continue
            if response.status != 200:
                raise CannotFetch(f"{url}{by} answered {response.status} {response.reason}")
            return _keep(response, target, limit, url)
        except TimeoutError:
            raise CannotFetch(f"{url}{by} could not be fetched: nothing came for {TIMEOUT_S:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise CannotFetch(f"{url}{by} could not be fetched: {why}") from error
        finally:
            connection.close()
    raise CannotFetch(f"{first} redirects more than {REDIRECTS} times")


def _read(url: str, by: str) -> SplitResult:
    """The parts of a URL; CannotFetch when it is none, or of a kind that we do not fetch. A redirect may say anything."""
    why = ""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError as error:  # such as a port of six digits
        why = f": {error}"
    raise CannotFetch(f"{url!r} is not a URL we fetch{by}{why}")


class UploadServers:
    """The servers of this agent, asked with its own token: for uploads, and for what a URL was pinned to."""

    def __init__(self, urls: list[str], token: str | None, tls_ca: str | None) -> None:
        self._urls, self._token, self._tls_ca = urls, token, tls_ca

    def upload(self, definition: int, digest: str, target: Path, limit: int) -> None:
        """An upload of the tenant that owns the definition."""
        response = self._ask("GET", f"/v1/nodes/definitions/{definition}/uploads/{digest}")
        try:
            found = _keep(response, target, limit, "the upload")
        except (OSError, http.client.HTTPException) as error:
            raise CannotFetch(f"the upload could not be fetched: {error}") from None
        if found != digest:
            raise CannotFetch("the upload came damaged: its checksum is another")

    def pin(self, definition: int, url: str, digest: str) -> str:
        """What this URL had at its first fetch for this tenant; now, when this is the first."""
        body = json.dumps({"url": url, "sha256": digest})
        answer: dict[str, Any] = json.loads(self._ask("POST", f"/v1/nodes/definitions/{definition}/pins", body).read())
        return str(answer["sha256"])

    def _ask(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        why = "no server"
        for url in self._urls:
            connection = connect(url, self._tls_ca)
            headers = {"authorization": f"Bearer {self._token or ''}", "content-type": "application/json"}
            try:
                connection.request(method, path, body=body, headers=headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                why = f"{url}: {error}"
                continue
            if response.status < 300:
                return response
            why = _detail(response)
            if response.status < 500:
                break
        raise CannotFetch(why)


def _detail(response: http.client.HTTPResponse) -> str:
    try:
        return str(json.loads(response.read()).get("detail"))
    except (ValueError, AttributeError, OSError):
        return f"the server answered {response.status}"


def connect(url: str, tls_ca: str | None, timeout: float = TIMEOUT_S) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=tls_ca)
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)


def check_address(connection: http.client.HTTPConnection, host: str, hosts: list[str]) -> None:
    """Connect, and look whom a name led to before anything is said there."""
    connection.connect()
    address = reached(ipaddress.ip_address(connection.sock.getpeername()[0]))
    if of_the_node(address) and not address.is_loopback:
        raise CannotFetch(f"{host!r} is {address}, where clouds tell a node's secrets or nobody is: nothing is asked there")
    if address.is_loopback and host.lower() not in (name.lower() for name in hosts):
        raise CannotFetch(f"{host!r} is this node itself ({address}): the operator must name it in fetch_hosts without a pattern")


def _keep(response: http.client.HTTPResponse, target: Path, limit: int, what: str) -> str:
    too_large = f"{what} is larger than {size_text(limit)}, the most that this node keeps (setting prepared_size)"
    if (response.length or 0) > limit:
        raise CannotFetch(too_large)
    digest, size = hashlib.sha256(), 0
    with open(target, "wb") as file:
        while piece := response.read(PIECE):
            size += len(piece)
            if size > limit:
                raise CannotFetch(too_large)
            digest.update(piece)
            file.write(piece)
    if response.length:  # what is still to come, and does not: http.client says nothing
        raise CannotFetch(f"{what} broke off after {size} of {size + response.length} bytes")
    return digest.hexdigest()
