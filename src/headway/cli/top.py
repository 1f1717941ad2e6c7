"""`top`: a live view of rates, states, queues, nodes and running tasks."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.fleet import nodes_table, of_a_tenant
from headway.cli.progress import bar, progress_text
from headway.cli.queue import queues_table
from headway.cli.terminal import Terminal, command, group, paint, table

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.views.fleet import NodeView, Stats
    from headway.wire.views.tasks import Page

app = group("Watch Headway.")

LINES_BESIDES = 14  # of a frame that are neither nodes nor running tasks


@dataclass
class Frame:
    """What one look shows."""

    stats: Stats
    nodes: list[NodeView]
    running: Page


@command(app, "top", examples=["headway top", "headway top --interval 5", "headway top --once"])
def top(
    terminal: Terminal,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    interval: Annotated[float, typer.Option("--interval", "-i", help="Seconds between looks.", min=0.2)] = 1.0,
) -> None:
    """Watch rates, queues, nodes and running tasks live."""
    from headway.cli.session import talk

    async def look(server: Server) -> None:
        if once or not sys.stdout.isatty() or not terminal.for_people:
            frame = await _look(server)
            terminal.answer(frame, ids=[task.id for task in frame.running.tasks], table=lambda: draw(frame, lines=40))
            return
        await _live(server, interval)

    talk(terminal, look)


async def _live(server: Server, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            frame = await _look(server)
            text = draw(frame, lines=max(console.height - LINES_BESIDES - len(frame.nodes), 3))
            live.update(Text.from_ansi(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            await asyncio.sleep(interval)


async def _look(server: Server) -> Frame:
    from headway.wire.views.fleet import NodeView, Stats
    from headway.wire.views.tasks import Page

    stats, nodes, running = await asyncio.gather(
        server.get("/v1/stats", Stats),
        server.get("/v1/nodes", list[NodeView]),
        server.get("/v1/tasks", Page, state="running", limit=100),
    )
    return Frame(stats, nodes, running)


def draw(frame: Frame, *, lines: int) -> str:
    """One frame, with at most so many running tasks."""
    stats = frame.stats
    states = "  ".join(f"{paint(state)} {count:,}" for state, count in stats.states.items() if count) or "none"
    parts = [
        f"headway {stats.version}{'' if of_a_tenant(stats) else _fleet(stats)}\ntasks  {states}",
        queues_table(stats.queues),
        nodes_table(frame.nodes, hidden=of_a_tenant(stats)),
        _running(frame.running, lines),
    ]
    if stats.trouble:
        parts.insert(0, paint("fail", stats.trouble))
    return "\n\n".join(parts)


def _fleet(stats: Stats) -> str:
    """The rest of the first line, and the second: what tenants are not told."""
    taken = stats.total_cpus - stats.free_cpus
    return (
        f"   {stats.servers} server{'' if stats.servers == 1 else 's'}   "
        f"submitted {stats.submitted_per_s:,.0f}/s   finished {stats.finished_per_s:,.0f}/s\n"
        f"cpus   {bar(taken, stats.total_cpus)} {taken:g} of {stats.total_cpus:g}"
    )


def _running(page: Page, lines: int) -> str:
    from headway.cli.moments import took

    if not page.tasks:
        return "nothing runs"
    rows = [
        (task.id, task.name, took(task.started_at, None), task.node, progress_text(task.progress)) for task in page.tasks[:lines]
    ]
    text = table(("ID", "RUNNING", "FOR", "NODE", "PROGRESS"), rows, right=("FOR",), wide="RUNNING")
    more = len(page.tasks) - lines
    return f"{text}\n… and {more}{'+' if page.next else ''} more" if more > 0 else text
