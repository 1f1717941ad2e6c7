"""What the load generators send, encoded before the clock runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

INPUT_BYTES = 100  # the input as JSON, brackets and quotes included: ["..."]
NOOP = "headway.bench.work:noop"
NOW = "headway.bench.work:now"
PAUSE = "headway.bench.work:pause"
WORK = "headway.bench.work:work"

# Three shapes, small as such functions are: on two cores about a hundred of them fit at once, so that placement has to
# count, and what goes beyond is given to the node ahead of time.
SHAPES: tuple[dict[str, Any], ...] = (
    {"cpus": 0.01, "memory": "1MiB", "disk": "1MiB"},
    {"cpus": 0.02, "memory": "2MiB", "disk": "1MiB"},
    {"cpus": 0.03, "memory": "4MiB", "disk": "2MiB"},
)


def mixed(count: int) -> bytes:
    """A bulk as users send it: three shapes, and every second task waits for the one before it."""
    return _encode([_task(at, edges=True) for at in range(count)])


def ready(count: int) -> bytes:
    """A bulk of three shapes without dependencies: all of it is backlog."""
    return _encode([_task(at, edges=False) for at in range(count)])


def plain(count: int) -> bytes:
    """A bulk of nothing but functions and inputs: what every queue can do."""
    return _encode([{"function": NOOP, "input": _input()} for _ in range(count)])


def single(_count: int = 1) -> bytes:
    """One task."""
    return _encode(_task(0, edges=False))


def clock(_count: int = 1) -> bytes:
    """One task that answers when it began."""
    return _encode({"function": NOW, "input": _input(), "resources": SHAPES[0]})


def executables(count: int) -> bytes:
    """A bulk of the smallest program there is."""
    return _encode([{"command": ["/bin/true"], "resources": {"cpus": 0.1, "memory": "8MiB", "disk": 0}}] * count)


KINDS: dict[str, Callable[[int], bytes]] = {
    "mixed": mixed,
    "ready": ready,
    "plain": plain,
    "single": single,
    "clock": clock,
    "executables": executables,
}


def request(*, host: str, token: str, path: str, body: bytes) -> bytes:
    """A whole HTTP request."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nheadway-protocol: 1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _task(at: int, *, edges: bool) -> dict[str, Any]:
    task: dict[str, Any] = {"function": NOOP, "input": _input(), "resources": SHAPES[at // 2 % len(SHAPES)]}
    if edges and at % 2:
        task["after"] = f"t{at - 1}"
    elif edges:
        task["name"] = f"t{at}"
    return task


def _input() -> list[str]:
    return [os.urandom((INPUT_BYTES - 4) // 2).hex()]


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
