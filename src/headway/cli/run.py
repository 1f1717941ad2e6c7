"""`run FILE|-- CMD`: submit, follow to the end, return the work's exit code.

What the work says goes to stdout, what Headway says goes to stderr, so that `headway run -- CMD | ...` is as good as
`CMD | ...`. Without a server it starts an embedded Headway in the data folder and stops it afterwards; a second `run`
on the same folder joins the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, group

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.cli.work import Work
    from headway.client.discovery import Place
    from headway.config import Settings
    from headway.wire.views import Accepted, AcceptedMany

app = group("Run work.")

File = Annotated[
    str | None,
    typer.Argument(metavar="[FILE | -- CMD...]", help="Task file (YAML, JSON), NDJSON of tasks, or - for stdin."),
]
Params = Annotated[list[str] | None, typer.Option("--param", help="Value of a file's parameter.", metavar="K=V")]
Inputs = Annotated[str | None, typer.Option("--inputs", help="One task for each line of JSON in this file.", metavar="FILE.ndjson")]
Logs = Annotated[bool, typer.Option("--logs/--no-logs", help="Show what the tasks of a tree write.")]
INTERRUPTED = 130


@command(
    app,
    "run",
    task_options=True,
    examples=[
        "headway run -- echo hello",
        "headway run nightly.yaml --param day=2026-11-15",
        "headway run --attempts 3 --execution-cap 10m -- ./report.sh",
        "headway run --function pages:render --input '{\"page\": 7}' | jq .title",
    ],
)
def run(
    terminal: Terminal,
    spec: dict[str, Any],
    file: File = None,
    param: Params = None,
    inputs: Inputs = None,
    logs: Logs = True,
) -> int:
    """Run work and follow it; returns its exit code. Ctrl-C cancels the work, a second one leaves it."""
    from headway.cli.submit import note
    from headway.cli.work import read

    work = read(file, terminal.rest, spec, params=param, inputs=inputs)
    note(work)
    return asyncio.run(_run(terminal, work, logs=logs))


async def _run(terminal: Terminal, work: Work, *, logs: bool) -> int:
    from headway.cli.session import Server
    from headway.cli.submit import send

    settings = terminal.settings()
    async with _some_server(settings) as place:
        server = Server(place, tls_ca=settings.tls_ca)
        try:
            answers = await send(server, work)
            return await _follow_all(terminal, server, work, answers, logs=logs)
        finally:
            await server.close()


@contextlib.asynccontextmanager
async def _some_server(settings: Settings) -> AsyncIterator[Place]:
    """The server that is configured; else the one of the data folder, started for as long as anybody uses it."""
    from headway.client.discovery import Place, find, running_up
    from headway.embedded.shared import embedded

    configured = "url" in settings.sources or (settings.token is not None and running_up(settings.data_dir) is None)
    place = find(settings)
    if configured and place is not None:
        yield place
        return
    async with embedded(settings) as url:
        yield find(settings, url=url) or Place(url, settings.token)


async def _follow_all(terminal: Terminal, server: Server, work: Work, answers: list[Accepted | AcceptedMany], *, logs: bool) -> int:
    from headway.cli.follow import Following, follow_many, follow_task, follow_trees
    from headway.wire.views import Accepted

    first = answers[0]
    ids = [one for answer in answers for one in ([answer.id] if isinstance(answer, Accepted) else answer.ids)]
    trees = [answer.tree for answer in answers if not isinstance(answer, Accepted) and answer.tree]
    if terminal.quiet:
        print("\n".join(ids), flush=True)
    following = Following(terminal, server, logs=logs, keep_board=bool(trees))
    if isinstance(first, Accepted):
        follow = follow_task(following, first.id)
    elif work.trees:
        follow = follow_trees(following, trees)
    else:
        follow = follow_many(following, ids)
    paths = [f"/v1/trees/{tree}/cancel" for tree in trees] or [f"/v1/tasks/{one}/cancel" for one in ids]
    return await _interruptible(follow, lambda: _cancel(server, paths))


async def _cancel(server: Server, paths: list[str]) -> None:
    """Ask for the end of everything; what has ended meanwhile may refuse."""
    from headway.errors import Conflict

    for path in paths:
        with contextlib.suppress(Conflict):
            await server.post(path, object)


async def _interruptible(follow: Coroutine[Any, Any, int], cancel: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Follow to the end; the first Ctrl-C (or SIGTERM) cancels the work and goes on following, the second leaves."""
    loop = asyncio.get_running_loop()
    following = loop.create_task(follow)
    cancelling: list[asyncio.Task[None]] = []

    def interrupt() -> None:
        if cancelling:
            following.cancel()
            return
        print("\nheadway: cancelling; Ctrl-C again leaves at once", file=sys.stderr)
        cancelling.append(loop.create_task(cancel()))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        code = await following
        await asyncio.gather(*cancelling)
    except asyncio.CancelledError:
        return INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return INTERRUPTED if cancelling and code else code
