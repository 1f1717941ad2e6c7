"""What an agent finds wrong with its own machine: then it takes no new tasks until that is over (I1).

A node without room on its disk would end every task that it is given, one after another, and be given more: it is always free.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from headway.domain.units import size_text

ROOM = 64 * 2**20  # free bytes below which a work folder is full
PART = 20  # of a small file system, one part in so many
FILES = 100  # free files below which it is full
# No fault of a task: the disk is full, was made read-only by the kernel, or does not answer.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def trouble(folders: Mapping[str, str], *, before: bool) -> str:
    """Why this machine should take no new tasks, as what is said of it ("has ..."); empty when it is well.

    `folders` are looked at by what they are for. Who is in trouble `before` stays there until there is twice the room: what makes
    room comes and goes.
    """
    times = 2 if before else 1
    for what, folder in folders.items():
        try:
            there = os.statvfs(folder)
        except OSError as error:  # somebody has removed it, or the disk is gone
            return f"cannot use its {what} folder {folder} ({error.strerror}): restart its agent"
        if there.f_flag & os.ST_RDONLY:  # a kernel makes it so when the disk fails
            return f"cannot write in its {what} folder: the file system of {folder} is read-only"
        wanted = min(ROOM, there.f_blocks * there.f_frsize // PART) * times
        free = there.f_bavail * there.f_frsize
        if free < wanted:
            return f"has {size_text(free)} free in its {what} folder, less than {size_text(wanted)}"
        if there.f_files and there.f_favail < FILES * times:
            return f"has room for {there.f_favail} more files in its {what} folder, less than {FILES * times}"
    return ""


def for_want_of_room(error: BaseException | None, said: str = "") -> bool:
    """Whether this went wrong because the disk is full or fails: by the error or what it came from, or by what a program said of it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        error = error.__context__
    return os.strerror(errno.ENOSPC) in said
