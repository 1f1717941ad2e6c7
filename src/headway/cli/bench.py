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
    seconds: Annotated[float | None, typer.Option("--seconds", help="Length of the sustained run.", min=1.0)] = None,
    database: Annotated[str | None, typer.Option("--database", help="Database of the server at --url.", metavar="URL")] = None,
    pid: Annotated[list[int] | None, typer.Option("--pid", help="Its processes, for CPU and memory; repeat.")] = None,
) -> int:
    """Measure throughput and latency on this machine."""
    from headway.bench.main import run

    words = [f"--{flag}" for flag, on in (("quick", quick), ("sustained", sustained), ("json", terminal.wants_json)) if on]
    given = [("--url", terminal.flags.get("url")), ("--database", database), ("--seconds", seconds)]
    given += [("--only", scenario) for scenario in only or ()] + [("--pid", one) for one in pid or ()]
    for flag, value in given:
        words += [flag, str(value)] if value is not None else []
    if terminal.flags.get("url"):
        words += _token(terminal)
    return run(words)


def _token(terminal: Terminal) -> list[str]:
    from headway.client.discovery import find

    place = find(terminal.settings())
    return ["--token", place.token] if place is not None and place.token else []
