"""`dead ls|show|retry|purge`: tasks that are out of attempts, grouped by what they died of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, group, table

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.views.tasks import DeadGroup, Page

app = group(
    "Dead letters: tasks that are out of attempts.",
    examples=["headway dead ls", "headway dead show 1234567890123456789", "headway dead retry --all"],
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", show_default=False)]
Fingerprint = Annotated[str | None, typer.Option("--fingerprint", help="All that died of this error (`dead ls` shows it).")]
Name = Annotated[str | None, typer.Option("--name", help="All tasks of this name.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Change a field first.", metavar="FIELD=VALUE")]
Edit = Annotated[str | None, typer.Option("--edit", help="Change several: a JSON object, or @FILE.", metavar="JSON")]


@command(app, "ls", examples=["headway dead ls", "headway dead ls --each -n 100", "headway dead ls --json"])
def ls(
    terminal: Terminal,
    each: Annotated[bool, typer.Option("--each", help="One line for each task, not for each error.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.", min=1, max=1000)] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on after an earlier page.")] = None,
) -> None:
    """List dead letters, grouped by error."""
    from headway.cli.session import talk
    from headway.wire.views.tasks import DeadGroup, Page

    async def look(server: Server) -> None:
        if each:
            page = await server.get("/v1/dead-letters", Page, limit=limit, cursor=cursor)
            terminal.answer(page, ids=[task.id for task in page.tasks], table=lambda: _each(page))
        else:
            groups = await server.get("/v1/dead-letters", list[DeadGroup], group=1, limit=limit)
            terminal.answer(groups, ids=[one.fingerprint for one in groups], table=lambda: _groups(groups))

    talk(terminal, look)


@command(app, "show", examples=["headway dead show 1234567890123456789"])
def show(terminal: Terminal, task_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show a dead letter whole: its attempts, its error, its input."""
    from headway.cli.tasks import show as show_task

    show_task(terminal, task_id)


@command(
    app,
    "retry",
    examples=[
        "headway dead retry 1234567890123456789",
        "headway dead retry --fingerprint 5f3a9c",
        "headway dead retry --name report --set execution_cap=1h",
        "headway dead retry --all",
    ],
)
def retry(
    terminal: Terminal,
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    name: Name = None,
    every: All = False,
    set_: Sets = None,
    edit: Edit = None,
) -> int:
    """Send dead letters again, in bulk, as they were or after an edit."""
    from headway.cli.options import edits

    body = _which(ids, fingerprint, name, every)
    if changes := edits(set_, edit):
        body["edit"] = changes
    return _change(terminal, "retry", body, "sent again")


@command(app, "purge", examples=["headway dead purge 1234567890123456789", "headway dead purge --name report --yes"])
def purge(
    terminal: Terminal,
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    name: Name = None,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Give dead letters up for good."""
    body = _which(ids, fingerprint, name, every)
    if not yes and "ids" not in body:
        if not sys.stdin.isatty():
            raise typer.BadParameter("a purge in bulk asks first, and nobody is there to answer: add --yes", param_hint="--yes")
        typer.confirm("Purge all of them?", abort=True)
    return _change(terminal, "purge", body, "purged")


def _which(ids: list[str] | None, fingerprint: str | None, name: str | None, every: bool) -> dict[str, Any]:
    chosen: dict[str, Any] = {"ids": ids or None, "fingerprint": fingerprint, "name": name, "all": every or None}
    chosen = {key: value for key, value in chosen.items() if value is not None}
    if len(chosen) != 1:
        raise typer.BadParameter("say which: IDs, --fingerprint, --name or --all (one of them)", param_hint="[ID...]")
    return chosen


def _change(terminal: Terminal, verb: str, body: dict[str, Any], done: str) -> int:
    """Those that were named and are not there are told; a filter that finds none is no mistake."""
    from headway.cli.session import talk
    from headway.wire.views.answers import Changed

    async def ask(server: Server) -> int:
        changed = await server.post(f"/v1/dead-letters/{verb}", Changed, body)
        terminal.answer(changed, ids=changed.ids, table=lambda: f"{changed.changed} {done}")
        missing = sorted(set(body.get("ids", [])) - set(changed.ids))
        if changed.changed < len(set(body.get("ids", []))):
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            print(f"headway: no dead letter: {' '.join(missing[:5])}{more}", file=sys.stderr)
            return 1
        return 0

    return talk(terminal, ask)


def _groups(groups: list[DeadGroup]) -> str:
    from headway.cli.moments import ago

    if not groups:
        return "no dead letters"
    rows = [
        (one.fingerprint, one.count, one.name, ago(one.last_at), one.example, f"{one.type}: {_first_line(one.message)}")
        for one in groups
    ]
    return table(("FINGERPRINT", "COUNT", "NAME", "LAST", "EXAMPLE", "ERROR"), rows, right=("COUNT", "LAST"), wide="ERROR")


def _each(page: Page) -> str:
    from headway.cli.moments import ago

    if not page.tasks:
        return "no dead letters"
    rows = [
        (
            task.id,
            task.name,
            ago(task.ended_at),
            f"{task.error.type}: {_first_line(task.error.message)}" if task.error else "",
        )
        for task in page.tasks
    ]
    text = table(("ID", "NAME", "DIED", "ERROR"), rows, right=("DIED",), wide="ERROR")
    return text + (f"\nmore: --cursor {page.next}" if page.next else "")


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0][:100]
