"""Processes of PostgreSQL that belong to a database folder: who they are, and how to be rid of leftovers."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from headway.errors import DatabaseInUse

_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Postmaster:
    """What `postmaster.pid` says."""

    pid: int
    ready: bool


def read(folder: Path) -> Postmaster | None:
    try:
        lines = (folder / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].strip().isdigit():
        return None  # being written
    return Postmaster(pid=int(lines[0]), ready=len(lines) > 7 and lines[7].strip() == "ready")


def end_leftovers(folder: Path) -> None:
    """End what an earlier owner of the folder left running. The caller holds the folder's lock.

    A postmaster is asked to shut down cleanly. Backends whose postmaster is dead would go on until their statement
    ends and keep the shared memory, so that no new postmaster could start: they are killed, and recovery does the
    rest.
    """
    found = read(folder)
    if found is not None and _belongs(found.pid, folder):
        for ask in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            _signal(found.pid, ask)
            if _gone([found.pid], _PATIENCE_S):
                break
    rest = [pid for pid in _pids() if _belongs(pid, folder)]
    for pid in rest:
        _signal(pid, signal.SIGKILL)
    if not _gone(rest, _PATIENCE_S):
        raise DatabaseInUse(f"processes of an earlier database in {folder} do not end: {rest}", hint="end them by hand")
    if Path("/proc/self").exists():
        # Nobody is left. The number in a stale file may be another program's by now, or a zombie's, and would stop
        # PostgreSQL.
        for stale in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            (folder / stale).unlink(missing_ok=True)


def _belongs(pid: int, folder: Path) -> bool:
    """Whether this is a process of the database in `folder`: every one of them works inside it (Linux).

    Elsewhere there is no way to look, and the pid in postmaster.pid may be anybody's by now: then PostgreSQL's own
    check decides.
    """
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", folder) and "postgres" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended meanwhile, which is what we want


def _gone(pids: list[int], patience_s: float) -> bool:
    """Wait until none of them runs (a zombie does not)."""
    deadline = time.monotonic() + patience_s
    while any(_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
