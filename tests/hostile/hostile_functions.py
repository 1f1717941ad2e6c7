"""Functions that a tenant nobody trusts has submitted; imported by warm runners in a sandbox."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import time
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


def fib(what: str) -> None:
    """Say, over the runner's own socket, of its own end what nobody could store."""
    import msgspec

    import headway

    task = headway.current().id
    deep = b"[" * 5_000 + b"]" * 5_000
    error = '{"type":"A","message":"b","x":' + deep.decode() + "}"
    row = {
        "error": [task, 1, 1, 1, 1, None, 1, error],
        "result": [task, 1, 0, 1, 1, b"[1,"],
        "number": [task, 1, 0, 1, 1, b"1", None, None, 2**62],
    }[what]
    body = msgspec.msgpack.encode(["did", 1, msgspec.msgpack.encode(row), 1, 1, False, []])
    os.write(3, struct.pack("<I", len(body)) + body)
    signal.pause()


NONSENSE = {
    "noise": b"\xff" * 64,
    "lists in lists": struct.pack("<I", 100_000) + b"\x91" * 100_000,
    "a million pieces of output": struct.pack("<I", 2**20 + 11) + b"\x93\xa4said\xdd\x00\x10\x00\x00" + b"\x90" * 2**20 + b"\xc0",
    "a word": struct.pack("<I", 6) + b"\xa5hello",
    "an unknown message": struct.pack("<I", 6) + b"\x91\xa4tell",
    "a message without its parts": struct.pack("<I", 5) + b"\x91\xa3did",
}


def babble(kind: str) -> None:
    """Write nonsense into the runner's own socket, and wait to be ended for it."""
    left = NONSENSE[kind]
    while left:
        left = left[os.write(3, left) :]
    signal.pause()


def announce() -> None:
    """A message of a gigabyte, and all of it."""
    os.write(3, struct.pack("<I", 2**30))
    while True:
        os.write(3, bytes(2**16))


def ask() -> None:
    """For one token after another, with nobody who listens to the answers."""
    me, body = os.getpid(), b"\x91\xa5token"
    if not os.fork():
        os.kill(me, signal.SIGSTOP)
        while True:
            os.write(3, (struct.pack("<I", len(body)) + body) * 100)
    signal.pause()


def tell(count: int) -> int:
    """How far it is, again and again."""
    import headway

    for done in range(count):
        headway.current().progress(done + 1, count, "on")
    return count


def cut_down(size: int) -> list[int]:
    """Make everything it was given shorter; which descriptors let it."""
    done = []
    for fd in range(3, 64):
        try:
            os.ftruncate(fd, size)
        except OSError:
            continue
        done.append(fd)
    return done


def scribble(number: int) -> None:
    """Write nonsense where the runner says what it has begun, and die."""
    with mmap.mmap(4, mmap.PAGESIZE) as shared:
        shared[:16] = struct.pack("qq", number, number)
    os._exit(3)


def stay(number: int) -> None:
    """Deny that it has begun, do not listen, and never end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with mmap.mmap(4, mmap.PAGESIZE) as shared:
        while True:
            shared[:16] = struct.pack("qq", number, 2**62)
            time.sleep(0.01)


_seen: list[str] = []
_kept: list[bytearray] = []


def fill_its_folder(size: int) -> None:
    with open("filled", "wb", buffering=0) as file:
        for _ in range(0, size, 2**20):
            file.write(bytes(2**20))
