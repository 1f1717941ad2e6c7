"""What the peers need: a virtual environment of their own, kept between runs, and a Redis server."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def environment(requirements: Path = REQUIREMENTS) -> Path:
    """The Python of the peers' environment; made at the first run, and anew when the requirements change."""
    mark = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "headway" / f"peers-{mark}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        print(f"installing the peers into {folder} ...", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-r", str(requirements)],
            check=True,
            stdout=sys.stderr,
        )
        ready.touch()  # last, so that an installation cut short is not taken for one
    return python


def redis_server() -> str | None:
    """The program `redis-server`, installed when this is root on Debian; None when there is none to be had."""
    if found := shutil.which("redis-server"):
        return found
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None:
        return None
    print("installing redis-server ...", file=sys.stderr)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = [apt, "install", "-y", "-q", "--no-install-recommends", "redis-server"]
    subprocess.run(command, env=quiet, stdout=sys.stderr)
    return shutil.which("redis-server")
