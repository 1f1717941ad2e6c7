"""Functions that the agent's tests run in warm runners."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import headway


def nothing(*args: Any, **kwargs: Any) -> None:
    """The smallest task."""


def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": list(args), "kwargs": kwargs}


async def later(value: int) -> int:
    await asyncio.sleep(0.01)
    return value + 1


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def rest(seconds: float) -> None:
    time.sleep(seconds)


def fail(message: str) -> None:
    raise ValueError(message)


def leave(code: int) -> None:
    sys.exit(code)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def unsendable() -> object:
    return object()


def talk() -> str:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.write(1, b"below Python\n")
    print("headway progress 2/5 by a line")
    headway.current().progress(3, 5, "by a call")
    current = headway.current()
    return f"{current.task_id} {current.attempt}"


def put(path: str, text: str) -> None:
    """Who sees the file sees all of it."""
    Path(f"{path}.new").write_text(text)
    os.replace(f"{path}.new", path)


def wait_for(path: str, began: str | None = None) -> str:
    """Ends when the file is there."""
    if began is not None:
        put(began, str(os.getpid()))
    while not Path(path).exists():
        time.sleep(0.005)
    return Path(path).read_text()


def note(path: str) -> int:
    """Leaves a line for each run."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return os.getpid()


def start_child(path: str) -> int:
    """Leaves a process behind that has left everything."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    put(path, str(child.pid))
    return child.pid


def stubborn(began: str, cleaned: str) -> None:
    """Cleans up when it is asked to end."""
    try:
        put(began, str(os.getpid()))
        time.sleep(600)
    finally:
        Path(cleaned).write_text("yes")
