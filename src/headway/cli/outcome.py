"""`wait` and `result`: how the work went. Both return the work's own exit code."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, group, table

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.cli.stalled import Doubt
    from headway.client.inside import Inside
    from headway.wire.views.tasks import TaskView

app = group("See how work went.")

Timeout = Annotated[str | None, typer.Option("--timeout", help="Give up after this long (exit code 124).", metavar="DURATION")]
LONGEST_ASK_S = 20.0  # one held request: short enough for proxies that cut idle connections
TIMED_OUT = 124
REQUEUE = 85


@command(
    app,
    "wait",
    examples=[
        "headway wait 1234567890123456789",
        "headway wait $A $B --timeout 10m && echo both went well",
        "headway wait || exit",
    ],
)
def wait(
    terminal: Terminal, ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]")] = None, timeout: Timeout = None
) -> int:
    """Wait for tasks to end; returns the first exit code that is not 0.

    Inside a task it does not wait: exit code 85 says that they have not ended. A task that ends with that code runs again
    when they have, and holds nothing meanwhile: write `headway wait $A $B || exit`. Without ids, it is about all subtasks."""
    from headway.cli.moments import duration
    from headway.cli.session import talk
    from headway.cli.stalled import Doubt

    limit = None if timeout is None else duration(timeout, "--timeout")

    async def look(server: Server) -> int:
        inside = None if timeout is not None else server.inside
        asked = ids or (inside.children if inside is not None else [])
        if not asked:
            raise typer.BadParameter("name at least one task", param_hint="ID")
        trees: list[str] = []
        wanted = [task for one in asked for task in await _tasks_of(server, one, trees)]
        deadline = None if limit is None else time.monotonic() + limit
        doubt = None if inside is not None or terminal.quiet else Doubt(server, lambda text: print(text, file=sys.stderr, flush=True))
        done, pending = await wait_for(server, wanted, limit if inside is None else 0.0, doubt)
        if pending and inside is not None:
            return _suspend(inside, pending)
        states = [] if inside is not None else [await _tree_end(server, one, deadline) for one in trees]
        pending += [tree for tree, state in zip(trees, states, strict=False) if not ended(state)]
        tasks = [done[one] for one in wanted if one in done]
        value = {"done": tasks, "pending": pending}
        terminal.answer(value, ids=[task.id for task in tasks], table=lambda: _ended(tasks))
        if pending:
            print(f"headway: {len(pending)} of {len(wanted)} not ended after {timeout}", file=sys.stderr)
            return TIMED_OUT
        judged = [task for task in tasks if task.state != "skipped"] if states else tasks  # the tree says whether that was meant
        codes = [work_code(task.state, task.exit_code) for task in judged] if set(states) != {"succeeded"} else []
        return next((code for code in [*codes, *(work_code(state, None) for state in states)] if code), 0)

    return talk(terminal, look)


@command(
    app,
    "result",
    examples=["headway result 1234567890123456789", "headway result 1234567890123456789 --timeout 1m | jq .total"],
)
def result(terminal: Terminal, task_id: Annotated[str, typer.Argument(metavar="ID")], timeout: Timeout = None) -> int:
    """Print the result of a task as JSON; with --timeout, wait for it."""
    from headway.cli.moments import duration
    from headway.cli.session import talk

    limit = 0.0 if timeout is None else duration(timeout, "--timeout")

    async def look(server: Server) -> int:
        task = await _final(server, task_id, limit)
        if timeout is None and server.inside is not None and not ended(task.state):
            return _suspend(server.inside, [task_id])
        if task.state == "succeeded":
            print_value(task.result)
        return _judge(task, waited=timeout)

    return talk(terminal, look)


def _suspend(inside: Inside, pending: list[str]) -> int:
    """The task that asks is to end with this exit code; its agent finds what it waits for."""
    inside.suspended(pending)
    return REQUEUE


async def _tree_end(server: Server, tree_id: str, deadline: float | None) -> str:
    """The state of a tree once all of it has ended, also what came into it meanwhile; or at the deadline."""
    from headway.cli.session import tree_path
    from headway.wire.views.trees import TreeView

    seen: str | None = None
    while True:
        left = LONGEST_ASK_S if deadline is None else max(min(deadline - time.monotonic(), LONGEST_ASK_S), 0.0)
        tree, seen = await server.watch(tree_path(tree_id), TreeView, seen=seen, wait=left)
        if ended(tree.state) or (deadline is not None and time.monotonic() >= deadline):
            return tree.state


async def _tasks_of(server: Server, one: str, trees: list[str]) -> list[str]:
    """The id itself when it is a task's, its tasks' when it is a tree's; what is neither would be waited for in vain."""
    from headway.cli.session import task_path, tree_path
    from headway.errors import NotFound
    from headway.wire.views.tasks import TaskView
    from headway.wire.views.trees import TreeView

    try:
        return [(await server.get(task_path(one), TaskView)).id]
    except NotFound as not_a_task:
        try:
            tree = await server.get(tree_path(one), TreeView)
        except NotFound:
            raise not_a_task from None
        trees.append(tree.id)
        return [task.id for task in tree.tasks]


