"""System packages that some tests need: installed when that is possible, else the test is skipped with the reason.

Under CI a test is never skipped for a missing package: it fails, since nobody would read the reason.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Package:
    """A Debian package, and a file or program that shows it is there."""

    name: str
    shows: str

    def there(self) -> str | None:
        """The path of what shows it, or None."""
        if "/" not in self.shows:
            return shutil.which(self.shows)
        return next(iter(sorted(glob.glob(self.shows))), None)


PACKAGES = {
    package.name: package
    for package in (
        Package("libfaketime", "/usr/lib/*/faketime/libfaketime.so.1"),
        Package("nodejs", "node"),
        Package("perl", "perl"),
        Package("openssl", "openssl"),
        Package("npm", "npm"),
        Package("gcc", "gcc"),
        Package("g++", "g++"),
        Package("rustc", "rustc"),
        Package("tcl", "tclsh"),
        Package("default-jdk-headless", "javac"),
        Package("podman", "podman"),
        Package("runc", "runc"),
        Package("busybox-static", "busybox"),
        Package("curl", "curl"),
        Package("redis-server", "redis-server"),
        Package("postgresql-15", "/usr/lib/postgresql/15/bin/initdb"),
        Package("pgbouncer", "/usr/sbin/pgbouncer"),
        Package("bubblewrap", "bwrap"),
        Package("user-mode-linux", "linux.uml"),
        Package("e2fsprogs", "mkfs.ext4"),
        Package("btrfs-progs", "mkfs.btrfs"),
    )
}


def need(name: str) -> str:
    """The path of the package's program or library; the test is skipped (or under CI fails) without it."""
    package = PACKAGES[name]
    reason = "" if package.there() else _install(package)
    if found := package.there():
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"the package {name} is needed: {reason}")
    pytest.skip(f"the package {name} is needed: {reason}")


def _install(package: Package) -> str:
    """Try to; returns why it did not work."""
    apt = shutil.which("apt-get")
    if apt is None:
        return "this system has no apt-get; install it by hand"
    if os.geteuid() != 0:
        return f"run `apt-get install {package.name}` as root"
    with open(Path(tempfile.gettempdir()) / "headway-tests-apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may need it at once
        if package.there():
            return ""
        command = [apt, "install", "--yes", "--no-install-recommends", package.name]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:  # the lists may be missing or old
            subprocess.run([apt, "update"], capture_output=True, env=environment)
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.stderr.strip()[-500:]
