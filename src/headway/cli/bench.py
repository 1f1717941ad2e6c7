"""`bench`: the benchmark that comes with the package."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.cli.terminal import Terminal, command, group

app = group("Measure Headway.")


@command(
    app,
    "bench",
    examples=[
        "headway bench --quick",
        "headway bench --json > figures.json",
        "headway bench --only latency",
        "headway bench --url http://127.0.0.1:8470 --database postgresql://headway@db/app",
    ],
)
def bench(
    terminal: Terminal,
    quick: Annotated[bool, typer.Option("--quick", help="End within a minute; no million-task backlog.")] = False,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this scenario; repeat for more.")] = None,
    sustained: Annotated[bool, typer.Option("--sustained", help="Ten minutes: is the last as fast as the first?")] = False,
    database: Annotated[str | None, typer.Option("--database", help="Database of the server at --url.", metavar="URL")] = None,
) -> int:
    """Measure throughput and latency on this machine."""
    from headway.bench.main import run

    words = [
        *(["--quick"] if quick else []),
        *(["--sustained"] if sustained else []),
        *(["--json"] if terminal.wants_json else []),
    ]
    for scenario in only or ():
        words += ["--only", scenario]
    for flag, value in (("--url", terminal.flags.get("url")), ("--database", database)):
        words += [flag, value] if value else []
    return run(words)
