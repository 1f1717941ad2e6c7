"""Entries of the folder that keeps what was prepared: each built once, and marked when it is whole (H5 H11).

The mark is a file beside the entries, in a folder that the agent alone writes. Inside the entry, where commands of tenants write, a link
under its name would lead the agent to write elsewhere, and a file would claim that half an entry is a whole one. Whoever builds an entry
holds its lock, so that two tasks that need it at once build it once, and one that was left half-way by a crash is built anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.agent.scratch import put, remove

MARKS, LOCKS = "ready", "locks"
TOO_DEEP = "what was prepared has folders nested too deeply: a path in it has more than 4,095 bytes"
_SET_ID = stat.S_ISUID | stat.S_ISGID


class Failed(Exception):
    """A step failed; `log` shows the end of what it printed."""

    def __init__(self, why: str, log: str = "") -> None:
        super().__init__(why)
        self.log = log


def mark_of(root: Path, key: str) -> Path:
    """Its content is the size of the entry, its time when the entry was last used."""
    return root / MARKS / key


def size_of(root: Path, key: str) -> int | None:
    """The bytes of a whole entry, or None."""
    try:
        return int(mark_of(root, key).read_text()) if stat.S_ISDIR(os.lstat(root / key).st_mode) else None
    except (OSError, ValueError):
        return None


class Entries:
    def __init__(self, root: Path, limit: int) -> None:
        self.root, self._limit = root, limit
        for name in (MARKS, LOCKS):
            (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, key: str, build: Callable[[Path], None]) -> tuple[Path, int]:
        """The entry of this name and its size, built now if it is not there."""
        place = self.root / key
        size = size_of(self.root, key)
        if size is None:
            with self.locked(key):
                size = size_of(self.root, key)
                if size is None:
                    size = self._build(key, place, build)
        os.utime(mark_of(self.root, key))
        return place, size

    def _build(self, key: str, place: Path, build: Callable[[Path], None]) -> int:
        mark_of(self.root, key).unlink(missing_ok=True)  # of an entry that somebody removed: it would call half of this one whole
        remove(str(place))
        place.mkdir()
        try:
            build(place)
            size = _settled(place)
            if size > self._limit:
                raise Failed(f"it takes {size} bytes, more than this node keeps ({self._limit})")
            put(str(mark_of(self.root, key)), str(size).encode())
        except BaseException:
            remove(str(place))
            raise
        return size

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Only one process builds an entry. The lock ends with its holder, however that ends."""
        with open(self.root / LOCKS / key, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _settled(place: Path) -> int:
    """The bytes of what was built, in which nobody works any more. No program of it gives its user's rights to others: it may be root."""
    total, left = 0, [str(place)]
    try:
        while left:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        left.append(entry.path)
                    elif stat.S_ISREG(found.st_mode) and found.st_mode & _SET_ID:
                        change_mode(entry.path, lambda mode: mode & ~_SET_ID)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise Failed(TOO_DEEP) from None
        raise
    return total


def change_mode(path: str, new: Callable[[int], int]) -> None:
    """Of a file or folder, and never of what a link leads to, though one may have been put there a moment ago."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, stat.S_IMODE(new(os.fstat(descriptor).st_mode)))
    finally:
        os.close(descriptor)
