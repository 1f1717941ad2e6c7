"""`ls` and `show`: what there is, and everything known about one."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, fields, group, paint, table

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.exchange import Excess
    from headway.wire.views.tasks import AttemptView, Page, TaskView
    from headway.wire.views.trees import LevelView, TreePage, TreeView

app = group("Look at tasks.")

A_MOMENT = datetime.timedelta(seconds=1)

States = Annotated[list[str] | None, typer.Option("--state", help="Only this state; repeat for more.")]
Name = Annotated[str | None, typer.Option("--name", help="Only tasks of this name; * stands for anything.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="Only tasks with this label.", metavar="K=V")]
Node = Annotated[str | None, typer.Option("--node", help="Only tasks on this node.")]
Search = Annotated[str | None, typer.Option("--search", "-q", help="Only tasks whose name or command has this text.")]
Since = Annotated[str | None, typer.Option("--since", help="Created after this: 1h (ago) or ISO 8601.", metavar="TIME")]
Until = Annotated[str | None, typer.Option("--until", help="Created before this.", metavar="TIME")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="At most so many.", min=1, max=1000)]
Cursor = Annotated[str | None, typer.Option("--cursor", help="Go on after an earlier page.")]
Tree = Annotated[str | None, typer.Option("--tree", help="Only tasks of this tree.", metavar="ID")]
Trees = Annotated[bool, typer.Option("--trees", help="List trees instead of tasks.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again every 2 seconds, until Ctrl-C.")]


@command(
    app,
    "ls",
    examples=[
        "headway ls",
        "headway ls --state failed --since 1h",
        "headway ls --label team=web --node big-1 -n 100",
        "headway ls -q report -o quiet | xargs headway cancel",
        "headway ls --trees --name nightly",
        "headway ls --tree 1234567890123456789 --state failed",
    ],
)
def ls(
    terminal: Terminal,
    state: States = None,
    name: Name = None,
    label: Labels = None,
    node: Node = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    tree: Tree = None,
    trees: Trees = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    watch: Watch = False,
) -> None:
    """List tasks, or trees, the newest first."""
    from headway.cli.moments import moment
    from headway.cli.options import pairs
    from headway.cli.session import talk
    from headway.wire.views.tasks import Page
    from headway.wire.views.trees import TreePage

    pairs(label, "--label")  # refuse a label without a value here, where the option can be named
    query: dict[str, Any] = {
        "state": state,
        "name": name,
        "label": label,
        "node": node,
        "q": search,
        "since": moment(since, "--since"),
        "until": moment(until, "--until"),
        "tree": tree,
        "limit": limit,
        "cursor": cursor,
    }
    if trees:
        _refuse_for_trees(query)

    async def look(server: Server) -> None:
        while True:
            terminal.frame(watch)
            if trees:
                _answer_trees(terminal, await server.get("/v1/trees", TreePage, **query))
            else:
                _answer(terminal, await server.get("/v1/tasks", Page, **query))
            if not watch:
                return
            await terminal.pause(2.0)

    talk(terminal, look)


@command(app, "show", examples=["headway show 1234567890123456789", "headway show 1234567890123456789 --json"])
def show(terminal: Terminal, task_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show everything known about a task or a tree."""
    from headway.cli.session import talk, task_path
    from headway.errors import NotFound
    from headway.wire.views.tasks import AttemptView, TaskView

    async def look(server: Server) -> None:
        try:
            task = await server.get(task_path(task_id), TaskView)
        except NotFound as error:
            await _show_tree(terminal, server, task_id, error)
            return
        attempts = await server.get(task_path(task_id, "attempts"), list[AttemptView])
        value = {"task": task, "attempts": attempts}
        terminal.answer(value, ids=[task.id], table=lambda: describe(task, attempts))

    talk(terminal, look)


async def _show_tree(terminal: Terminal, server: Server, tree_id: str, not_a_task: Exception) -> None:
    from headway.cli.session import tree_path
    from headway.errors import NotFound
    from headway.wire.views.trees import TreeView

    try:
        tree = await server.get(tree_path(tree_id), TreeView)
    except NotFound:
        raise not_a_task from None
    terminal.answer({"tree": tree}, ids=[task.id for task in tree.tasks], table=lambda: describe_tree(tree))


