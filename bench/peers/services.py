"""The stores behind the peers, private to one run and gone after it.

PostgreSQL is Headway's embedded one with Headway's own settings (fsync, synchronous_commit and full_page_writes on),
so that both sides stand on the same ground. Redis runs without snapshots and without its append-only file: that is its
quickest, and nothing it acknowledges is on the disk.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from headway.embedded.postgres import Postgres


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    server = Postgres(folder / "peers")
    dsn = server.start()
    try:
        yield dsn
    finally:
        server.stop()


@contextlib.contextmanager
def redis(program: str, folder: Path) -> Iterator[str]:
    port = _free_port()
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    server = subprocess.Popen([program, *where, "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL)
    try:
        _await_port(port, server)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise SystemExit("redis-server did not start")
