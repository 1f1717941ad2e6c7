"""Counts what a task has written into its own folders (G3): all of it, or only what is new since the last count."""

from __future__ import annotations

import errno
import math
import os
import stat
import time

ENTRY = 4096  # every file costs at least a block, or its inode does
MANY = 64  # processes asked at a time
SETTLED_NS = 20_000_000  # change times of older kernels have the grain of a clock tick: two changes closer than this may have the same
KNOWN = 100_000  # entries remembered by name
AT_ONCE = 200  # of those that are looked at again: some 2 ms


class Seen:
    """What was found below some folders."""

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, int]] = {}  # folder -> name -> bytes
        self.changed: dict[str, int] = {}  # folder -> when it was changed last; 0: it may change again and not tell
        self.total = 0
        self.entries = 0
        self.whole = True  # every entry is remembered
        self.round: list[tuple[str, str]] = []  # folder and name of those that are looked at again, one part after another


def count(folders: tuple[str, ...], limit: int, *, within_s: float = math.inf) -> Seen:
    """Bytes on disk below the folders; stops counting once it is clear that they are too many, or when the time is over."""
    seen = Seen()
    _count(seen, list(folders), limit, time.monotonic() + within_s)
    return seen


def count_new(seen: Seen, limit: int) -> None:
    """What came and what went since `seen`, by the names in folders that changed. What was there may have grown: nobody looks at that."""
    left: list[str] = []
    for where, known in list(seen.folders.items()):
        changed = _changed(where)
        if changed and changed == seen.changed[where]:
            continue
        try:
            names = set(os.listdir(where))
        except OSError:
            names = set()  # it went away
            del seen.folders[where], seen.changed[where]
        else:
            seen.changed[where] = changed
        for name in known.keys() - names:
            seen.total -= known.pop(name)
            seen.entries -= 1
        for name in names - known.keys():
            _add(seen, known, where, name, left)
    _count(seen, left, limit)


def count_again(seen: Seen) -> bool:
    """Look at the next part of what was there; True when it was the last one."""
    if not seen.round:
        seen.round = [(where, name) for where, known in seen.folders.items() for name in known]
    part = seen.round[-AT_ONCE:]
    del seen.round[-AT_ONCE:]
    for where, name in part:
        known = seen.folders.get(where, {})
        if name in known:
            try:
                size = _size(os.lstat(f"{where}/{name}"))
            except OSError:
                continue  # removed: its folder has changed, and tells
            seen.total += size - known[name]
            known[name] = size
    return not seen.round


def unchanged(seen: Seen) -> bool:
    """Whether surely nothing came or went since then."""
    return all(changed and _changed(where) == changed for where, changed in seen.changed.items())


def _count(seen: Seen, left: list[str], limit: int, until: float = math.inf) -> None:
    while left and seen.total <= 2 * limit + ENTRY and time.monotonic() < until:
        where = left.pop()
        known: dict[str, int] = {}
        try:
            changed = _changed(where)
            with os.scandir(where) as entries:
                for entry in entries:
                    _add_found(seen, known, entry.name, entry.stat(follow_symlinks=False), where, left)
                    if time.monotonic() >= until:
                        break
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                seen.total = limit + 1  # nested deeper than anyone can look: that is a way to hide
                return
            continue  # it went away while we looked
        finally:
            seen.folders[where] = known
            seen.changed[where] = 0
        seen.changed[where] = changed


def _add(seen: Seen, known: dict[str, int], where: str, name: str, left: list[str]) -> None:
    try:
        found = os.lstat(f"{where}/{name}")
    except OSError:
        return  # removed since
    _add_found(seen, known, name, found, where, left)


def _add_found(seen: Seen, known: dict[str, int], name: str, found: os.stat_result, where: str, left: list[str]) -> None:
    size = _size(found)
    seen.total += size
    seen.entries += 1
    if seen.entries > KNOWN:
        seen.whole = False
    if seen.whole:
        known[name] = size
    if stat.S_ISDIR(found.st_mode):
        left.append(f"{where}/{name}")


def _size(found: os.stat_result) -> int:
    return max(found.st_blocks * 512, ENTRY)


def _changed(folder: str) -> int:
    try:
        changed = os.stat(folder).st_mtime_ns
    except OSError:
        return 0
    return changed if changed < time.time_ns() - SETTLED_NS else 0


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


class Nameless:
    """Files of a task that were removed and are still open: they take room, and only their processes know of them.

    Asking one process takes some 25 µs. Of a task with many only a part is asked each time, those first that had such files, and the others
    count as they were when it was their turn: five hundred at once kept the watch from all other tasks for 11 to 16 ms, in which these can
    write 20 MiB and more.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], int] = {}
        self._holds: dict[int, set[tuple[int, int]]] = {}  # process -> what it had when it was asked
        self._turn = 0  # of those that had some
        self._round: set[int] = set()  # who was asked since all were

    def ask(self, pids: list[int]) -> int:
        """Bytes, as far as is known after the next part of them was asked."""
        had = [pid for pid in pids if pid in self._holds]
        self._turn = (self._turn + MANY) % max(len(had), 1)
        left = [pid for pid in pids if pid not in self._round]
        part = {*[*had[self._turn :], *had[: self._turn]][:MANY], *left[:MANY]}
        self._round = self._round | part if len(left) > MANY else set()
        return self._asked(part, pids)

    def ask_all(self, pids: list[int]) -> int:
        """Bytes, as they are."""
        return self._asked(set(pids), pids)

    def _asked(self, part: set[int], pids: list[int]) -> int:
        for pid in part:
            found = _removed(pid)
            self._sizes.update(found)
            self._holds[pid] = set(found)
        alive = set(pids)
        self._holds = {pid: held for pid, held in self._holds.items() if pid in alive and held}
        held = set().union(*self._holds.values())
        self._sizes = {key: self._sizes[key] for key in held}
        return sum(self._sizes.values())


def _removed(pid: int) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                of = _asked(entry)
                if of is not None and of.st_nlink == 0 and stat.S_ISREG(of.st_mode):
                    found[of.st_dev, of.st_ino] = of.st_blocks * 512
    except OSError:
        return found  # it ended while we looked
    return found


def _asked(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except FileNotFoundError:
        return None  # it was closed since: those after it are still open
