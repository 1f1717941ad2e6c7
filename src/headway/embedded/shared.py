"""A Headway for as long as it is used: what `headway run` works with when no server is configured.

It is a `headway up` in the background. Several commands on one folder share it: whoever comes first starts it, whoever
leaves last ends it, and it ends by itself when they were all killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from headway.client.discovery import alive
from headway.config import Settings, environment
from headway.embedded.folder import FolderLock, Users, make_folder
from headway.errors import Unavailable

_POLL_S = 0.02
_START_S, _END_S = 150.0, 90.0


class Note(msgspec.Struct):
    """`up.json`."""

    url: str
    pid: int
    while_used: bool = False


@asynccontextmanager
async def embedded(settings: Settings) -> AsyncIterator[str]:
    """The address of a Headway in the data folder: one that runs there, or one started now. Its token is in the
    folder.
    """
    folder = Path(settings.data_dir)
    make_folder(folder)
    users = Users(folder)
    await asyncio.to_thread(users.enter)
    try:
        yield await _join(settings, folder)
    finally:
        await asyncio.to_thread(_leave, users, folder)


def read_note(folder: Path) -> Note | None:
    """What a live `up` of this folder left there, or None."""
    try:
        note = msgspec.json.decode((folder / "up.json").read_bytes(), type=Note)
    except FileNotFoundError:
        return None
    return note if alive(note.pid) else None


async def _join(settings: Settings, folder: Path) -> str:
    """Wait for an `up` that listens. When ours fails, another's may still come: theirs won the lock."""
    if note := read_note(folder):
        return note.url
    process = _start(settings, folder)
    deadline = asyncio.get_running_loop().time() + _START_S
    while True:
        if note := read_note(folder):
            return note.url
        if process.poll() is not None and FolderLock.owner(folder) is None:
            break
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(_POLL_S)
    raise Unavailable(f"Headway did not start: {_tail(folder / 'up.log')}", hint=f"see {folder / 'up.log'}")


def _start(settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    """In the background, on a free port unless one was asked for: another Headway may have the usual one."""
    variables = {**os.environ, "HEADWAY_PORT": "0", **environment(settings), "HEADWAY_DATA": str(folder)}
    fd = os.open(folder / "up.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "headway.embedded"],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            env=variables,
            start_new_session=True,
        )
    finally:
        os.close(fd)


def _leave(users: Users, folder: Path) -> None:
    """Leave; the last one out ends it and waits until it has ended, so that nothing stays behind."""
    try:
        if users.nobody() and (note := read_note(folder)) and note.while_used:
            os.kill(note.pid, signal.SIGTERM)
            _await_end(note.pid)
    finally:
        users.leave()


def _await_end(pid: int) -> None:
    """Wait for a process that may be no child of ours; one that is gets reaped."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        except ChildProcessError:  # another command started it
            if not alive(pid):
                return
        time.sleep(_POLL_S)


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
