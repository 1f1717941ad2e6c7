"""What code inside a task can know about itself: `headway.current()`.

Imported by every warm runner, so it imports next to nothing. The runner fills in `_running` before it calls a function
and may reuse one Current for all its tasks; a program started by an agent finds the same facts in its environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class Current:
    """The task that runs here, in this attempt. The attempt number is a fence: it rises with every run."""

    __slots__ = ("attempt", "deadline", "id", "send_progress")

    def __init__(
        self,
        task_id: int | str,
        attempt: int,
        deadline: float | None = None,
        send_progress: Callable[[float, float, str], None] | None = None,
    ) -> None:
        self.id = task_id
        self.attempt = attempt
        self.deadline = deadline  # Unix seconds at which the execution cap is reached
        self.send_progress = send_progress or _print_progress

    @property
    def task_id(self) -> str:
        """As handles and the API write it: a decimal string."""
        return str(self.id)

    def progress(self, done: float, total: float = 1.0, text: str = "") -> None:
        """Say how far the task is, to be shown as a bar: `progress(40, 100, "resizing")`. May be called often."""
        self.send_progress(done, total, text)


_running: Current | None = None


def current() -> Current:
    """The running task. Outside a task there is none, and that is a RuntimeError."""
    if _running is not None:
        return _running
    task_id = os.environ.get("HEADWAY_TASK_ID")
    if not task_id:
        raise RuntimeError("headway.current() was called outside a task")
    deadline = os.environ.get("HEADWAY_DEADLINE")
    return Current(task_id, int(os.environ.get("HEADWAY_ATTEMPT", "1")), float(deadline) if deadline else None)


def _print_progress(done: float, total: float, text: str) -> None:
    """The line that agents look for on the standard output of any program."""
    words = " ".join(text.split())
    sys.stdout.write(f"headway progress {done:.12g}/{total:.12g} {words}".rstrip() + "\n")
    sys.stdout.flush()
