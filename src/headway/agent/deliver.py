"""The process that delivers output to syslog, journald, files and web addresses, line by line (H9).

Records come on descriptor 0 (agent/loggers.py). A destination that fails is tried again for a short while, then its lines are dropped:
Headway keeps the output itself, so nothing is lost that cannot be had from there.
"""

from __future__ import annotations

import http.client
import os
import re
import select
import signal
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from headway.agent.fetching import CannotFetch, allowed
from headway.agent.link import READ, Frames

FILE_LIMIT = 16 * 2**20  # then the file becomes FILE.1, and a new one is begun
LINE_LIMIT = 8192
BATCH = 500
WAIT_S = 0.2  # lines for a web address wait so long for company
TIMEOUT_S = 5.0
_INFO, _ERROR = 14, 11  # syslog: user facility, informational or error
_STREAMS = {1: "stdout", 2: "stderr"}
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._/-]")


class Line(NamedTuple):
    task: int
    attempt: int
    name: str
    stream: int
    at_ms: int
    text: str


class Deliverer:
    def __init__(self, settings: list[Any]) -> None:
        self._syslog, self._journald, self._folder, self._hosts = settings
        self._partial: dict[tuple[str, int, int, int], tuple[str, bytes]] = {}
        self._batches: dict[str, list[Line]] = {}
        self._sockets: dict[str, socket.socket] = {}

    def take(self, record: list[Any]) -> None:
        """Whole lines are delivered; the rest waits for its end."""
        where, task, attempt, name, stream, at_ms, data = record
        key = (where, task, attempt, stream)
        *whole, rest = (self._partial.pop(key, ("", b""))[1] + data).split(b"\n")
        if len(rest) > LINE_LIMIT:
            whole, rest = [*whole, rest], b""
        if rest:
            self._partial[key] = (name, rest)
        for raw in whole:
            self._line(where, Line(task, attempt, name, stream, at_ms, raw[:LINE_LIMIT].decode(errors="replace")))

    def _line(self, where: str, line: Line) -> None:
        if where.startswith("http"):
            batch = self._batches.setdefault(where, [])
            batch.append(line)
            if len(batch) >= BATCH:
                self.flush()
            return
        kind, _, rest = where.partition(":")
        self._try(
            {"syslog": self._to_syslog, "journald": self._to_journald}.get(kind) or (lambda one: self._to_file(rest, one)), line
        )

    def _try(self, deliver: Callable[[Line], None], line: Line) -> None:
        for pause in (0.0, 0.1, 0.5):
            time.sleep(pause)
            try:
                deliver(line)
            except OSError:
                for known in self._sockets.values():
                    known.close()
                self._sockets.clear()
            else:
                return

    def flush(self) -> None:
        batches, self._batches = self._batches, {}
        for where, lines in batches.items():
            body = b"".join(
                msgspec.json.encode({**line._asdict(), "task": str(line.task), "stream": _STREAMS[line.stream]}) + b"\n"
                for line in lines
            )
            for pause in (0.0, 0.2, 1.0):
                time.sleep(pause)
                try:
                    self._post(where, body)
                except (OSError, http.client.HTTPException):
                    continue
                except CannotFetch:
                    break  # not allowed: no use in trying again
                break

    def end(self) -> None:
        """Lines that never ended are lines too."""
        for (where, task, attempt, stream), (name, rest) in self._partial.items():
            self._line(where, Line(task, attempt, name, stream, round(time.time() * 1000), rest.decode(errors="replace")))
        self._partial.clear()
        self.flush()

    # --- destinations

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

    def _datagram(self, address: str, data: bytes) -> None:
        """To a socket's path, or to host:port by UDP."""
        to = self._sockets.get(address)
        if to is None:
            host, _, port = address.rpartition(":")
            local = address.startswith("/")
            to = socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_DGRAM)
            to.connect(address if local else (host, int(port)))
            self._sockets[address] = to
        to.send(data)

    def _to_file(self, name: str, line: Line) -> None:
        parts = [part for part in _NOT_A_NAME.sub("_", name).split("/") if part not in ("", ".", "..")]
        path = os.path.join(self._folder, *parts)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.at_ms / 1000)) + f".{line.at_ms % 1000:03}Z"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(f"{moment} {line.task}/{line.attempt} {_STREAMS[line.stream]} {line.text}\n".encode())
            size = file.tell()
        if size > FILE_LIMIT:
            os.replace(path, f"{path}.1")

    def _post(self, url: str, body: bytes) -> None:
        parts = urlsplit(url)
        if not allowed(parts.hostname or "", self._hosts):
            raise CannotFetch(f"{parts.hostname!r} is not in fetch_hosts")
        secure = parts.scheme == "https"
        to = (
            http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
            if secure
            else http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        )
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            to.request("POST", path, body=body, headers={"content-type": "application/x-ndjson", "user-agent": "headway"})
            if to.getresponse().status >= 500:
                raise OSError("the server cannot take it now")
        finally:
            to.close()


def main() -> None:
    """Until the supervisor is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the input is the end
    source, frames = socket.socket(fileno=0), Frames()
    deliverer: Deliverer | None = None
    while True:
        readable, _, _ = select.select([source], [], [], WAIT_S)
        if not readable:
            if deliverer is not None:
                deliverer.flush()
            continue
        data = source.recv(READ)
        if not data:
            break
        for body in frames.feed(data):
            record = msgspec.msgpack.decode(body)
            if deliverer is None:
                deliverer = Deliverer(record)
            else:
                deliverer.take(record)
    if deliverer is not None:
        deliverer.end()
