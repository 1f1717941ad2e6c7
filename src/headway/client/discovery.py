"""Where the server is and which token opens it.

What the caller says comes first, then HEADWAY_URL and HEADWAY_TOKEN or the settings file, then the `headway up` that
runs in the data folder of this machine: it leaves its address in `up.json` and its token in `token`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from headway.config import Settings


class Place(NamedTuple):
    url: str
    token: str | None


class _Up(msgspec.Struct):
    """`<data_dir>/up.json`."""

    url: str
    pid: int


def find(settings: Settings, *, url: str | None = None, token: str | None = None) -> Place | None:
    """The server to talk to, or None when none was named and none runs here."""
    up = running_up(settings.data_dir)
    named = url or (settings.url if "url" in settings.sources else None)
    token = token or settings.token
    if named is not None:
        mine = up is not None and up.url.rstrip("/") == named.rstrip("/")
        return Place(named, token or (_token(settings.data_dir) if mine else None))
    if up is not None:
        return Place(up.url, token or _token(settings.data_dir))
    return Place(settings.url, token) if token else None  # who has a token has a server: at the usual address


def running_up(data_dir: str) -> _Up | None:
    """What a live `headway up` of this folder left there; a crash may have left the note of a dead one."""
    try:
        note = msgspec.json.decode((Path(data_dir) / "up.json").read_bytes(), type=_Up)
    except (OSError, msgspec.DecodeError):
        return None
    return note if alive(note.pid) else None


def _token(data_dir: str) -> str | None:
    try:
        return (Path(data_dir) / "token").read_text().strip() or None
    except FileNotFoundError:
        return None


def alive(pid: int) -> bool:
    """Whether a process of this number lives, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True
