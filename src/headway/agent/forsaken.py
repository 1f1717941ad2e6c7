"""Folders of sandboxes whose agents were killed and never came back: the next agent of the machine removes them (H11).

They lie where other users can reach them, and not in the data folder of their agent, so nobody else would; and what tasks left in them is
not only room on a disk. Each has a note of whose it is: the agent's work folder, with the locks that the agent, and whoever ends what its
supervisor leaves, hold while they live. A folder is removed when the note is there, it is not young, and both locks are free or gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time

from headway.agent.scratch import put, remove
from headway.logs import log

OWNER = "owner"
LOCKS = ("lock", "survivor.lock")  # in the work folder
YOUNG_S = 60.0  # an agent that starts has made its folder before its supervisor has its lock
MOST = 50  # at one start, which waits for it
_NAME = re.compile(r"headway-[0-9a-f]{16}")
_GONE = "headway-gone-"  # before the name of one that is being removed


def note_owner(folder: str, work_dir: str) -> None:
    put(os.path.join(folder, OWNER), os.fsencode(os.path.abspath(work_dir)))


def sweep(parent: str) -> list[str]:
    """Remove those that are in this folder; returns their names."""
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return []  # there is none yet
    found = [name for name in names if _is_ours(os.path.join(parent, name)) and (name.startswith(_GONE) or _NAME.fullmatch(name))]
    swept: list[str] = []
    for name in found:
        if len(swept) == MOST:
            break
        if name.startswith(_GONE) or _put_aside(parent, name):
            remove(os.path.join(parent, name if name.startswith(_GONE) else f"{_GONE}{name}"))
            swept.append(name)
    if swept:
        log("agent.forsaken_folders", parent=parent, removed=len(swept))
    return swept


def _is_ours(path: str) -> bool:
    """Others may write beside it, and give names as they like."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _put_aside(parent: str, name: str) -> bool:
    """By another name, while nobody can begin to use it: then the removal may take long."""
    folder = os.path.join(parent, name)
    try:
        note = os.lstat(os.path.join(folder, OWNER))
        if not stat.S_ISREG(note.st_mode) or time.time() - max(note.st_mtime, os.lstat(folder).st_mtime) < YOUNG_S:
            return False
        with open(os.path.join(folder, OWNER), "rb") as file:
            work_dir = os.fsdecode(file.read())
        with contextlib.ExitStack() as held:
            if not all(_lock(os.path.join(work_dir, lock), held) for lock in LOCKS):
                return False
            os.rename(folder, os.path.join(parent, f"{_GONE}{name}"))
    except OSError:
        return False  # it has no note, or another agent was faster
    return True


def _lock(path: str, held: contextlib.ExitStack) -> bool:
    """Whether nobody has it: for as long as the stack lives nobody gets it either."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True  # the work folder is gone
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
