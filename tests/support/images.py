"""Engines that run containers, and an image for tests of them, made here: no registry is asked.

`engine` is the command line of each engine on this machine: Podman, which tests install, and Docker where its daemon is installed already.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docker
from tests.support.packages import need

PODMAN = "podman --runtime runc"
_TOOLS = ("sh", "echo", "id", "env", "cp", "sleep", "cat", "ls", "ln", "true", "false", "head", "tail", "kill", "wc", "nslookup", "ip")


@pytest.fixture(scope="session", params=["podman", "docker"] if docker.installed() else ["podman"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test is skipped where containers cannot be run."""
    if os.geteuid() != 0:
        pytest.skip("containers of these tests need root")
    if request.param == "podman":
        need("podman")
        need("runc")
        yield PODMAN
        return
    with docker.running_docker() as client:
        yield client


def busybox_image(engine: str, *, volume: str = "", user: str = "") -> str:
    """The name of an image of one static program."""
    packed = _packed()
    change = ["--change", f"VOLUME {volume}"] if volume else ["--change", f"USER {user}"] if user else []
    # Named after what is in it, and made once: an engine keeps what lost its name to a newer one, for good.
    name = f"localhost/headway-test-busybox:{hashlib.blake2b(packed + repr(change).encode(), digest_size=8).hexdigest()}"
    with open(Path(tempfile.gettempdir()) / "headway-tests-image.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if subprocess.run([*engine.split(), "image", "inspect", name], capture_output=True).returncode != 0:
            subprocess.run([*engine.split(), "import", *change, "-", name], input=packed, capture_output=True, check=True)
    return name


def _packed() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as file:
        file.add(need("busybox-static"), "bin/busybox")
        for tool in _TOOLS:
            link = tarfile.TarInfo(f"bin/{tool}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            file.addfile(link)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        file.addfile(folder)
    return packed.getvalue()
