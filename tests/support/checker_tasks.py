"""Tasks that leave a trail: each run writes its start, its ticks and its end into a journal that all runs share.

The database only knows what it was told. The journal is written by the runs themselves, on a clock that all processes of the
machine share (CLOCK_BOOTTIME), so a run that nobody should know about any more still gives itself away. Each line is one
write to a file opened with O_APPEND, hence whole. A run that is killed writes no end: its last tick tells how long it lived
at least.

A first attempt may be held: it goes on until a file is there, however slow the machine is. Later ones take their seconds.

As a function: "tests.support.checker_tasks:work". As a program: python checker_tasks.py JOURNAL SECONDS [FILE].
"""

from __future__ import annotations

import os
import sys
import time

TICK_S = 0.05
LONGEST_S = 300.0


def work(journal: str, seconds: float, held: str | None = None) -> int:
    """Run for so long, leaving a trail. Returns the number of the attempt."""
    from headway.client.context import current

    task = current()
    trail(journal, str(task.id), task.attempt, seconds, held)
    return task.attempt


def trail(journal: str, task: str, attempt: int, seconds: float, held: str | None) -> None:
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _note(fd, "start", task, attempt)
        end = time.monotonic() + (LONGEST_S if held and attempt == 1 else seconds)
        while (left := end - time.monotonic()) > 0 and not (held and attempt == 1 and os.path.exists(held)):
            time.sleep(min(left, TICK_S))  # the work itself: this is what the task is asked to do
            _note(fd, "tick", task, attempt)
        _note(fd, "end", task, attempt)
    finally:
        os.close(fd)


def _note(fd: int, what: str, task: str, attempt: int) -> None:
    os.write(fd, f"{what} {task} {attempt} {os.getpid()} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\n".encode())


if __name__ == "__main__":
    trail(sys.argv[1], os.environ["HEADWAY_TASK_ID"], int(os.environ["HEADWAY_ATTEMPT"]), float(sys.argv[2]), *(sys.argv[3:4] or [None]))
