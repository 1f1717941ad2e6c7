"""Folders for attempts, used again and again.

Making and removing two folders costs 300-900 µs of journalled file system for each attempt, as much as starting the
program. An attempt gets a clean one and leaves it; what it wrote there is removed before the next attempt sees it.
One in which nothing was changed, which its change time tells, needs no look at what is in it.
A folder with very much in it, or with folders, is put aside and removed by a process of its own: the supervisor must
not be held up by what a task left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from headway.agent import walls
from headway.agent.niceness import as_usual
from headway.logs import log

CHECKPOINT = "checkpoint"
TMP = "tmp"
KEPT = 64  # free folders; a burst's surplus is removed
QUICK = 200  # files of a folder that are removed here; more are left to a process
QUICK_BYTES = 64 * 2**20  # the same of what is in them: 4 GB of one file took 0.6 s
REMOVERS = 4  # processes at a time: it is the disk that they wait for, and so do tasks
TOGETHER = 100  # folders that waited go by one process
SETTLED_NS = 100_000_000  # change times have the grain of a clock tick: two changes closer than this may have the same
_REMOVE = ["rm", "-rf", "--"]
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
        self._aside: list[str] = []  # to be removed by a process, the first first
        self.removers: set[int] = set()  # which these are

    def take(self, uid: int | None = None) -> str:
        """An empty folder with an empty folder for checkpoints in it, owned by the user that will run there."""
        try:
            path = self._free.pop() if self._free else self._make()
            os.lstat(path)
            if self._walls is not None and not self._walls.lift(self._whole(path)):
                self._forget(path)
                path = self._make()
        except FileNotFoundError:
            raise OSError(errno.EIO, f"the folder {self.root} was removed") from None
        if uid is not None:
            for folder in self._folders(path):
                os.chown(folder, uid, uid, follow_symlinks=False)
            self._stamps.pop(path, None)
        elif any(stamp[-1] > time.time_ns() - SETTLED_NS for stamp in self._stamps.get(path, ())):
            del self._stamps[path]
        return path

    def wall(self, path: str, limit: int) -> str:
        """Where the kernel tells whether it goes on to refuse what is written into it far beyond `limit`; nothing where it does not."""
        return self._walls.quotas if self._walls is not None and self._walls.build(self._whole(path), limit) else ""

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
        folders = self._folders(path)
        try:
            if len(self._free) < KEPT and [_stamp(folder) for folder in folders] == self._stamps.get(path):
                self._free.append(path)
                return
            clean = len(self._free) < KEPT and (self._walls is None or self._walls.clean(self._whole(path)))
            if clean and all(_empty(folder, keep=CHECKPOINT if folder == path else "") for folder in folders):
                self._stamps[path] = [_stamp(folder) for folder in folders]
                self._free.append(path)
                return
        except OSError:
            pass  # it was changed beyond use: it is removed below, and the next attempt gets a new one
        self._forget(path)

    def removed(self, pid: int) -> None:
        """A process has ended: if it was one of these, the next can begin."""
        if pid in self.removers:
            self.removers.discard(pid)
            self._remove_aside()

    def close(self) -> None:
        remove(self.root)

    def tmp_of(self, path: str) -> str:
        return f"{os.path.dirname(path)}/{TMP}"

    def _make(self) -> str:
        self._made += 1
        whole = f"{self.root}/{self._made}"
        try:
            return self._make_in(whole)
        except OSError:  # the next try takes the next number
            if os.path.lexists(whole):
                self._put_aside(whole)
            raise

    def _make_in(self, path: str) -> str:
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

    def _forget(self, path: str) -> None:
        self._stamps.pop(path, None)
        self._put_aside(self._whole(path))

    def _put_aside(self, whole: str) -> None:
        """It goes when it is its turn; where no process can be had now, with the next, or with all of us."""
        if self._walls is not None:
            self._walls.forget(whole)
        self._aside.append(_away(whole))
        self._remove_aside()

    def _remove_aside(self) -> None:
        while self._aside and len(self.removers) < REMOVERS:
            try:
                self.removers.add(_start_removing(self._aside[:TOGETHER]))
            except OSError as error:
                log("agent.folder_stays", level="error", reason=str(error), folders=len(self._aside))
                return
            del self._aside[:TOGETHER]


def _away(folder: str) -> str:
    """Into one of its own: while it is removed, which may take seconds, the folder that it is in is locked."""
    try:
        os.mkdir(away := f"{folder}.away", 0o700)
    except OSError:
        return folder
    try:
        os.rename(folder, f"{away}/it")
    except OSError:
        os.rmdir(away)
        return folder
    return away


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
    os.waitpid(_start([*_REMOVE, path]), 0)


def _empty(folder: str, *, keep: str = "") -> bool:
    """Remove the few files that are in the folder; False where more is there.

    What it takes to remove a folder nobody can see: the kernel forgets the names that were looked for in it and not found, 1 s for a
    million of them. So none is removed here.
    By descriptors throughout: a process of a task that lives longer than it should, as one of a container may, can put a link in the place
    of a folder at any moment, and it would lead to what is not the task's.
    """
    at = _opened(folder)
    try:
        if stat.S_IMODE(os.fstat(at).st_mode) != 0o700:
            os.fchmod(at, 0o700)
        names, size = [], 0
        with os.scandir(at) as entries:
            for entry in entries:
                of = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(of.st_mode):
                    if entry.name == keep:
                        continue
                    return False
                names.append(entry.name)
                size += of.st_blocks * 512
                if len(names) > QUICK or size > QUICK_BYTES:
                    return False
        for name in names:
            os.unlink(name, dir_fd=at)
    finally:
        os.close(at)
    return True


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


def _stamp(folder: str) -> Stamp:
    of = os.lstat(folder)
    return of.st_dev, of.st_ino, of.st_mode, of.st_uid, of.st_ctime_ns


def _start_removing(paths: list[str]) -> int:
    """A process that removes them, however much and however deep it is; any user's, when we may. Nobody waits for it."""
    return _start(as_usual([*_REMOVE, *paths]))


def _start(words: list[str]) -> int:
    return os.posix_spawnp(words[0], words, {"PATH": os.defpath}, setsigmask=())
