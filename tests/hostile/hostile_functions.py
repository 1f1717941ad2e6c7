"""Functions that a tenant nobody trusts has submitted; imported by warm runners in a sandbox."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any


def where() -> dict[str, Any]:
    """Who and where it is."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"pid": os.getpid(), "uid": os.getuid(), "seccomp": status["Seccomp"], "cwd": os.getcwd(), "caps": status["CapEff"]}


def remember(value: str | None) -> list[str]:
    """What earlier calls in this runner left in its memory."""
    _seen.extend([value] if value else [])
    return _seen


def reach(port: int, host: str = "127.0.0.1") -> str:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return "no"
    return "reached"


def grow(size: int) -> int:
    return len(bytearray(size))


def keep(size: int) -> int:
    """Grow, and let it be."""
    _kept.append(bytearray(size))
    return len(_kept)


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def forge(task: int) -> None:
    """Say, over the runner's own socket, that another task has succeeded."""
    import msgspec

    item = msgspec.msgpack.encode([task, 1, 0, 1, 1, b'"forged"'])
    body = msgspec.msgpack.encode(["did", 1, item, 1, 1, False, []])
    os.write(3, struct.pack("<I", len(body)) + body)


def babble(data: bytes | str) -> None:
    os.write(3, b"\xff" * 64)


_seen: list[str] = []
_kept: list[bytearray] = []
