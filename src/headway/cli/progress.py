"""How progress looks: pure functions from views to lines, and the Board that shows them at the bottom of a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headway.cli.terminal import paint

if TYPE_CHECKING:
    from headway.wire.views.tasks import ProgressView, TaskView
    from headway.wire.views.trees import LevelView, TreeTaskView, TreeView

MARKS = {
    "succeeded": "✓",
    "failed": "✗",
    "expired": "✗",
    "cancelled": "–",
    "skipped": "–",
    "running": "●",
    "leased": "○",
}
BAR = 20
MOST_NAMED = 3  # of the tasks that run, in a line of a log


EVERY_S = 5.0  # a log is told of changes no more often than this


class Board:
    """Lines that change in place, below what is printed. Without a terminal: a plain line now and then, when something has changed."""

    def __init__(self, *, live: bool, keep: bool, speaks: bool = True) -> None:
        self.live = live and sys.stderr.isatty()
        self._keep = keep  # leave the last lines on the screen
        self._shown: Any = None
        self._speaks = speaks
        self._began = self._told_at = time.monotonic()
        self._told = ""

    @property
    def height(self) -> int:
        return shutil.get_terminal_size((80, 24)).lines

    def __enter__(self) -> Board:
        if self.live:
            from rich.console import Console
            from rich.live import Live

            self._console = Console(stderr=True)
            self._shown = Live(
                console=self._console,
                auto_refresh=False,
                transient=not self._keep,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._shown.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def show(self, text: str) -> None:
        """Replace the lines."""
        if self._shown is not None:
            from rich.text import Text

            self._shown.update(Text.from_ansi(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def tell(self, what: str) -> None:
        """Where things stand, for a log: nothing when it is the same as before, or too soon."""
        now = time.monotonic()
        if self.live or not self._speaks or what == self._told or now - self._told_at < EVERY_S:
            return
        self._told, self._told_at = what, now
        print(f"{now - self._began:7.1f}s  {what}", file=sys.stderr, flush=True)

    def print(self, text: str, *, on_stdout: bool) -> None:
        """A line of output, above the board."""
        if self._shown is not None and (sys.stdout.isatty() or not on_stdout):
            from rich.text import Text

            self._console.print(Text.from_ansi(text), soft_wrap=True)
            return
        print(text, file=sys.stdout if on_stdout else sys.stderr, flush=True)


def task_line(task: TaskView, elapsed: float) -> str:
    """One task that is waiting or running."""
    return f"{mark(task.state)} {task.name}  {_standing(task)}  {elapsed:.0f}s  {progress_text(task.progress)}".rstrip()


def task_news(task: TaskView) -> str:
    """The same for a log."""
    return f"{task.name}: {_standing(task)}{_how_far(task.progress)}"


def tree_news(tree: TreeView) -> str:
    """How far a tree is, and what runs, for a log."""
    running = [task for task in tree.tasks if task.state == "running"]
    named = ", ".join(f"{task.name}{_how_far(task.progress)}" for task in running[:MOST_NAMED])
    more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
    return f"{tree.name}: {tree.total - tree.left:,} of {tree.total:,} done{'; running: ' if running else ''}{named}{more}"


def _standing(task: TaskView) -> str:
    where = f" on {task.node}" if task.node else ""
    attempt = f", attempt {attempt_text(task)}" if task.attempt > 1 else ""
    waits = f" for {task.blocked_on} tasks" if task.blocked_on else ""
    return f"{task.state}{waits}{where}{attempt}"


def _how_far(progress: ProgressView | None) -> str:
    """ " 50 % copying", or nothing."""
    if progress is None:
        return ""
    part = f"{100 * progress.done / progress.total:.0f} % " if progress.total else ""
    return f" {part}{progress.text}".rstrip()


def attempt_text(task: TaskView) -> str:
    """The number of the attempt. It is beyond those allowed when some were lost with their node, requeued or of an earlier life."""
    if task.attempt <= task.attempts:
        return f"{task.attempt} of {task.attempts}"
    return f"{task.attempt} ({task.attempts} allowed; lost, requeued and retried ones do not count)"


def tree_lines(tree: TreeView, elapsed: float, height: int) -> list[str]:
    """A tree: a line for each level and, as far as there is room, one for each task on it."""
    ended = sum(level.total - level.left for level in tree.levels)
    total = sum(level.total for level in tree.levels)
    lines = [f"{tree.name}  {paint(tree.state, stream=sys.stderr)}  {ended}/{total}  {elapsed:.0f}s"]
    width = max((len(task.name) for task in tree.tasks), default=0)
    room = len(tree.tasks) + len(tree.levels) + 1 < height
    for level in sorted(tree.levels, key=lambda one: one.level):
        done = level.total - level.left
        lines.append(f"  level {level.level}  {bar(done, level.total)}  {done}/{level.total}{_expected(level)}")
        here = [task for task in tree.tasks if task.level == level.level]
        shown = here if room else [task for task in here if task.state in ("running", "failed")][:5]
        lines += [_tree_task(task, width) for task in shown]
    return lines


def _expected(level: LevelView) -> str:
    """When it is expected to end, while it is not over."""
    if not level.left or level.expected_end_at is None:
        return ""
    return f"  until {level.expected_end_at.astimezone():%H:%M:%S}"


def _tree_task(task: TreeTaskView, width: int) -> str:
    how_far = progress_text(task.progress) if task.state == "running" else ""
    return f"    {mark(task.state)} {task.name:<{width}}  {task.state}  {how_far}".rstrip()


def mark(state: str) -> str:
    return paint(state, MARKS.get(state, "·"), stream=sys.stderr)


def bar(part: float, whole: float, width: int = BAR) -> str:
    filled = round(width * min(max(part / whole, 0.0), 1.0)) if whole else 0
    return "█" * filled + "░" * (width - filled)


def progress_text(progress: ProgressView | None) -> str:
    """ "█████░░░░░ 50% copying", or nothing."""
    if progress is None or not progress.total:
        return "" if progress is None else progress.text
    return f"{bar(progress.done, progress.total, 10)} {100 * progress.done / progress.total:.0f}% {progress.text}".rstrip()
