"""Where the embedded database has its socket: its own folder, or a short one in /tmp when that path is too long for a socket (L3).

A short one of a server that was killed stays, and nobody else knows of it. So whoever makes one removes those that are forsaken: folders of
the database's user with a name of ours, in which there is nothing but a socket that nobody listens on, and that nobody has locked: a
database that crashed is started again with the socket it had.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from pathlib import Path

SHORT = Path("/tmp")
LONGEST = 100  # bytes: sun_path holds 104 (macOS) or 108 (Linux), less the ending NUL
YOUNG_S = 60.0
_SOCKET = ".s.PGSQL.5432"
_NAME = re.compile(r"headway-[0-9a-f]{8}-\w{8}")


class SocketFolder:
    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    @property
    def there(self) -> bool:
        """Whether the socket of a running database is where it was made: somebody may clean /tmp."""
        return (self.path / _SOCKET).exists()

    def restore(self, owner: tuple[int, int] | None) -> None:
        """The same again, if somebody has removed it: who uses the database knows it by this path."""
        if self._lock >= 0 and not self.path.exists():
            os.close(self._lock)
            self._lock = _made(self.path, owner)

    def close(self) -> None:
        """The database has ended."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)  # it may be gone
            os.close(self._lock)
            self._lock = -1


def make(folder: Path, owner: tuple[int, int] | None, short: Path = SHORT) -> SocketFolder:
    """For the database in `folder`; `owner`: the user and group it runs as, when they are not ours."""
    if len(os.fsencode(folder / f"{_SOCKET}.lock")) <= LONGEST:
        return SocketFolder(folder, -1)
    sweep(short, os.geteuid() if owner is None else owner[0])
    mark = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    made = short / f"headway-{mark}-{secrets.token_hex(4)}"
    return SocketFolder(made, _made(made, owner))


def _made(folder: Path, owner: tuple[int, int] | None) -> int:
    """A private folder, locked: who cleans /tmp of what is old leaves it alone then."""
    folder.mkdir(mode=0o700)
    if owner is not None:
        os.chown(folder, *owner)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def sweep(short: Path, user: int) -> None:
    for path in short.glob("headway-*"):
        if _NAME.fullmatch(path.name) and _is_forsaken(path, user):
            shutil.rmtree(path, ignore_errors=True)  # another server may be removing it too


def _is_forsaken(path: Path, user: int) -> bool:
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or time.time() - found.st_mtime < YOUNG_S:
            return False
        inside = sorted(os.listdir(path))
        if not set(inside) <= {_SOCKET, f"{_SOCKET}.lock"}:
            return False
        return (_SOCKET not in inside or not _is_heard(path / _SOCKET)) and not _is_locked(path)
    except OSError:
        return False  # gone, or not ours to look at


def _is_locked(path: Path) -> bool:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def _is_heard(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(1)
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # as one whose queue is full
    return True
