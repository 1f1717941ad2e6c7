"""A Docker engine of the tests' own, where Debian's `docker.io` is on the machine: it shares nothing with one that runs there already."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from headway.agent.scratch import remove
from tests.support.waiting import until


def installed() -> bool:
    """The daemon, not only its client."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in ("docker", "dockerd", "containerd"))


@contextmanager
def running_docker() -> Iterator[str]:
    """The command line of a client that speaks to it. It makes no bridge and no rules: containers here have the node's network or none."""
    folder = tempfile.mkdtemp(prefix="hw-docker-")  # short: sockets have paths of at most 107 bytes, and its own are four folders deep
    address = f"unix://{folder}/sock"
    words = [
        "dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", f"--data-root={folder}/data", f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid", f"--host={address}",
    ]  # fmt: skip
    with open(f"{folder}/log", "wb") as log:
        daemon = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    client = f"{shutil.which('docker')} -H {address}"
    try:
        until(lambda: daemon.poll() is not None or _answers(client), what="dockerd answers")
        if daemon.poll() is not None:
            with open(f"{folder}/log", errors="replace") as said:
                raise RuntimeError(f"dockerd ended with {daemon.returncode}: {said.read()[-2000:]}")
        yield client
    finally:
        _remove_all(client)
        daemon.terminate()
        daemon.wait(120)
        remove(folder)


def _answers(client: str) -> bool:
    return subprocess.run([*client.split(), "version"], capture_output=True).returncode == 0


def _remove_all(client: str) -> None:
    found = subprocess.run([*client.split(), "ps", "--all", "--quiet"], capture_output=True, text=True).stdout.split()
    if found:
        subprocess.run([*client.split(), "rm", "--force", "--volumes", *found], capture_output=True)
