"""What /proc tells of processes that may end at any moment."""

from __future__ import annotations

from pathlib import Path


def command_line(pid: int) -> bytes:
    """Its words, a NUL behind each; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
