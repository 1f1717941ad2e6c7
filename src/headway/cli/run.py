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

from headway.cli import options
from headway.cli.terminal import Terminal, command, group

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.cli.work import Work
    from headway.client.discovery import Place
    from headway.config import Settings

app = group("Run work.")

Logs = Annotated[bool, typer.Option("--logs/--no-logs", help="Show what the tasks of a tree write.")]
INTERRUPTED = 130

Known = Callable[[list[str], Callable[[str], None]], None]


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
    file: options.Work = None,
    param: options.Params = None,
    inputs: options.Inputs = None,
    logs: Logs = True,
) -> int:
    """Run work and follow it; returns its exit code. Ctrl-C cancels the work, a second one leaves it."""
    from headway.cli.submit import note
    from headway.cli.work import read

    work = read(file, terminal.rest, spec, params=param, inputs=inputs, once=True)
    note(work)
    return asyncio.run(_run(terminal, work, logs=logs))


async def _run(terminal: Terminal, work: Work, *, logs: bool) -> int:
    from headway.cli.session import Server

    settings = terminal.settings()
    async with _some_server(settings) as place:
        server = Server(place, tls_ca=settings.tls_ca)
        try:
            return await Interruptible(server).run(lambda known: _submit_and_follow(terminal, server, work, known, logs=logs))
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


async def _submit_and_follow(terminal: Terminal, server: Server, work: Work, known: Known, *, logs: bool) -> int:
    """`known` is told how to cancel the work, and where to speak, as soon as there is something to cancel."""
    from headway.cli.follow import Following, follow_many, follow_task, follow_trees
    from headway.cli.session import task_path, tree_path
    from headway.cli.submit import ids_of, send
    from headway.wire.views.tasks import Accepted

    answers = await send(server, work)
    ids = [one for answer in answers for one in ids_of(answer)]
    trees = [answer.tree for answer in answers if not isinstance(answer, Accepted) and answer.tree]
    following = Following(terminal, server, logs=logs, keep_board=bool(trees))
    paths = [tree_path(one, "cancel") for one in trees] or [task_path(one, "cancel") for one in ids]
    known(paths, lambda text: following.board.print(text, on_stdout=False))
    if terminal.quiet:
        print("\n".join(ids), flush=True)
    if trees:
        return await follow_trees(following, trees)
    if isinstance(answers[0], Accepted):
        return await follow_task(following, answers[0].id)
    return await follow_many(following, ids)


class Interruptible:
    """The first Ctrl-C (or SIGTERM) cancels the work and goes on following it, the second leaves.

    A Ctrl-C before the server has answered waits for the answer: the work may be there already, and would run on.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._asked = False
        self._paths: list[str] = []
        self._say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
        self._running: asyncio.Task[int] | None = None
        self._cancelling: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[Known], Coroutine[Any, Any, int]]) -> int:
        loop = asyncio.get_running_loop()
        self._running = loop.create_task(work(self._know))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        try:
            code = await self._running
            if self._cancelling is not None:
                await self._cancelling
        except asyncio.CancelledError:
            return INTERRUPTED
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return INTERRUPTED if self._asked and code else code

    def _know(self, paths: list[str], say: Callable[[str], None]) -> None:
        self._paths, self._say = paths, say
        if self._asked:
            self._begin_cancelling()

    def _interrupt(self) -> None:
        if self._asked and self._running is not None:
            self._running.cancel()
            return
        self._asked = True
        self._say("headway: cancelling; Ctrl-C again leaves at once")
        if self._paths:
            self._begin_cancelling()

    def _begin_cancelling(self) -> None:
        self._cancelling = asyncio.get_running_loop().create_task(self._cancel())

    async def _cancel(self) -> None:
        from headway.errors import Conflict

        for path in self._paths:
            with contextlib.suppress(Conflict):  # it has ended meanwhile
                await self._server.post(path, object)
