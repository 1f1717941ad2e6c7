"""Folders for attempts, used again and again.

Making and removing two folders costs 300-900 µs of journalled file system for each attempt, as much as starting the
program. An attempt gets a clean one and leaves it; what it wrote there is removed before the next attempt sees it.
One in which nothing was changed, which its change time tells, needs no look at what is in it.
A folder with very much in it, or nested too deep, is put aside and removed by a process of its own: the supervisor must
not be held up by what a task left behind. Where the kernel can build walls around them (walls.py), it removes such a one by itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time

from headway.agent import walls
from headway.logs import log

CHECKPOINT = "checkpoint"
TMP = "tmp"
KEPT = 64  # free folders; a burst's surplus is removed
DEEP = 20  # levels
QUICK = 200  # entries removed here; more are left to a process
SETTLED_NS = 100_000_000  # change times have the grain of a clock tick: two changes closer than this may have the same
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Stamp = tuple[int, int, int, int, int]  # whatever is done to a folder or right inside it changes this


class Scratch:
    def __init__(self, root: str, *, isolated: bool = False) -> None:
        """`root` must be empty or missing: what an earlier supervisor left is removed. Isolated: with a /tmp beside each folder."""
        remove(root)
        os.makedirs(root, mode=0o711 if isolated else 0o700)
        self.root, self._isolated = root, isolated
        self._walls = walls.below(root)
        self._free: list[str] = []
        self._stamps: dict[str, list[Stamp]] = {}  # of a folder's parts, when they were last seen empty
        self._made = 0
        self._aside: list[str] = []  # to be removed by a process
        self.removers: set[int] = set()  # which these are

    def take(self, uid: int | None = None) -> str:
        """An empty folder with an empty folder for checkpoints in it, owned by the user that will run there."""
        try:
            path = self._free.pop() if self._free else self._make()
            os.lstat(path)
        except FileNotFoundError:
            raise OSError(errno.EIO, f"the folder {self.root} was removed") from None
        if self._walls is not None:
            self._walls.lift(self._whole(path))
        if uid is not None:
            for folder in self._folders(path):
                os.chown(folder, uid, uid, follow_symlinks=False)
            self._stamps.pop(path, None)
        elif any(stamp[-1] > time.time_ns() - SETTLED_NS for stamp in self._stamps.get(path, ())):
            del self._stamps[path]
        return path

    def wall(self, path: str, limit: int) -> bool:
        """Whether the kernel refuses now what is written into it far beyond `limit`."""
        return self._walls is not None and self._walls.build(self._whole(path), limit)

    def at_wall(self, path: str) -> int:
        """What its attempt had written when the kernel refused more, if that was lately; else 0."""
        return self._walls.reached(self._whole(path)) if self._walls is not None else 0

    def at_most(self, path: str, size: int) -> int:
        """What is counted there, where no more than its wall can be."""
        return self._walls.at_most(self._whole(path), size) if self._walls is not None else size

    def untouched(self, path: str) -> bool:
        """Whether nothing was put into it since it was taken, as far as that can be said without a look at what is in it."""
        known = self._stamps.get(path)
        return known is not None and _stamp(path) == known[0]

    def give_back(self, path: str) -> None:
        """Its attempt is over and none of its processes lives."""
        budget, folders = QUICK, self._folders(path)
        try:
            if len(self._free) < KEPT and [_stamp(folder) for folder in folders] == self._stamps.get(path):
                self._free.append(path)
                return
            clean = self._walls is None or self._walls.clean(self._whole(path))
            for folder in folders if clean else ():
                budget = _empty(folder, budget, keep=CHECKPOINT if folder == path else "")
            if clean and budget > 0 and len(self._free) < KEPT:
                self._stamps[path] = [_stamp(folder) for folder in folders]
                self._free.append(path)
                return
        except OSError:
            pass  # it was changed beyond use: it is removed below, and the next attempt gets a new one
        self._put_aside(path)

    def close(self) -> None:
        remove(self.root)

    def tmp_of(self, path: str) -> str:
        return f"{os.path.dirname(path)}/{TMP}"

    def _make(self) -> str:
        self._made += 1
        path = f"{self.root}/{self._made}"
        if self._walls is not None:
            self._walls.make(path, 0o711 if self._isolated else 0o700)
        elif self._isolated:
            os.mkdir(path, 0o711)
        if self._isolated:
            os.mkdir(f"{path}/{TMP}", 0o700)
            path = f"{path}/work"
        if self._isolated or self._walls is None:
            os.mkdir(path, 0o700)
        os.mkdir(f"{path}/{CHECKPOINT}", 0o700)
        return path

    def _whole(self, path: str) -> str:
        """With the /tmp beside it."""
        return os.path.dirname(path) if self._isolated else path

    def _folders(self, path: str) -> list[str]:
        """Everything of it that the attempt may write into."""
        folders = [path, f"{path}/{CHECKPOINT}"]
        return [*folders, self.tmp_of(path)] if self._isolated else folders

    def _put_aside(self, path: str) -> None:
        """Where no process can be had now, it goes with the next, or with all of us."""
        self._stamps.pop(path, None)
        if self._walls is not None and self._walls.remove(self._whole(path)):
            return
        self._aside.append(self._whole(path))
        while self._aside:
            try:
                self.removers.add(_start_removing(self._aside[-1]))
            except OSError as error:
                log("agent.folder_stays", level="error", reason=str(error), folders=len(self._aside))
                return
            self._aside.pop()


def read_plain(path: str, limit: int) -> bytes | None:
    """What a task left in a file: None when there is none, OSError when it is not a plain file.

    A link could lead to what the task itself may not read, and a pipe would keep us waiting.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OSError(error.errno, "it is a link" if error.errno == errno.ELOOP else error.strerror) from None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        return file.read(limit)


