"""A wall behind the disk limit of a task, where the kernel can build one (G3): on btrfs with quotas, a task's folders are a subvolume.

A write beyond the wall fails, however many write at once and whatever keeps the watch waiting. The wall stands a little behind the
limit: who is between the two is ended by the watch. A program that met the wall before that and ended by itself is told by what the kernel
counts. While it does not count (quotas), there is no wall.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

from headway.agent.cgroup_files import read
from headway.agent.quotas import are_counted
from headway.logs import log

BEHIND, LEAST_BEHIND = 20, 64 * 2**10  # the wall is this part of the limit behind it, and so many bytes at least
REACHED = 2**20  # a write that did not fit leaves at most this before the wall
CLEAN = 2**20  # a folder that is used again holds no more: the kernel counts what was removed for up to half a minute
_TOLD = "/sys/fs/btrfs/{}-{}-{}-{}-{}"
_NOTHING = 2**64 - 1  # as a limit: there is none
_LIMIT_REFERENCED = 1
_FIRST = 256  # the inode of every subvolume's top
_NO_COPY = 0x0080_0000  # what is written again takes no new room
_NAMED, _LIMIT, _INSIDE, _FLAGS = struct.Struct("q4088s"), struct.Struct("6Q"), struct.Struct("2Q4080x"), struct.Struct("q")


def _call(direction: int, number: int, size: int, kind: int = 0x94) -> int:
    return direction << 30 | size << 16 | kind << 8 | number


_MAKE, _REMOVE = _call(1, 14, _NAMED.size), _call(1, 15, _NAMED.size)
_LIMITED, _LOOKED_UP = _call(2, 43, _LIMIT.size), _call(3, 18, _INSIDE.size)
_DESCRIBED, _FLAGGED = _call(2, 31, 1024), _call(1, 2, _FLAGS.size, ord("f"))


class Walls:
    """Those around the folders directly below one folder."""

    def __init__(self, root: str, quotas: str) -> None:
        self._root, self.quotas = root, quotas
        self._numbers: dict[str, int] = {}  # of subvolumes, by their paths
        self._behind: dict[str, int] = {}  # the wall of those that have one now

    def make(self, path: str, mode: int) -> None:
        """A folder with room for a wall around it. What is in it shares nothing with others."""
        folder, name = os.path.split(path)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(at, _MAKE, _named(name))
        finally:
            os.close(at)
        at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = bytearray(_INSIDE.pack(0, _FIRST))
            fcntl.ioctl(at, _LOOKED_UP, found)
            self._numbers[path] = _INSIDE.unpack(found)[0]
            fcntl.ioctl(at, _FLAGGED, _FLAGS.pack(_NO_COPY))
            os.fchmod(at, mode)
        finally:
            os.close(at)

    @property
    def stand(self) -> bool:
        """Whether those that are built hold anybody now."""
        return are_counted(self.quotas, self._root)

    def forget(self, path: str) -> None:
        """Somebody will remove it: not we, since the kernel forgets all names that were looked for in it while whoever asks waits, a
        second and more for a million, and nobody can make or remove anything beside it meanwhile."""
        self.lift(path)
        self._behind.pop(path, None)
        self._numbers.pop(path, None)

    def remove(self, path: str) -> bool:
        """One that nobody has used."""
        folder, name = os.path.split(path)
        if self._numbers.pop(path, None) is None:
            return False
        self._behind.pop(path, None)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(at, _REMOVE, _named(name))
        except OSError:
            return False
        finally:
            os.close(at)
        return True

    def build(self, path: str, limit: int) -> bool:
        """Whether there is a wall now behind this limit."""
        wall = limit + max(limit // BEHIND, LEAST_BEHIND)
        if path not in self._numbers or not self._set(path, wall):
            return False
        self._behind[path] = wall
        return self.stand

    def lift(self, path: str) -> bool:
        """Whether nobody meets the wall of the last one any more: neither the next, nor what the agent puts into the folder for it."""
        if path in self._behind and not self._set(path, _NOTHING):
            return False
        self._behind.pop(path, None)
        return True

    def reached(self, path: str) -> int:
        """What was in the folder when the wall was met, if it was, lately; else 0.

        By what is on the disk alone: before the kernel refuses, all that it has set aside is written. What is overwritten or removed counts
        twice until then, and says nothing.
        """
        wall = self._standing(path)
        if wall is None:
            return 0
        held = self._counted(path, "referenced")
        return held if held > wall - min(REACHED, wall // (2 * BEHIND)) else 0

    def at_most(self, path: str, size: int) -> int:
        """What is counted by names, where the kernel lets it be no more: many names of one file take less than they count."""
        wall = self._standing(path)
        return size if wall is None else min(size, wall)

    def clean(self, path: str) -> bool:
        """Whether the kernel, too, has forgotten what was in the folder."""
        return path not in self._numbers or self._counted(path, "referenced", "rsv_data") <= CLEAN

    def _standing(self, path: str) -> int | None:
        wall = self._behind.get(path)
        return wall if wall is not None and self.stand else None

    def _counted(self, path: str, *names: str) -> int:
        """By the kernel: what is on the disk, and what will be."""
        folder = f"{self.quotas}/0_{self._numbers[path]}"
        return sum(int(read(f"{folder}/{name}") or 0) for name in names)

    def can_set(self, path: str) -> bool:
        """Whether it can be built there, now or when the kernel counts again."""
        return self._set(path, CLEAN)

    def _set(self, path: str, most: int) -> bool:
        try:
            at = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(at, _LIMITED, bytearray(_LIMIT.pack(self._numbers[path], _LIMIT_REFERENCED, most, 0, 0, 0)))
            finally:
                os.close(at)
        except OSError as error:  # somebody has switched quotas off
            log("agent.no_wall", level="warning", folder=path, reason=str(error))
            return False
        return True


def below(folder: str) -> Walls | None:
    """The walls that can be built there, tried with one; None on other file systems, without quotas and for whoever is not root."""
    told = file_system(folder)
    if told is None or read(f"{told}/qgroups/enabled").strip() != "1":
        return None
    walls, trial = Walls(folder, f"{told}/qgroups"), os.path.join(folder, f".headway-wall-{os.urandom(8).hex()}")
    try:
        walls.make(trial, 0o700)
        able = walls.can_set(trial)
    except OSError as error:
        log("agent.no_wall", level="warning", folder=folder, reason=str(error))
        return None
    finally:
        if not walls.remove(trial):
            with contextlib.suppress(OSError):
                os.rmdir(trial)
    return walls if able else None


def file_system(folder: str) -> str | None:
    """Where the kernel tells of the btrfs that holds the folder; None where it is another file system."""
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    described = bytearray(1024)
    try:
        fcntl.ioctl(at, _DESCRIBED, described)
    except OSError:
        return None
    finally:
        os.close(at)
    name = described[16:32].hex()
    return _TOLD.format(name[:8], name[8:12], name[12:16], name[16:20], name[20:])


def _named(name: str) -> bytearray:
    return bytearray(_NAMED.pack(0, os.fsencode(name)))
