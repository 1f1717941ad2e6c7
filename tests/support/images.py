"""An image for tests of containers, made here: no registry is asked."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile

import pytest

from tests.support.packages import need

ENGINE = "podman --runtime runc"
_TOOLS = ("sh", "echo", "id", "env", "cp", "sleep", "cat", "ls", "ln", "true", "false", "head", "tail", "kill", "wc", "nslookup", "ip")


def busybox_image(volume: str = "", user: str = "") -> str:
    """The name of an image of one static program; the test is skipped where containers cannot be run."""
    need("podman")
    need("runc")
    busybox = need("busybox-static")
    if os.geteuid() != 0:
        pytest.skip("containers of these tests need root")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as file:
        file.add(busybox, "bin/busybox")
        for tool in _TOOLS:
            link = tarfile.TarInfo(f"bin/{tool}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            file.addfile(link)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        file.addfile(folder)
    name = f"localhost/headway-test-busybox:{'volume' if volume else f'user-{user}' if user else '3'}"
    change = ["--change", f"VOLUME {volume}"] if volume else ["--change", f"USER {user}"] if user else []
    subprocess.run([*ENGINE.split(), "import", *change, "-", name], input=packed.getvalue(), capture_output=True, check=True)
    return name
