"""Whom PostgreSQL runs as. It refuses to run as root, so under root it becomes another user.

That user owns the database's folder and nothing else. When folders above it (or above the programs) are closed to
others, as /root is, it also gets the one capability to pass through closed folders (CAP_DAC_READ_SEARCH, or
CAP_DAC_OVERRIDE where a container left only that): opening the folders for everybody would be worse.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError

USER = "pgserver"  # the name the wheel of the binaries uses too
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 1, 8, 47, 2
_CAPABILITY_VERSION_3 = 0x20080522


@dataclass(frozen=True)
class Identity:
    """A system user, and the capability it needs to reach its folders (None: it can pass by itself)."""

    name: str
    uid: int
    gid: int
    capability: int | None = None


def identity(*paths: Path) -> Identity | None:
    """Whom to run as so that `paths` can be reached, or None when this process need not change."""
    if os.geteuid() != 0:
        return None
    user = _system_user()
    closed = next((folder for path in paths if (folder := _closed_folder(path, user))), None)
    if closed is None:
        return Identity(user.pw_name, user.pw_uid, user.pw_gid)
    capability = next((cap for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if _permitted(cap)), None)
    if capability is None:
        raise ConfigError(
            f"PostgreSQL cannot run as root, and the user {user.pw_name} cannot pass through {closed}",
            hint=f"choose a folder elsewhere with --data-dir, `chmod o+x {closed}`, or run Headway as an ordinary user",
        )
    return Identity(user.pw_name, user.pw_uid, user.pw_gid, capability)


def in_child(who: Identity | None, on_parent_death: signal.Signals | None) -> Callable[[], None]:
    """What a child does between fork and exec: become `who`, and ask for a signal when the thread that started it
    dies.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def become() -> None:
        if who is not None:
            _become(who, libc)
        if libc is not None and on_parent_death is not None:
            libc.prctl(_PR_SET_PDEATHSIG, on_parent_death.value, 0, 0, 0)
            if os.getppid() != parent:  # it died before we asked
                os._exit(1)

    return become


def _become(who: Identity, libc: ctypes.CDLL | None) -> None:
    os.setgroups([])
    os.setgid(who.gid)
    if libc is None or who.capability is None:
        os.setuid(who.uid)
        return
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setuid(who.uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << who.capability
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable; then the upper 32
    if libc.capset(header, sets) or libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, who.capability, 0, 0):
        raise OSError(ctypes.get_errno(), "capabilities cannot be kept")


def _system_user() -> pwd.struct_passwd:
    """The user for the database. PostgreSQL needs one that has a name, so a bare number would not do."""
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        pass
    if program := shutil.which("useradd"):
        made = subprocess.run(
            [program, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER],
            capture_output=True,
            text=True,
        )
        reason = made.stderr.strip()
    else:
        reason = "there is no useradd"
    for name in (USER, "postgres"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigError(
        f"PostgreSQL cannot run as root, and the user {USER} could not be made: {reason}",
        hint=f"make a user {USER}, run Headway as an ordinary user, or use your own database with --database",
    )


def _closed_folder(path: Path, user: pwd.struct_passwd) -> Path | None:
    """The first folder above `path` that `user` may not pass through, or None."""
    for folder in reversed(path.resolve().parents):
        try:
            found = folder.stat()
        except FileNotFoundError:
            continue
        wanted = stat.S_IXOTH
        if found.st_uid == user.pw_uid:
            wanted = stat.S_IXUSR
        elif found.st_gid == user.pw_gid:
            wanted = stat.S_IXGRP
        if not found.st_mode & wanted:
            return folder
    return None


def _permitted(capability: int) -> bool:
    """Whether this process may hand the capability on: it needs it itself, and in its bounding set."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:  # no Linux: no capabilities
        return False
    sets = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Cap"))
    return all(int(sets[name], 16) >> capability & 1 for name in ("CapPrm", "CapBnd"))
