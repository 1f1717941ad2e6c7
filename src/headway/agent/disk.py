"""Watches what tasks write into their own folders, and ends those above their limit (G3).

Kernels can count a folder's bytes only where the file system has project quotas, which few have. So a thread looks: when next, follows
from the room that is left and the speed at which memory takes writes, so that even a task at full speed overshoots by a few per cent. Where
a folder has so many entries that looking takes long, the bytes its processes say they wrote (one small file each) tell when to look.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

FASTEST = 16 * 2**30  # bytes a second: more than the 6 GiB that a quiet machine was seen to write into its page cache
MARGIN = 0.01  # of the limit: what may be written between two looks when there is no room left
SHORTEST_S, LONGEST_S = 0.0002, 0.1
DEAR_S = 0.002  # a look that takes longer is not taken every time
PART = 0.1  # of the time may go into dear looks
ENTRY = 4096  # every file costs at least a block, or its inode does
MANY = 64  # processes asked


@dataclass(eq=False)
class Watched:
    """One task's folders."""

    folders: tuple[str, ...]
    limit: int
    end: Callable[[], object]  # kills every process of it; may be called from the watching thread
    pids: Callable[[], list[int]] = list
    used: int = 0  # at the last look
    over: bool = False
    ask_at: float = 0.0
    look_at: float = 0.0  # at the latest
    dear: bool = False
    wrote: int = 0  # what its processes said at the last look


class DiskWatch:
    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._more = False  # one was added that cannot wait for the next round
        self._wake_at = math.inf  # when that is
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, watched: Watched) -> None:
        """From now on. The first look is when it could have written its limit: most tasks have ended by then, and cost nothing here."""
        watched.ask_at = time.monotonic() + min(LONGEST_S, watched.limit / FASTEST)
        with self._changed:
            self._watched.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="disk")
                self._thread.start()
            if watched.ask_at < self._wake_at:
                self._more = True
                self._changed.notify()

    def remove(self, watched: Watched) -> None:
        with self._changed:
            self._watched.discard(watched)

    def _run(self) -> None:
        _hurry()
        pause = 0.0
        while True:
            with self._changed:
                self._wake_at = time.monotonic() + pause if self._watched else math.inf
                if not self._more and (pause or not self._watched):
                    self._changed.wait(pause if self._watched else None)
                self._more, self._wake_at = False, math.inf  # who comes during the round wants one of its own
                all_watched = list(self._watched)
            pause = LONGEST_S
            for watched in all_watched:
                if not watched.over:
                    pause = min(pause, check(watched, time.monotonic()))


def check(watched: Watched, now: float) -> float:
    """Look, if it is time to; returns how long it can wait."""
    if now < watched.ask_at:
        return watched.ask_at - now
    room = watched.limit - watched.used
    if not watched.dear or now >= watched.look_at or written(watched.pids()) - watched.wrote >= room:
        _look(watched, now)
        if watched.used > watched.limit:
            watched.over = True
            watched.end()
            return LONGEST_S
        room = watched.limit - watched.used
    pause = min(LONGEST_S, max(SHORTEST_S, (room + watched.limit * MARGIN) / FASTEST))
    watched.ask_at = time.monotonic() + pause
    return pause


def _look(watched: Watched, now: float) -> None:
    watched.used = used(watched.folders, watched.limit) + nameless(watched.pids())
    took = time.monotonic() - now
    watched.dear = took > DEAR_S
    if watched.dear:
        watched.look_at = now + took / PART
        watched.wrote = written(watched.pids())


def _hurry() -> None:
    """This thread does little and must do it in time, also on a busy machine; without the right to it, it does its best."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def used(folders: tuple[str, ...], limit: int) -> int:
    """Bytes on disk below the folders; stops counting once it is clear that they are too many."""
    total, left = 0, list(folders)
    while left and total <= 2 * limit + ENTRY:
        where = left.pop()
        try:
            with os.scandir(where) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    total += max(found.st_blocks * 512, ENTRY)
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
