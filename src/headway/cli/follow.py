"""Following work to its end: the output of one task, the levels of trees, the count of many.

On a terminal the progress is a few lines at the bottom that change in place. Elsewhere, as in the log of a build, it is a plain line
when something has changed, for progress at most one every few seconds. It goes to stderr either way.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.cli.moments import took
from headway.cli.outcome import LONGEST_ASK_S, ended, failure, print_value, reason, work_code
from headway.cli.output import position, written_lines
from headway.cli.progress import Board, task_line, task_news, tree_lines, tree_news
from headway.cli.session import Server, task_path, tree_path
from headway.cli.stalled import WAITS, Doubt
from headway.cli.terminal import Terminal, paint
from headway.wire.views.tasks import TaskView
from headway.wire.views.trees import TreeTaskView, TreeView

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_S = 0.5  # between two looks at progress; the end is told at once
LAST_OUTPUT_S = 5.0  # how long the last output may come after the end
MOST_STREAMS = 32  # tasks of a tree whose output is followed at once
PROGRESS_LINE = "headway progress "
MOST_TOLD = 50  # a tree of more tasks is told by numbers; what fails is named all the same
MOST_FAILURES = 20  # named one by one; `headway dead ls` has them all
WAIT_CHUNK = 500  # ids in one request that waits


@dataclass
class Following:
    """What is followed, and how it is shown."""

    terminal: Terminal
    server: Server
    logs: bool = True
    keep_board: bool = False

    def __post_init__(self) -> None:
        self.board = Board(live=self.terminal.for_people, keep=self.keep_board, speaks=not self.terminal.quiet)
        self.began = time.monotonic()
        self.doubt = Doubt(self.server, self._say)

    def _say(self, text: str) -> None:
        if not self.terminal.quiet:
            self.board.print(text, on_stdout=False)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began


async def follow_task(following: Following, task_id: str) -> int:
    """One task: its output as it comes, its result, its exit code."""
    terminal, server, board = following.terminal, following.server, following.board
    with board:
        output = asyncio.create_task(_show_output(following, task_id, to_stdout=True)) if not terminal.quiet else None
        async for task in _looks(server, task_id):
            board.show(task_line(task, following.elapsed))
            if not ended(task.state):
                board.tell(task_news(task))
                await following.doubt.about(task_id if task.state in WAITS else None)
        if output is not None:
            await _finish(output)
    if terminal.wants_json:
        terminal.json(task)
    elif not terminal.quiet:
        if task.state == "succeeded" and _has_result(task):
            print_value(task.result)
        _tell_end(task)
    return work_code(task.state, task.exit_code)


async def follow_trees(following: Following, ids: Sequence[str]) -> int:
    """Trees: levels and tasks as they move, then the results of the roots."""
    views: dict[str, TreeView] = {}

    def redraw() -> None:
        lines = [line for view in views.values() for line in tree_lines(view, following.elapsed, following.board.height)]
        following.board.show("\n".join(lines))
        if news := "; ".join(tree_news(view) for view in views.values() if not ended(view.state)):
            following.board.tell(news)

    with following.board:
        await asyncio.gather(*(_follow_tree(following, one, views, redraw) for one in ids))
    trees = [views[one] for one in ids]
    await _tell_trees(following, trees)
    bad = [tree for tree in trees if tree.state != "succeeded"]  # a task skipped because nobody needed it is no failure
    if not bad:
        return 0
    failed = [task for tree in bad for task in sorted(tree.tasks, key=lambda one: one.level) if _bad(task)]
    worst = [task for task in failed if task.state in ("failed", "expired")] or failed
    return work_code(worst[0].state, worst[0].exit_code) if worst else work_code(bad[0].state, None)


async def follow_many(following: Following, ids: Sequence[str]) -> int:
    """Many tasks without a tree: how many are done."""
    from headway.wire.views.tasks import Waited

    server, board = following.server, following.board
    done: dict[str, TaskView] = {}
    failed: list[TaskView] = []
    pending = list(ids)
    with board:
        while pending:
            patience = LONGEST_ASK_S if following.doubt.patience_s is None else min(following.doubt.patience_s, LONGEST_ASK_S)
            chunk = {"ids": pending[:WAIT_CHUNK], "timeout": patience}
            answer = await server.post("/v1/tasks/wait", Waited, chunk, timeout=LONGEST_ASK_S + 30.0, repeatable=True)
            done.update((task.id, task) for task in answer.done)
            failed += [task for task in answer.done if task.state != "succeeded"]
            pending = [one for one in pending if one not in done]
            so_far = f"{len(done):,} of {len(ids):,} done, {len(failed):,} failed"
            board.show(f"{so_far}  {following.elapsed:.0f}s")
            if pending:
                board.tell(so_far)
                await following.doubt.about(pending[0] if not done else None)
    _tell_many(following, [done[one] for one in ids], failed)
    return work_code(failed[0].state, failed[0].exit_code) if failed else 0


def _tell_many(following: Following, tasks: Sequence[TaskView], failed: Sequence[TaskView]) -> None:
    """The results on stdout, a line each in the order of the request; what failed on stderr."""
    if following.terminal.wants_json:
        following.terminal.json(tasks)
    elif not following.terminal.quiet:
        if any(_has_result(task) for task in tasks):
            for task in tasks:
                print_value(task.result)
        for task in failed[:MOST_FAILURES]:
            print(f"headway: {task.name} {task.id} {failure(task)}", file=sys.stderr)
        print(f"headway: {len(tasks):,} done, {len(failed):,} failed after {following.elapsed:.1f}s", file=sys.stderr)


def _has_result(task: TaskView) -> bool:
    return bytes(task.result) not in (b"", b"null")


async def _looks(server: Server, task_id: str) -> AsyncIterator[TaskView]:
    """The task again and again, at the latest when it has ended."""
    while True:
        task = await server.get(task_path(task_id), TaskView, wait=LOOK_S, timeout=LOOK_S + 30.0)
        yield task
        if ended(task.state):
            return


async def _follow_tree(following: Following, tree_id: str, views: dict[str, TreeView], redraw: Callable[[], None]) -> None:
    states: dict[str, str] = {}
    seen: str | None = None
    outputs: dict[str, asyncio.Task[None]] = {}
    while True:
        tree, seen = await following.server.watch(tree_path(tree_id), TreeView, seen=seen, wait=LOOK_S)
        views[tree_id] = tree
        for task in tree.tasks:
            if states.get(task.id) != task.state:
                states[task.id] = task.state
                _tell_change(following, task, is_large=len(tree.tasks) > MOST_TOLD)
        if following.logs and not following.terminal.quiet:
            _open_outputs(following, tree.tasks, outputs)
        redraw()
        await following.doubt.about(_idle(tree))
        if ended(tree.state) and all(ended(task.state) for task in tree.tasks):
            break
    await asyncio.gather(*(_finish(output) for output in outputs.values()))


def _idle(tree: TreeView) -> str | None:
    """A task that could begin, when none is at work; those that wait for others are explained by it."""
    if any(task.state in ("running", "leased") for task in tree.tasks):
        return None
    return next((task.id for task in tree.tasks if task.state in WAITS and task.state != "blocked"), None)


def _open_outputs(following: Following, tasks: Sequence[TreeTaskView], outputs: dict[str, asyncio.Task[None]]) -> None:
    """Follow the output of every task that has begun, up to a number at once."""
    width = max(len(task.name) for task in tasks)
    for task in tasks:
        begun = task.state == "running" or (ended(task.state) and task.state not in ("skipped", "cancelled"))
        busy = sum(not output.done() for output in outputs.values())
        if begun and task.id not in outputs and busy < MOST_STREAMS:
            show = _show_output(following, task.id, prefix=f"{task.name:<{width}} | ")
            outputs[task.id] = asyncio.create_task(show)


async def _show_output(following: Following, task_id: str, *, prefix: str = "", to_stdout: bool = False) -> None:
    """Print the output of a task as it comes."""
    to_stdout = to_stdout and not following.terminal.wants_json
    async for entry in written_lines(following.server.lines(task_path(task_id, "logs"), behind=position, follow=1)):
        if entry.text.startswith(PROGRESS_LINE):
            continue  # the board shows it, as a bar or now and then
        following.board.print(prefix + entry.text, on_stdout=to_stdout and entry.stream == "stdout")


async def _finish(output: asyncio.Task[None]) -> None:
    """Let the last output arrive."""
    try:
        async with asyncio.timeout(LAST_OUTPUT_S):
            await output
    except TimeoutError:
        print("headway: the output goes on elsewhere; `headway logs` shows all of it", file=sys.stderr)


def _tell_change(following: Following, task: TreeTaskView, *, is_large: bool) -> None:
    """A plain line for a change that people want to see; a live board shows it by itself."""
    if following.board.live or following.terminal.quiet:
        return
    if task.state in ("failed", "expired") or (not is_large and (task.state == "running" or ended(task.state))):
        print(f"{following.elapsed:7.1f}s  {task.name}: {task.state}", file=sys.stderr, flush=True)


def _tell_end(task: TaskView) -> None:
    """The trace of a program that ran is the end of its standard error: that was shown as it came, and need not be read twice."""
    spent = f" after {took(task.started_at, task.ended_at)}" if task.started_at else ""
    where = f" on {task.node}" if task.node else ""
    said = paint(task.state, task.state, stream=sys.stderr)
    print(f"headway: task {task.id} {said}{spent}{where}{': ' if reason(task) else ''}{reason(task)}", file=sys.stderr)
    if task.error is not None and task.error.traceback and task.exit_code is None:
        print(task.error.traceback.rstrip(), file=sys.stderr)


async def _tell_trees(following: Following, trees: Sequence[TreeView]) -> None:
    """How each tree ended, on stderr; the results of the roots on stdout."""
    terminal = following.terminal
    if terminal.wants_json:
        terminal.json(trees[0] if len(trees) == 1 else trees)
        return
    if terminal.quiet:
        return
    for tree in trees:
        for task in tree.tasks:
            if task.state in ("failed", "expired"):
                why = f": {task.error.type}: {task.error.message}" if task.error else ""
                print(f"headway: {task.name} {task.state}{why}  (`headway show {task.id}`)", file=sys.stderr)
        said = paint(tree.state, tree.state, stream=sys.stderr)
        print(f"headway: tree {tree.id} {tree.name} {said} after {took(tree.created_at, tree.ended_at)}", file=sys.stderr)
        if tree.state == "failed":
            print(f"  hint: `headway retry {tree.id}` runs what failed again, and what was skipped behind it", file=sys.stderr)
        for value in await _results(following.server, tree):
            print_value(value)


async def _results(server: Server, tree: TreeView) -> list[Any]:
    """The results of the tasks that ran last."""
    top = max((task.level for task in tree.tasks), default=0)
    roots = [task.id for task in tree.tasks if task.level == top and task.state == "succeeded"]
    tasks = [await server.get(task_path(one), TaskView) for one in roots]
    return [task.result for task in tasks if _has_result(task)]


def _bad(task: TreeTaskView) -> bool:
    return ended(task.state) and task.state != "succeeded"