def _refuse_for_trees(query: dict[str, Any]) -> None:
    """A filter that would be ignored is refused."""
    for option in ("state", "label", "node", "q", "since", "until", "tree"):
        if query[option]:
            raise typer.BadParameter(
                "trees are listed by --name only", param_hint="--search" if option == "q" else f"--{option}"
            )


def _answer(terminal: Terminal, page: Page) -> None:
    terminal.answer(page, ids=[task.id for task in page.tasks], table=lambda: _listing(page))


def _answer_trees(terminal: Terminal, page: TreePage) -> None:
    terminal.answer(page, ids=[tree.id for tree in page.trees], table=lambda: _tree_listing(page))


def _tree_listing(page: TreePage) -> str:
    from headway.cli.moments import ago, took

    if not page.trees:
        return "no trees"
    rows = [
        (tree.id, tree.state, tree.name, ago(tree.created_at), took(tree.created_at, tree.ended_at), tree.total, tree.left)
        for tree in page.trees
    ]
    text = table(
        ("ID", "STATE", "NAME", "AGE", "TOOK", "TASKS", "LEFT"), rows, right=("AGE", "TOOK", "TASKS", "LEFT"), wide="NAME"
    )
    return text + (f"\nmore: --cursor {page.next}" if page.next else "")


def _listing(page: Page) -> str:
    from headway.cli.moments import ago, took

    if not page.tasks:
        return "no tasks"
    rows = [
        (task.id, task.state, task.name, ago(task.created_at), took(task.started_at, task.ended_at), task.node)
        for task in page.tasks
    ]
    text = table(("ID", "STATE", "NAME", "AGE", "TOOK", "NODE"), rows, right=("AGE", "TOOK"), wide="NAME")
    return text + (f"\nmore: --cursor {page.next}" if page.next else "")


def describe(task: TaskView, attempts: list[AttemptView]) -> str:
    """A task, for people."""
    from headway.cli.moments import took, when
    from headway.cli.progress import attempt_text

    labels = " ".join(f"{key}={value}" for key, value in task.labels.items())
    failures = ", ".join(f"{count} by {blame}" for blame, count in task.failures.items() if count)
    parts = [
        fields(
            [
                ("id", task.id),
                ("name", task.name),
                ("state", paint(task.state) + (" (cancelling)" if task.cancelling else "")),
                ("paused", f"since {when(task.paused_since)}" if task.paused_since else None),
                ("runs", task.what),
                ("labels", labels),
                ("tenant", task.tenant),
                ("tree", task.tree),
                ("stage", _stage(task)),
                ("checkpoint", f"{when(task.checkpoint_at)}, {task.checkpoint_size} bytes" if task.checkpoint_at else None),
                ("parent", task.parent),
                ("subtasks", " ".join(task.subtasks[:10]) + (" ..." if len(task.subtasks) > 10 else "") or None),
                ("category", task.category),
                ("queue", task.queue),
                ("resources", _resources(task)),
                ("isolation", task.isolation if task.isolation != "none" else None),
                ("attempt", attempt_text(task)),
                ("failures", failures),
                ("waits for", f"{task.blocked_on} tasks" if task.blocked_on else None),
                ("created", when(task.created_at)),
                ("eligible", when(task.eligible_at) if task.eligible_at - task.created_at > A_MOMENT else None),
                ("start by", when(task.start_by) if task.started_at is None else None),
                ("max wait", _max_wait(task)),
                ("started", when(task.started_at)),
                ("ended", when(task.ended_at)),
                ("took", took(task.started_at, task.ended_at)),
                ("node", task.node),
                ("outcome", task.outcome),
                ("exit code", task.exit_code),
                ("used", _usage(task)),
                ("progress", _progress(task)),
                ("input", _value(task.input)),
                ("result", _value(task.result)),
            ]
        )
    ]
    if task.error is not None:
        parts.append(f"error  {task.error.type}: {task.error.message}")
        parts += [_excess(task.error.excess)] if task.error.excess else []
        parts += [_indented(task.error.traceback)] if task.error.traceback else []
    if attempts:
        parts.append(_attempts(attempts))
    return "\n\n".join(parts)


def _attempts(attempts: list[AttemptView]) -> str:
    from headway.cli.moments import took

    rows = [
        (one.attempt, one.outcome or "running", one.node, took(one.started_at, one.ended_at), one.exit_code, _why(one))
        for one in attempts
    ]
    return table(("ATTEMPT", "OUTCOME", "NODE", "TOOK", "EXIT", "ERROR"), rows, right=("TOOK", "EXIT"))


