"""`explain`: why a task does not run and when it will; `change`: make a waiting task another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.terminal import Terminal, command, fields, group, paint

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.views.explanations import Explanation

app = group("Why, and when.")

Sets = Annotated[list[str] | None, typer.Option("--set", help="A field and its new value.", metavar="FIELD=VALUE")]
Edit = Annotated[str | None, typer.Option("--edit", help="Change several: a JSON object, or @FILE.", metavar="JSON")]


@command(app, "explain", examples=["headway explain 1234567890123456789", "headway explain 1234567890123456789 --json"])
def explain(terminal: Terminal, task: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Say why a task does not run, and when it will.

    Of an ended one, where its time went.
    """
    from headway.cli.session import talk, task_path
    from headway.wire.views.explanations import Explanation

    async def look(server: Server) -> None:
        found = await server.get(task_path(task, "explain"), Explanation)
        terminal.answer(found, ids=[found.id], table=lambda: _explained(found))

    talk(terminal, look)


@command(
    app,
    "change",
    examples=[
        "headway change 1234567890123456789 --set delay_tolerance=0",
        "headway change 1234567890123456789 --set queue=nights --set resources=premium",
    ],
)
def change(terminal: Terminal, task: Annotated[str, typer.Argument(metavar="ID")], set_: Sets = None, edit: Edit = None) -> None:
    """Change a waiting task in place."""
    import msgspec

    from headway.cli.options import edits
    from headway.cli.session import talk, task_path
    from headway.wire.views.tasks import TaskView

    changes = edits(set_, edit)

    async def ask(server: Server) -> None:
        found = await server.send("PATCH", task_path(task), TaskView, msgspec.json.encode(changes))
        terminal.answer(found, ids=[found.id], table=lambda: f"{found.id} is {paint(found.state)}, start by {found.start_by:%F %T}")

    talk(terminal, ask)


def _explained(found: Explanation) -> str:
    from headway.cli.moments import when

    lines = [fields([("task", found.id), ("state", paint(found.state)), ("why", found.summary)])]
    for reason in found.reasons[1:]:
        lines.append(f"also: {reason.text}")
    for reason in found.reasons:
        if reason.until is not None:
            lines.append(f"until: {when(reason.until)}")
        if reason.remedy:
            lines.append(f"would help: {reason.remedy}")
    if (order := found.order) is not None:
        lines.append(
            fields(
                [
                    ("due", "yes" if order.due else "no"),
                    ("tenant's share", f"{order.share:.4f} of {order.level:.4f} it is entitled to"),
                    ("tenants before", order.tenants_before),
                    ("start by", when(order.start_by)),
                    ("own tasks before", order.ahead),
                    ("execution cap", f"{order.execution_cap_s:g} s"),
                ]
            )
        )
    if (start := found.estimate) is not None:
        lines.append(f"starts about {when(start.at)}, nine times in ten between {when(start.low)} and {when(start.high)}")
    if found.earlier:
        lines.append(f"before: {found.earlier}")
    if found.checkpoint_at is not None:
        lines.append(f"goes on from: its checkpoint of {when(found.checkpoint_at)}")
    if (limit := found.limit) is not None:
        end = "it expires" if limit.then == "expire" else "its limit is over, and it waits on"
        lines.append(f"limit: {when(limit.at)} {end}, if it has not started")
    if found.spent:
        lines.append("spent: " + ", ".join(f"{seconds:.3f} s {word}" for word, seconds in found.spent.items()))
    return "\n".join(lines)
