"""`logs`: what a task wrote, whole or as it comes.

The server sends pieces as they were read from the task's pipes: a piece may hold several lines, or end inside one.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, group

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.views.tasks import LogLine

app = group("See what tasks write.")


@command(
    app,
    "logs",
    examples=[
        "headway logs 1234567890123456789",
        "headway logs -f 1234567890123456789",
        "headway logs --attempt 2 --stream stderr 1234567890123456789",
    ],
)
def logs(
    terminal: Terminal,
    task_id: Annotated[str, typer.Argument(metavar="ID")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task ends.")] = False,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Only this attempt.", min=1)] = None,
    stream: Annotated[str | None, typer.Option("--stream", help="Only stdout or stderr.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Time, attempt and stream before each line.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they were written.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="What was cut too, if the operator keeps it.")] = False,
) -> None:
    """Print what a task wrote. Its stderr comes on stderr."""
    from headway.cli.session import talk, task_path

    query: dict[str, Any] = {"follow": 1 if follow else None, "attempt": attempt, "stream": stream}

    async def look(server: Server) -> None:
        path, behind, came = task_path(task_id, "logs"), position if follow else None, False
        if raw or whole:
            async for piece in server.pieces(path, raw=1, whole=1 if whole else None, **query):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            return
        if terminal.wants_json:
            async for line in server.lines(path, behind=behind, **query):
                came = True
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
        else:
            async for entry in written_lines(server.lines(path, behind=behind, **query)):
                came = True
                stamp = _stamp(entry) if timestamps else ""
                print(stamp + entry.text, file=sys.stderr if entry.stream == "stderr" else sys.stdout, flush=True)
        if follow and attempt is not None and not came:  # it may have ended without that attempt: the server says so now
            async for _ in server.lines(path, attempt=attempt, stream=stream):
                return

    talk(terminal, look)


async def written_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[LogLine]:
    """Whole lines, without their ends, from NDJSON of pieces; what was begun last comes at the end."""
    import msgspec

    from headway.wire.views.tasks import LogLine

    begun: dict[tuple[int, str], LogLine] = {}  # by attempt and stream: the two streams are not cut at the same places
    async for piece in pieces:
        entry = msgspec.json.decode(piece, type=LogLine)
        key = entry.attempt, entry.stream
        before = begun.pop(key, None)
        *whole, rest = ((before.text if before else "") + entry.text).split("\n")
        for text in whole:
            yield LogLine(entry.attempt, entry.stream, entry.at, text.removesuffix("\r"))
        if rest:
            begun[key] = LogLine(entry.attempt, entry.stream, entry.at, rest)
    for entry in begun.values():
        yield entry


def position(piece: bytes) -> str | None:
    """Where a piece stands in the output of its task, as `after` takes it."""
    import msgspec

    from headway.wire.views.tasks import LogLine

    return msgspec.json.decode(piece, type=LogLine).position


def _stamp(entry: LogLine) -> str:
    return f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3] + f" {entry.attempt} {entry.stream} "
