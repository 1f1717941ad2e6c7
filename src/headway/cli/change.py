"""`cancel`, `pause`, `resume`, `signal` and `retry`: change what happens to tasks that exist."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headway.cli.terminal import Terminal, command, group, table

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.errors import HeadwayError
    from headway.wire.views.tasks import TaskView
    from headway.wire.views.trees import TreeView

T = TypeVar("T")

app = group("Change tasks.")

MOST_LISTED = 100  # tasks of a cancelled tree that are shown one by one

Ids = Annotated[list[str], typer.Argument(metavar="ID...")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field first, for example attempts=5.", metavar="FIELD=VALUE")
]
Tier = Annotated[str | None, typer.Option("--tier", help="Run it in this tier.")]
Edit = Annotated[str | None, typer.Option("--edit", help="Change several: a JSON object, or @FILE.", metavar="JSON")]


@command(
    app,
    "cancel",
    examples=["headway cancel 1234567890123456789", "headway ls --label run=42 -o quiet | xargs headway cancel"],
)
def cancel(terminal: Terminal, ids: Ids) -> None:
    """Cancel tasks or trees, with all their processes."""
    from headway.cli.session import talk

    async def ask(server: Server) -> None:
        done, failed = await _each(ids, lambda one: _cancel(server, one))
        _tell(terminal, [task for tasks in done for task in tasks], failed)

    talk(terminal, ask)


@command(
    app,
    "retry",
    examples=[
        "headway retry 1234567890123456789",
        "headway retry 1234567890123456789 --set attempts=5 --set execution_cap=1h",
        "headway retry 1234567890123456789 --tier premium    # it ran out of memory",
        "headway retry TREE    # what failed of a tree, and what was skipped behind it",
    ],
)
def retry(terminal: Terminal, ids: Ids, set_: Sets = None, edit: Edit = None, tier: Tier = None) -> None:
    """Send dead letters again, as they were or after an edit; of a tree, what failed and what was skipped behind it."""
    from headway.cli.options import edits
    from headway.cli.session import talk

    changes = edits(set_, edit)
    if tier is not None:
        changes["resources"] = tier
    body = {"edit": changes} if changes else None

    async def ask(server: Server) -> None:
        _tell(terminal, *await _each(ids, lambda one: _retry(server, one, body)))

    talk(terminal, ask)


Wait = Annotated[str, typer.Option("--wait", help="How long to wait for the node's answer.", metavar="DURATION")]


@command(
    app,
    "pause",
    examples=["headway pause 1234567890123456789", "headway ls --label run=42 --state running -o quiet | xargs headway pause"],
)
def pause(terminal: Terminal, ids: Ids, wait: Wait = "10s") -> None:
    """Pause tasks: freeze running ones, keep waiting ones from starting."""
    _steer(terminal, ids, "pause", wait, {})


@command(app, "resume", examples=["headway resume 1234567890123456789", "headway ls --state paused -o quiet | xargs headway resume"])
def resume(terminal: Terminal, ids: Ids, wait: Wait = "10s") -> None:
    """Let paused tasks go on."""
    _steer(terminal, ids, "resume", wait, {})


@command(app, "signal", examples=["headway signal USR1 1234567890123456789", "headway signal HUP 1234567890123456789 --wait 2s"])
def signal(
    terminal: Terminal,
    name: Annotated[str, typer.Argument(metavar="SIGNAL", help="HUP, INT, QUIT, USR1, USR2, TERM, ALRM or WINCH.")],
    ids: Ids,
    wait: Wait = "10s",
) -> None:
    """Send a signal to the programs of running tasks."""
    from headway.errors import InvalidInput

    if name.isdigit() and not ids[-1].isdigit():
        raise InvalidInput(f"signal: {name} is no signal", field="SIGNAL", hint=f"the signal comes first: headway signal {ids[-1]} {name}")
    _steer(terminal, ids, "signal", wait, {"signal": name})


def _steer(terminal: Terminal, ids: list[str], word: str, wait: str, body: dict[str, str]) -> None:
    from headway.cli.session import talk, task_path
    from headway.client.connection import with_query
    from headway.wire.views.tasks import TaskView

    async def ask(server: Server) -> None:
        async def steer(one: str) -> TaskView:
            return await server.post(with_query(task_path(one, word), {"wait": wait}), TaskView, body, timeout=90.0)

        tasks, failed = await _each(ids, steer)
        for task in tasks:
            if task.ended_at is not None:
                print(f"headway: task {task.id} has ended meanwhile: it is {task.state}", file=sys.stderr)
        _tell(terminal, tasks, failed)

    talk(terminal, ask)


async def _each(ids: Sequence[str], do: Callable[[str], Awaitable[T]]) -> tuple[list[T], list[HeadwayError]]:
    """Do it to each. One that is not there or has ended, as some of a long list will, does not keep it from the rest."""
    from headway.errors import Conflict, NotFound

    done: list[T] = []
    failed: list[HeadwayError] = []
    for one in ids:
        try:
            done.append(await do(one))
        except (Conflict, NotFound) as error:
            failed.append(error)
    return done, failed


def _tell(terminal: Terminal, done: Sequence[TaskView | TreeView], failed: Sequence[HeadwayError]) -> None:
    from headway.cli.main import complain

    if done or not failed:
        terminal.answer(list(done), ids=[one.id for one in done], table=lambda: _changed(done))
    for error in failed[:-1]:
        complain(error.detail, hint=error.hint)
    if failed:
        raise failed[-1]


async def _retry(server: Server, one: str, body: dict[str, Any] | None) -> TaskView | TreeView:
    """Send a dead letter again, or what failed of a tree when the id is a tree's."""
    from headway.cli.session import task_path, tree_path
    from headway.errors import NotFound
    from headway.wire.views.tasks import TaskView
    from headway.wire.views.trees import TreeView

    try:
        return await server.post(task_path(one, "retry"), TaskView, body)
    except NotFound:
        if body is not None:
            raise
        return await server.post(tree_path(one, "retry"), TreeView, timeout=600.0)


async def _cancel(server: Server, one: str) -> list[TaskView | TreeView]:
    """Cancel a task, or all tasks of a tree when the id is a tree's."""
    from headway.cli.session import task_path, tree_path
    from headway.errors import NotFound
    from headway.wire.views.tasks import TaskView
    from headway.wire.views.trees import TreeView

    try:
        return [await server.post(task_path(one, "cancel"), TaskView)]
    except NotFound as not_a_task:
        try:
            tree = await server.post(tree_path(one, "cancel"), TreeView, timeout=600.0)
        except NotFound:
            raise not_a_task from None
        if tree.total > MOST_LISTED:
            return [tree]
        return [await server.get(task_path(task.id), TaskView) for task in tree.tasks]


def _changed(tasks: Sequence[TaskView | TreeView]) -> str:
    rows = [(task.id, _now(task), task.name) for task in tasks]
    return table(("ID", "STATE", "NAME"), rows, wide="NAME")


def _now(task: TaskView | TreeView) -> str:
    """Its state, or what it is about to be."""
    from headway.wire.views.trees import TreeView

    if isinstance(task, TreeView):
        return task.state
    if task.cancelling:
        return "cancelling"
    if task.paused_since is not None and task.state != "paused":
        return f"{task.state}, to be paused" if task.state != "blocked" else "blocked, and paused"
    return task.state
