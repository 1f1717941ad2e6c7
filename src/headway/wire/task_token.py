"""The token of one attempt: with it a running task submits subtasks, reads them and saves checkpoints (C4 H8).

Nobody stores it. An agent makes it from the key it got with its registration; a server makes it again from the same key and
compares, and looks whether that very attempt is still held by that node. So it dies with the attempt, and costs nothing to a
task that does not use it.
"""

from __future__ import annotations

import hmac

PREFIX = "hwt_"
KEY_BYTES = 32


def make(key: bytes, task: int, attempt: int) -> str:
    return f"{PREFIX}{task}_{attempt}_{_mac(key, task, attempt)}"


def parse(token: str) -> tuple[int, int] | None:
    """The task and attempt it claims to be of; None when it is no such token."""
    parts = token.removeprefix(PREFIX).split("_")
    if not token.startswith(PREFIX) or len(parts) != 3 or not all(p.isascii() and p.isdigit() and len(p) < 20 for p in parts[:2]):
        return None
    task, attempt = int(parts[0]), int(parts[1])
    return (task, attempt) if task < 2**63 and attempt < 2**31 else None


def is_of(token: str, key: bytes, task: int, attempt: int) -> bool:
    return hmac.compare_digest(token.encode(), make(key, task, attempt).encode())


def _mac(key: bytes, task: int, attempt: int) -> str:
    return hmac.digest(key, f"{task}/{attempt}".encode(), "sha256").hex()[:40]
