"""Processes whose parent died below `up`: they come to `up` (Linux), which finds and reaps them.

That is how an agent whose exchange side was killed keeps its tasks under `up`: its supervisor lives on, and is ours now.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from headway.agent import tree
from headway.agent.supervisor import PROCESS


def take_in() -> None:
    """From now on, orphans among our descendants become our children."""
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)


def supervisor() -> int | None:
    """A supervisor that outlived the agent we started, or None."""
    mark = f"\0{PROCESS}=".encode()
    return next((pid for pid in _children(zombie=False) if mark in tree.environ(pid)), None)


def running(pid: int) -> bool:
    found = tree.stat(pid)
    return found is not None and not found.zombie


def reap(spare: Collection[int | None]) -> None:
    """Forget orphans that have ended; `spare` are children that others wait for."""
    for pid in _children(zombie=True):
        if pid not in spare:
            with contextlib.suppress(ChildProcessError):  # somebody was faster
                os.waitpid(pid, os.WNOHANG)


def _children(*, zombie: bool) -> list[int]:
    own = os.getpid()
    return [pid for pid, found in tree.table().items() if found.ppid == own and found.zombie is zombie]