def put(path: str, data: bytes) -> None:
    """A new file for a task, in a folder that is its own: what it may have put there under this name is not followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(os.open(path, _NEW, 0o600), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), 0o644)  # an isolated task is another user; the folder around it is its own


def remove(path: str) -> None:
    """All of it, and wait."""
    os.waitpid(_start_removing(path), 0)


def _empty(folder: str, budget: int, *, keep: str = "") -> int:
    """Remove what is in the folder, as long as the budget of entries lasts; returns what is left of it.

    By descriptors throughout: a process of a task that lives longer than it should, as one of a container may, can put a link in the place
    of a folder at any moment, and it would lead to what is not the task's.
    """
    at = _opened(folder)
    try:
        if stat.S_IMODE(os.fstat(at).st_mode) != 0o700:
            os.fchmod(at, 0o700)
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.name == keep and entry.is_dir(follow_symlinks=False):
                    continue
                budget -= 1
                if budget <= 0:
                    return 0
                if entry.is_dir(follow_symlinks=False):
                    budget -= _counted(at, entry.name, budget)
                    if budget <= 0:
                        return 0
                    shutil.rmtree(entry.name, dir_fd=at)
                else:
                    os.unlink(entry.name, dir_fd=at)
    finally:
        os.close(at)
    return budget


def _opened(folder: str) -> int:
    """Its descriptor; OSError when it is a link. An agent that is not root must first give itself the right to look into it."""
    try:
        return os.open(folder, _FOLDER)
    except PermissionError:
        path = os.open(folder, os.O_PATH | _FOLDER)
    try:
        os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(".", _FOLDER, dir_fd=path)
    finally:
        os.close(path)


def _counted(at: int, name: str, most: int, depth: int = 0) -> int:
    """The entries of a folder of few entries and few levels; of anything larger, `most`."""
    below = os.open(name, _FOLDER, dir_fd=at)
    count = 0
    try:
        with os.scandir(below) as entries:
            for entry in entries:
                count += 1
                if count >= most or depth > DEEP:
                    return most
                if entry.is_dir(follow_symlinks=False):
                    count += _counted(below, entry.name, most - count, depth + 1)
    finally:
        os.close(below)
    return count


def _stamp(folder: str) -> Stamp:
    of = os.lstat(folder)
    return of.st_dev, of.st_ino, of.st_mode, of.st_uid, of.st_ctime_ns


def _start_removing(path: str) -> int:
    """A process that removes it, however much and however deep it is; any user's, when we may."""
    return os.posix_spawnp("rm", ["rm", "-rf", "--", path], {"PATH": os.defpath}, setsigmask=())
