"""The data folder of one Headway: who owns it, and the small private files in it.

lock          held (flock) by the process that owns the folder; its text is that process's pid
users         held shared by every `headway run` that uses a Headway it did not find running
token         the admin token of `up`, mode 0600
agent-token   the token of its agent, mode 0600
up.json       where a running `up` listens
postgres/     the embedded database;  postgres.log  what it says
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from headway.client.discovery import alive
from headway.errors import ConfigError, DatabaseInUse


class FolderLock:
    """One owner for a data folder. The kernel lets go of it when the owner dies, however it dies."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> None:
        """Take the folder, or say which process has it."""
        if self._fd is not None:
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise DatabaseInUse(
                f"another Headway (pid {owner or 'unknown'}) uses the folder {self.path.parent}",
                hint="talk to that one, stop it, or choose another folder with --data-dir",
                pid=int(owner) if owner.isdigit() else None,
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    @staticmethod
    def owner(folder: Path) -> int | None:
        """The live process that took the folder last, or None. Only a guess: just acquire() knows."""
        try:
            text = (folder / "lock").read_text().strip()
        except FileNotFoundError:
            return None
        return int(text) if text.isdigit() and alive(int(text)) else None

    def release(self) -> None:
        """Let go. The file stays: removing it would let two processes lock two different files of one name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Users:
    """Who uses a Headway that was started for `headway run`: it ends with its last user, also when they are killed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "users"
        self._fd: int | None = None

    def enter(self) -> None:
        """Use it. Waits while the last user before us is ending it."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def nobody(self) -> bool:
        """Whether no other process uses it; if so nobody can begin to until leave()."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def make_folder(path: Path) -> None:
    """The data folder, private to its owner; a folder that exists keeps its mode."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the data folder {path} cannot be made: {error.strerror}",
            hint="choose another with --data-dir or HEADWAY_DATA",
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):  # of a read-only file system too
        raise ConfigError(
            f"the data folder {path} cannot be written by this user, or not at all",
            hint="chown it, or choose another with --data-dir or HEADWAY_DATA",
        )


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 whole or not at all: it is never seen half written, nor by others."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(path)


def keep_token(path: Path, role: str) -> str:
    """The token in this file, made at the first use."""
    if path.exists():
        return path.read_text().strip()
    token = f"hw_{role}_{secrets.token_urlsafe(24)}"
    write_private(path, token + "\n")
    return token
