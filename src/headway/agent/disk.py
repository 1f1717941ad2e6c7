"""Looks at what a task has written into its own folders, and says when to look again (G3). Run by the process of disk_watch.

Kernels can count a folder's bytes only where the file system has project quotas, which few have. So somebody looks: when next, follows
from the room that is left and the speed at which memory takes writes, so that even a task at full speed overshoots by a few per cent. Where
a folder has so many entries that looking takes long, the bytes its processes say they wrote (one small file each) tell when to look.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time

TYPE_CHECKING = False  # as in headway/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.agent.disk_guard import Guard

FASTEST = 8 * 2**30  # bytes a second: more than the 6 GiB that a quiet machine was seen to write into its page cache
MARGIN = 0.01  # of the limit: what may be written between two looks when there is no room left
SHORTEST_S, LONGEST_S = 0.0002, 0.1
SLOW, SLOW_S = 64 * 2**20, 0.001  # one that writes less than this a second is not looked at more often: it may live close to its limit
DEAR_S = 0.002  # a look that takes longer is not taken every time
PART = 0.1  # of the time may go into dear looks
ENTRY = 4096  # every file costs at least a block, or its inode does
MANY = 64  # processes asked


class Watched:
    """One task's folders. Plain, as the imports are: the process that uses it shall be small and quick to start."""

    def __init__(self, folders: tuple[str, ...], limit: int, pids: Callable[[], list[int]]) -> None:
        self.folders, self.limit, self.pids = folders, limit, pids
        self.used = 0  # at the last look
        self.looked = time.monotonic()  # when that was
        self.slow = True  # it was no fast writer then
        self.over = False
        self.names: list[str] = []  # what was there at the last look
        # The first look is when it could have written its limit: most tasks have ended by then, and cost nothing here.
        self.ask_at = time.monotonic() + min(LONGEST_S, limit / FASTEST)
        self.look_at = 0.0  # at the latest
        self.dear = False
        self.wrote = 0  # what its processes said at the last look


def check(watched: Watched, now: float, guard: Guard) -> float:
    """Look, if it is time to; returns how long it can wait."""
    if now < watched.ask_at:
        return _wait(watched, now)
    room, pids = watched.limit - watched.used, watched.pids()
    # One whose turn to start has not come, or that has ended already, writes nothing: of a burst of small programs these are most.
    if pids and (not watched.dear or now >= watched.look_at or written(pids) - watched.wrote >= room):
        if len(pids) > 1:  # one alone does not write while it creates a file
            guard.begin(watched)
        _look(watched, pids, now)
        guard.end()
        if watched.used > watched.limit:
            watched.over = True
            return LONGEST_S
        room = watched.limit - watched.used
    pause = min(LONGEST_S, max(SLOW_S if watched.slow else SHORTEST_S, (room + watched.limit * MARGIN) / FASTEST))
    watched.ask_at = now + pause
    return _wait(watched, time.monotonic())


def _wait(watched: Watched, now: float) -> float:
    """Until it is looked at again; in whole milliseconds if that does no harm, so that many are looked at together."""
    wait = max(watched.ask_at - now, 0.0)
    return math.ceil(wait / SLOW_S) * SLOW_S if watched.slow else wait


def _look(watched: Watched, pids: list[int], now: float) -> None:
    began = time.thread_time()
    names: list[str] = []
    before, watched.used = watched.used, used(watched.folders, watched.limit, names)
    watched.names = names
    watched.slow = watched.used - before < SLOW * (now - watched.looked)
    watched.looked = now
    if watched.used > watched.limit:
        return  # the rest would only take time, and it goes on writing
    watched.used += nameless(pids)
    took = time.thread_time() - began  # of the CPU: on a busy machine a look may also have to wait
    watched.dear = took > DEAR_S
    if watched.dear:
        watched.look_at = now + took / PART
        watched.wrote = written(pids)


def used(folders: tuple[str, ...], limit: int, names: list[str]) -> int:
    """Bytes on disk below the folders; stops counting once it is clear that they are too many. Adds the names it met."""
    total, left = 0, list(folders)
    while left and total <= 2 * limit + ENTRY:
        where = left.pop()
        try:
            with os.scandir(where) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    total += max(found.st_blocks * 512, ENTRY)
                    names.append(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return limit + 1  # nested deeper than anyone can look: that is a way to hide
            continue  # it went away while we looked
    return total


def written(pids: list[int]) -> int:
    """Bytes that these processes, and children they waited for, have written in all."""
    total = 0
    for pid in pids[:MANY]:
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                total += int(file.read().partition(b"write_bytes: ")[2].split(b"\n", 1)[0])
        except (OSError, ValueError):
            continue  # it ended while we asked
    return total


def nameless(pids: list[int]) -> int:
    """Bytes of files that were removed and are still open."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    of = entry.stat()
                    if of.st_nlink == 0 and stat.S_ISREG(of.st_mode):
                        found[of.st_dev, of.st_ino] = of.st_blocks * 512
        except OSError:
            continue  # it ended while we looked
    return sum(found.values())
