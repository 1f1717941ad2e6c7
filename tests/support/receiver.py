"""A webhook's receiver on loopback: keeps what it gets, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headway.policy.webhook import signature


@dataclass
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    def signed_by(self, secret: str) -> bool:
        """As a receiver checks it: one of the signatures must be ours."""
        mine = signature(self.headers["webhook-id"], int(self.headers["webhook-timestamp"]), self.body, [secret])
        return mine in self.headers["webhook-signature"].split(" ")


class Receiver:
    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answers: list[tuple[int, dict[str, str]]] = []  # for the next requests; 200 when there is none
        self.hold = threading.Event()
        self.hold.set()
        self.arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver.arrived:
                    receiver.got.append(Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                    status, headers = receiver.answers.pop(0) if receiver.answers else (200, {})
                    receiver.arrived.notify_all()
                receiver.hold.wait(600)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"said so")

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def wait(self, count: int, seconds: float = 120.0) -> list[Got]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, seconds), f"{len(self.got)} of {count} messages came"
            return list(self.got)


@contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.hold.set()
        made.server.shutdown()
        made.server.server_close()
        thread.join()
