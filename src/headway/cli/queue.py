"""`queue`: what waits in each queue, and when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headway.cli.terminal import Terminal, command, group, table

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.views.fleet import QueueView

queue = group(
    "Queues: what waits, and when it runs.",
    examples=["headway queue ls", "headway queue pause reports", "headway queue create nights --hours 'mon-fri 22:00-06:00'"],
)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
Runs = Annotated[str | None, typer.Option("--runs", help="always, off-peak or peak.")]
HoursOption = Annotated[
    list[str] | None,
    typer.Option("--hours", help="When it runs, for example 'mon-fri 22:00-06:00'; repeat for more; '' for all day.", metavar="SPAN"),
]
Timezone = Annotated[str | None, typer.Option("--timezone", help="Of the hours, for example Europe/Berlin.", metavar="NAME")]


@command(queue, "ls", examples=["headway queue ls", "headway queue ls --json"])
def queue_ls(terminal: Terminal) -> None:
    """List queues: what waits and what runs in each."""
    from headway.cli.session import talk
    from headway.wire.views.fleet import QueueView

    async def look(server: Server) -> None:
        queues = await server.get("/v1/queues", list[QueueView])
        terminal.answer(queues, ids=[one.name for one in queues], table=lambda: queues_table(queues))

    talk(terminal, look)


@command(queue, "create", examples=["headway queue create nights --hours 'mon-fri 22:00-06:00' --timezone Europe/Berlin"])
def queue_create(
    terminal: Terminal, name: QueueName, runs: Runs = None, hours: HoursOption = None, timezone: Timezone = None
) -> None:
    """Add a queue that tasks may name with `queue:`."""
    _send(terminal, "POST", "/v1/queues", {"name": name, **_rules(runs, hours, timezone)})


@command(queue, "set", examples=["headway queue set nights --hours '22:00-05:00'", "headway queue set reports --runs off-peak"])
def queue_set(terminal: Terminal, name: QueueName, runs: Runs = None, hours: HoursOption = None, timezone: Timezone = None) -> None:
    """Change when a queue runs."""
    _send(terminal, "PATCH", _path(name), _rules(runs, hours, timezone))


@command(queue, "pause", examples=["headway queue pause reports"])
def queue_pause(terminal: Terminal, name: QueueName) -> None:
    """Hand out nothing of a queue; what runs goes on."""
    _send(terminal, "POST", f"{_path(name)}/pause", None)


@command(queue, "resume", examples=["headway queue resume reports"])
def queue_resume(terminal: Terminal, name: QueueName) -> None:
    """Hand out a paused queue's tasks again."""
    _send(terminal, "POST", f"{_path(name)}/resume", None)


@command(queue, "delete", examples=["headway queue delete nights"])
def queue_delete(terminal: Terminal, name: QueueName) -> None:
    """Remove a queue that no task has named."""
    from headway.cli.session import talk
    from headway.wire.views.answers import Changed

    async def ask(server: Server) -> None:
        await server.send("DELETE", _path(name), Changed, b"")
        terminal.answer({"name": name}, ids=[name], table=lambda: f"{name} is gone")

    talk(terminal, ask)


def queues_table(queues: list[QueueView]) -> str:
    from headway.domain.units import duration_text

    rows = [
        (
            one.name,
            one.state,
            one.ready,
            one.due,
            one.scheduled,
            one.blocked,
            one.running,
            "" if one.oldest_ready_s is None else duration_text(one.oldest_ready_s),
            "" if one.missed is None else one.missed,
        )
        for one in queues
    ]
    header = ("QUEUE", "STATE", "READY", "DUE", "SCHEDULED", "BLOCKED", "RUNNING", "OLDEST", "MISSED")
    return table(header, rows, right=header[2:])


def _rules(runs: str | None, hours: list[str] | None, timezone: str | None) -> dict[str, Any]:
    asked = {"runs": runs, "hours": hours, "timezone": timezone}
    return {name: value for name, value in asked.items() if value is not None}


def _send(terminal: Terminal, method: str, path: str, body: dict[str, Any] | None) -> None:
    import msgspec

    from headway.cli.session import talk
    from headway.wire.views.fleet import QueueView

    async def ask(server: Server) -> None:
        view = await server.send(method, path, QueueView, msgspec.json.encode(body or {}))
        terminal.answer(view, ids=[view.name], table=lambda: _one(view))

    talk(terminal, ask)


def _one(view: QueueView) -> str:
    hours = f"{' and '.join(view.hours)} ({view.timezone})" if view.hours else ""
    rule = view.runs if view.runs != "always" or not hours else ""
    when = "runs " + ", ".join(part for part in (rule, hours) if part)
    return f"{view.name} is {view.state}{f' ({view.reason})' if view.reason else ''}: {when}"


def _path(name: str) -> str:
    return f"/v1/queues/{quote(name, safe='')}"
