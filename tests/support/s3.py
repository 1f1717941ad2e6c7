"""A real S3 server on loopback for tests: moto's, in an environment of its own that is made when a test first needs it."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import until

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}


@contextmanager
def bucket(name: str) -> Iterator[dict[str, str]]:
    """Runs the server and makes a bucket; gives the environment in which it is found."""
    program = _installed()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([program, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make(f"{url}/{name}", server)
        yield {**CREDENTIALS, "AWS_ENDPOINT": url, "AWS_ENDPOINT_URL": url}
    finally:
        server.kill()
        server.wait()


def _make(url: str, server: subprocess.Popen[bytes]) -> None:
    def made() -> bool:
        assert server.poll() is None, "the S3 server ended"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
        return True

    until(made, what="the S3 server starts", away=(OSError,))


def _installed() -> str:
    """The Python of an environment with moto in it; the test is skipped (or under CI fails) where it cannot be installed."""
    folder = Path(tempfile.gettempdir()) / f"headway-tests-moto-{os.getuid()}"
    program = folder / "bin" / "python"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may need it at once
        if (folder / "made").exists():
            return str(program)
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], capture_output=True, text=True)
        install = [str(program), "-m", "pip", "install", "--quiet", "moto[s3,server]"]
        if made.returncode == 0:
            made = subprocess.run(install, capture_output=True, text=True)
        if made.returncode == 0:
            (folder / "made").touch()
            return str(program)
    reason = f"moto cannot be installed: {made.stderr.strip()[-500:]}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