def _stage(task: TaskView) -> str | None:
    """ "2 of 3, copy"."""
    if not task.stages:
        return None
    at = min(task.stages_done, len(task.stages) - 1)
    return f"{at + 1} of {len(task.stages)}, {task.stages[at]}"


def describe_tree(tree: TreeView) -> str:
    """A tree, for people: its levels, then its tasks."""
    from headway.cli.moments import when

    kept = "strict" if tree.strict else ""
    head = fields([
        ("id", tree.id), ("tree", tree.name), ("state", paint(tree.state)), ("levels", kept), ("created", when(tree.created_at)),
        ("ended", when(tree.ended_at)),
        ("expected", when(tree.expected_end_at)),
    ])  # fmt: skip
    levels = table(
        ("LEVEL", "TASKS", "LEFT", "FAILED", "CANCELLED", "SKIPPED", "ENDS"),
        [
            (one.level, one.total, one.left, one.failed + one.expired, one.cancelled, one.skipped + one.spared, _ends(one))
            for one in tree.levels
        ],
    )
    if tree.height > len(tree.levels):
        levels += f"\n{len(tree.levels)} of {tree.height} levels; `GET /v1/trees/{tree.id}/levels` has them all"
    if tree.total > len(tree.tasks):
        return "\n\n".join([head, levels, f"{tree.total} tasks; `headway ls --tree {tree.id}` lists them"])
    tasks = table(
        ("ID", "STATE", "LEVEL", "NAME"),
        [(task.id, task.state, task.level, task.name) for task in sorted(tree.tasks, key=lambda t: (t.level, t.id))],
        wide="NAME",
    )
    return "\n\n".join([head, levels, tasks])


def _ends(level: LevelView) -> str:
    """When the level ended, or when it is expected to."""
    from headway.cli.moments import when

    if not level.left:
        return when(level.ended_at) or ""
    return f"expected {when(level.expected_end_at)}" if level.expected_end_at else "not known yet"


def _max_wait(task: TaskView) -> str | None:
    """ "10m, then it expires"."""
    from headway.domain.units import duration_text

    if task.max_wait_s is None:
        return None
    return f"{duration_text(task.max_wait_s)}, then it {'waits on' if task.on_max_wait == 'keep' else 'expires'}"


def _resources(task: TaskView) -> str | None:
    from headway.domain.units import size_text

    need = task.resources
    if need is None:
        return None
    labels = "".join(f", {key}={value}" for key, value in need.labels.items())
    tier = f"{need.tier}: " if need.tier else ""
    return f"{tier}{need.cpus:g} cpus, {size_text(need.memory)} memory, {size_text(need.disk)} disk{labels}"


def _usage(task: TaskView) -> str | None:
    from headway.domain.units import duration_text, size_text

    used = task.usage
    if used is None:
        return None
    parts = [f"{duration_text(used.cpu_s)} cpu" if used.cpu_s is not None else ""]
    parts += [f"{size_text(used.max_memory)} memory" if used.max_memory else ""]
    parts += [f"{size_text(used.read_bytes)} read" if used.read_bytes else ""]
    parts += [f"{size_text(used.written_bytes)} written" if used.written_bytes else ""]
    return ", ".join(part for part in parts if part)


def _excess(excess: Excess) -> str:
    """`memory  used 257MiB of 256MiB allowed`"""
    from headway.domain.units import duration_text, size_text

    words: dict[str, Callable[[float], str]] = {"time": duration_text, "processes": lambda n: f"{n:g}"}
    text = words.get(excess.what, size_text)
    return f"limit  {excess.what}: used {text(excess.used)}, allowed {text(excess.allowed)}"


def _progress(task: TaskView) -> str | None:
    if task.progress is None:
        return None
    return f"{task.progress.done:g}/{task.progress.total:g} {task.progress.text}".rstrip()


def _value(raw: Any, limit: int = 2000) -> str | None:
    """A JSON value, indented; what is very long is cut here (`headway result` prints it whole)."""
    import msgspec

    if bytes(raw) in (b"", b"null"):
        return None
    text = msgspec.json.format(bytes(raw), indent=2).decode()
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _why(attempt: AttemptView) -> str:
    if attempt.error is None:
        return ""
    first = (attempt.error.message.splitlines() or [""])[0]
    return f"{attempt.error.type}: {first}"[:60]


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines())
