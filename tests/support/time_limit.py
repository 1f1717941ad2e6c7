"""A test that hangs fails, by name and with the stacks of everything that waits, and costs no more than its own time.

Set-up, call and tear-down of each test may take LIMIT_S each; `@pytest.mark.time_limit(seconds)` gives one test more. What the call
started and did not end is killed. A test that does not even let go when it is told so (it waits in C, or its cleaning up hangs too)
ends its whole process after the grace: under xdist that fails this test alone, and the rest go on in a new worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

import pytest

from headway.agent import tree

# Waiting for one thing gives up after 180 s at most (tests/support/waiting.py), and says then what did not happen.
LIMIT_S = 300.0
GRACE_S = 60.0
_late = pytest.StashKey[bool]()
_screen = pytest.StashKey[int]()


class Overdue(KeyboardInterrupt):
    """Only an interrupt passes through event loops and hypothesis; they keep every other exception for themselves."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "time_limit(seconds, grace=60): more or less time than others for one test")
    # Capturing replaces the descriptor while tests run: last words go to what it is now.
    config.stash[_screen] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    with _limited(item, pytest.fail.Exception):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        with _limited(item, Overdue):
            return (yield)
    except Overdue as late:
        raise pytest.fail.Exception(str(late), pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    # Not an interrupt: pytest would leave out the other fixtures.
    with _limited(item, pytest.fail.Exception):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        if item.stash.get(_late, False):
            # Only of the call: what fixtures started may be for other tests too, and ends with them.
            tree.kill([], tree.carries(f"PYTEST_CURRENT_TEST={item.nodeid} (call)"))


@contextlib.contextmanager
def _limited(item: pytest.Item, kind: type[BaseException]) -> Iterator[None]:
    seconds, grace = _times(item)

    def ring(_number: int, frame: FrameType | None) -> None:
        item.stash[_late] = True
        raise kind(f"{item.nodeid} was not done within {seconds:g} s\n{_stacks(frame)}")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        faulthandler.dump_traceback_later(seconds + 2 * grace, exit=True, file=item.config.stash[_screen])
        signal.setitimer(signal.ITIMER_REAL, seconds, grace)  # again, when cleaning up hangs too
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _times(item: pytest.Item) -> tuple[float, float]:
    mark = item.get_closest_marker("time_limit")
    return (float(mark.args[0]), float(mark.kwargs.get("grace", GRACE_S))) if mark is not None else (LIMIT_S, GRACE_S)


def _stacks(frame: FrameType | None) -> str:
    """Where every thread is, and what every asyncio task waits for: a loop's own stack only says that it waits."""
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, at in sys._current_frames().items():
        lines = traceback.format_stack(frame if ident == main else at)
        parts.append(f"thread {names.get(ident, ident)}:\n{''.join(lines)}")
    with contextlib.suppress(RuntimeError):  # no loop runs
        for task in asyncio.all_tasks():
            told = io.StringIO()
            task.print_stack(file=told)
            parts.append(told.getvalue())
    return "\n".join(parts)