async def wait_for(
    server: Server, ids: list[str], limit: float | None, doubt: Doubt | None = None
) -> tuple[dict[str, TaskView], list[str]]:
    """The tasks that ended within `limit` seconds, and the ids of those that did not."""
    from headway.wire.views.tasks import Waited

    deadline = None if limit is None else time.monotonic() + limit
    done: dict[str, TaskView] = {}
    pending = list(dict.fromkeys(ids))
    while pending:
        left = LONGEST_ASK_S if deadline is None else max(min(deadline - time.monotonic(), LONGEST_ASK_S), 0.0)
        if doubt is not None and doubt.patience_s is not None:
            left = min(left, doubt.patience_s)
        answer = await server.post("/v1/tasks/wait", Waited, {"ids": pending, "timeout": left}, timeout=left + 30.0, repeatable=True)
        done.update((task.id, task) for task in answer.done)
        pending = [one for one in pending if one not in done]
        if deadline is not None and time.monotonic() >= deadline:
            break
        if doubt is not None and pending:
            await doubt.about(pending[0])
    return done, pending


async def _final(server: Server, task_id: str, limit: float) -> TaskView:
    """The task, with its result: final, or as it is when the time is over."""
    from headway.cli.session import task_path
    from headway.wire.views.tasks import TaskView

    deadline = time.monotonic() + limit
    while True:
        left = max(min(deadline - time.monotonic(), LONGEST_ASK_S), 0.0)
        task = await server.get(task_path(task_id), TaskView, wait=left or None, timeout=left + 30.0)
        if ended(task.state) or time.monotonic() >= deadline:
            return task


def _judge(task: TaskView, *, waited: str | None) -> int:
    """The exit code of `result`, with the reason on stderr when there is no result."""
    if task.state == "succeeded":
        return 0
    if not ended(task.state):
        print(f"headway: task {task.id} is {task.state}", file=sys.stderr)
        print("  hint: --timeout waits for it, `headway logs -f` shows what it does", file=sys.stderr)
        return TIMED_OUT if waited else 1
    print(f"headway: task {task.id} {failure(task)}", file=sys.stderr)
    print(f"  hint: `headway show {task.id}` tells more", file=sys.stderr)
    return work_code(task.state, task.exit_code)


def ended(state: str) -> bool:
    return state in ("succeeded", "failed", "cancelled", "skipped", "expired")


def work_code(state: str, exit_code: int | None) -> int:
    """The exit code to leave with for work that ended so: its own, or 1 when it failed without one."""
    if state == "succeeded":
        return 0
    if not exit_code:
        return 1
    return 128 - exit_code if exit_code < 0 else min(exit_code, 255)  # -9, killed, is 137 to a shell


def failure(task: TaskView) -> str:
    """ "failed: exit code 3", "failed: ValueError: no such page"."""
    why = reason(task)
    return f"{task.state}: {why}" if why else task.state


def reason(task: TaskView) -> str:
    """Why it did not succeed, in one line."""
    if task.state == "succeeded":
        return ""
    if task.error is not None:
        return f"{task.error.type}: {(task.error.message.splitlines() or [''])[0]}"
    return f"exit code {task.exit_code}" if task.exit_code else task.outcome or ""


def print_value(raw: Any) -> None:
    """A result on stdout; none is null."""
    sys.stdout.buffer.write((bytes(raw) or b"null") + b"\n")
    sys.stdout.buffer.flush()


def _ended(tasks: list[TaskView]) -> str:
    from headway.cli.moments import took

    rows = [(task.id, task.state, task.name, took(task.started_at, task.ended_at), task.exit_code) for task in tasks]
    return table(("ID", "STATE", "NAME", "TOOK", "EXIT"), rows, right=("TOOK", "EXIT"), wide="NAME") if rows else ""
