"""Where lines of output go: syslog, journald, files of the operator's folder, web addresses (H9)."""

from __future__ import annotations

import http.client
import os
import re
import socket
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from headway.agent.fetching import CannotFetch, allowed, check_address, connect

FILE = "file:"
FILE_LIMIT = 16 * 2**20  # then the file becomes FILE.1, and a new one is begun
FILES, DEEP = 100, 8  # of one tenant, and names of folders in a path: so no tenant fills the disk with its lines
TURNED = ".1"
TIMEOUT_S = 5.0
_INFO, _ERROR = 14, 11  # syslog: user facility, informational or error
_STREAMS = {1: "stdout", 2: "stderr"}
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._/-]")
_LATER = (408, 425, 429)  # answers that may be others in a while, as all from 500


class Line(NamedTuple):
    task: int
    attempt: int
    name: str
    stream: int
    at_ms: int
    text: str


class Refused(Exception):
    """It does not take these lines, and would not take them a second later."""


class Away(Exception):
    """It takes nothing now."""


def address(where: str) -> str:
    """What may be down: of a URL the host, of which nothing secret is said either."""
    if not is_web(where):
        return where
    parts = urlsplit(where)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def is_web(where: str) -> bool:
    return where.startswith(("http://", "https://"))


class Destinations:
    def __init__(self, settings: list[Any]) -> None:
        self._syslog, self._journald, self._folder, self._hosts = settings
        self._sockets: dict[str, socket.socket] = {}
        self._files: dict[str, set[str]] = {}  # by tenant

    def send(self, where: str, lines: list[Line]) -> None:
        """All of them, or Refused or Away with the reason. Only to a web address go several at a time."""
        try:
            if is_web(where):
                self._post(where, lines)
                return
            for line in lines:
                self._one(where, line)
        except (OSError, http.client.HTTPException, ValueError) as error:  # a ValueError is an address that is none
            for known in self._sockets.values():
                known.close()
            self._sockets.clear()
            raise Away(getattr(error, "strerror", None) or str(error) or type(error).__name__) from error

    def _one(self, where: str, line: Line) -> None:
        if where == "syslog":
            self._to_syslog(line)
        elif where == "journald":
            self._to_journald(line)
        else:
            self._to_file(where.removeprefix(FILE), line)

    def _to_syslog(self, line: Line) -> None:
        priority = _ERROR if line.stream == 2 else _INFO
        moment = time.strftime("%b %e %H:%M:%S", time.localtime(line.at_ms / 1000))
        tag = re.sub(r"[^A-Za-z0-9_.-]", "_", line.name)[:48]
        self._datagram(self._syslog, f"<{priority}>{moment} headway/{tag}[{line.task}]: {line.text}".encode())

    def _to_journald(self, line: Line) -> None:
        fields = {
            "MESSAGE": line.text, "PRIORITY": "3" if line.stream == 2 else "6", "SYSLOG_IDENTIFIER": "headway",
            "HEADWAY_TASK": str(line.task), "HEADWAY_ATTEMPT": str(line.attempt), "HEADWAY_NAME": line.name.replace("\n", " "),
        }  # fmt: skip
        self._datagram(self._journald, b"".join(f"{name}={value}\n".encode() for name, value in fields.items()))

    def _datagram(self, to: str, data: bytes) -> None:
        """To a socket's path, or to host:port by UDP."""
        known = self._sockets.get(to)
        if known is None:
            host, _, port = to.rpartition(":")
            local = to.startswith("/")
            known = socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_DGRAM)
            known.settimeout(TIMEOUT_S)  # one who does not read holds up all others
            self._sockets[to] = known
            known.connect(to if local else (host, int(port)))
        known.send(data)

    def _to_file(self, name: str, line: Line) -> None:
        path = self._file(name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.at_ms / 1000)) + f".{line.at_ms % 1000:03}Z"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(f"{moment} {line.task}/{line.attempt} {_STREAMS[line.stream]} {line.text}\n".encode())
            size = file.tell()
        if size > FILE_LIMIT:
            os.replace(path, f"{path}{TURNED}")

    def _file(self, name: str) -> str:
        """The path of TENANT/NAME; Refused when it would be one too many."""
        tenant, *said = [part for part in _NOT_A_NAME.sub("_", name).split("/") if part not in ("", ".", "..")]
        # The earlier half of another is called so; where a folder were, it could not be put, and the file would grow without end.
        parts = [f"{part.removesuffix(TURNED)}_1" if part.endswith(TURNED) else part for part in said]
        folder = os.path.join(self._folder, f"tenant-{tenant}")
        path = os.path.join(folder, *parts)
        known = self._files.get(tenant)
        if known is None:
            found = [os.path.join(where, file) for where, _, files in os.walk(folder) for file in files]
            known = self._files[tenant] = {file for file in found if not file.endswith(TURNED)}
        if path not in known:
            if not parts or len(parts) > DEEP or len(known) >= FILES:
                raise Refused(f"a tenant has at most {FILES} files here, with names of at most {DEEP} parts")
            known.add(path)
        return path

    def _post(self, url: str, lines: list[Line]) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not allowed(host, self._hosts):
            known = ", ".join(self._hosts) or "none"
            raise Refused(f"this node may not send to {host!r}; the operator allows: {known} (setting fetch_hosts)")
        body = b"".join(
            msgspec.json.encode({**line._asdict(), "task": str(line.task), "stream": _STREAMS[line.stream]}) + b"\n" for line in lines
        )
        to = connect(url, None, TIMEOUT_S)
        try:
            check_address(to, host, self._hosts)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            to.request("POST", path, body=body, headers={"content-type": "application/x-ndjson", "user-agent": "headway"})
            answer = to.getresponse()
            said = f"it answered {answer.status} {answer.reason}"
        except CannotFetch as error:
            raise Refused(str(error)) from None
        finally:
            to.close()
        if answer.status >= 500 or answer.status in _LATER:
            raise Away(said)
        if answer.status >= 300:
            raise Refused(said)
