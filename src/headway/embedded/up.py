"""`headway up`: database, server and agent on one machine, as one thing that starts and ends together.

The server runs in this process; PostgreSQL and the agent are children. Either that dies is started again (I4). The end
goes in order: the agent gives its work back while the server still listens, then the server, then the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headway.config import Settings
from headway.embedded import orphans
from headway.embedded.agent_process import AgentProcess
from headway.embedded.folder import FolderLock, Users, keep_token, make_folder, write_private
from headway.embedded.postgres import Postgres
from headway.ending import asking_signals
from headway.errors import ConfigError, HeadwayError, Unavailable
from headway.logs import log

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # between a death and the restart; doubles with each in a row
STEADY_S = 30.0  # what lived so long did not fail to start: the pauses begin anew
UNUSED_CHECK_S = 2.0
SOCKET_CHECK_S = 10.0


def up(settings: Settings, *, ready: Callable[[str], None] | None = None, while_used: bool = False) -> int:
    """Run everything until SIGTERM or SIGINT, or, with `while_used`, until nobody uses it any more. Returns 0."""
    import uvloop

    uvloop.run(Up(settings, ready=ready, while_used=while_used).run())
    return 0


class Up:
    """One run of everything."""

    def __init__(self, settings: Settings, *, ready: Callable[[str], None] | None, while_used: bool) -> None:
        self.settings = settings
        self.folder = Path(settings.data_dir)
        self.lock = FolderLock(self.folder)
        self.users = Users(self.folder)
        self.postgres: Postgres | None = None
        self.agent: AgentProcess | None = None
        self._tell = ready
        self._while_used = while_used
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        make_folder(self.folder)
        self.lock.acquire()
        orphans.take_in()
        async with contextlib.AsyncExitStack() as ends:  # what was begun last ends first
            ends.callback(self.lock.release)
            check_port(self.settings)
            keep_token(self.folder / "token", "admin")
            agent_token = keep_token(self.folder / "agent-token", "agent")
            settings = await self._with_database(ends)
            server, listens = await self._start_server(settings, ends)
            url = here(listens)
            self.agent = AgentProcess(self.settings, url=url, token=agent_token)
            ends.push_async_callback(self._end_agent)
            self.agent.start()
            note = self.folder / "up.json"
            ends.callback(note.unlink, missing_ok=True)
            body = {"url": url, "pid": os.getpid(), "while_used": self._while_used}
            write_private(note, msgspec.json.encode(body).decode())
            (self._tell or self._print)(url)
            await self._watch(server)

    async def _with_database(self, ends: contextlib.AsyncExitStack) -> Settings:
        if self.settings.database is not None:
            return self.settings
        self.postgres = Postgres(self.folder, lock=self.lock)
        ends.callback(self.postgres.stop)
        starting = asyncio.create_task(asyncio.to_thread(self.postgres.start))
        await asyncio.sleep(0)  # let it begin
        import headway.api.serve  # noqa: F401  0.7 s of imports, while the database starts on another core

        # The key lies beside the only database it is for, and goes wherever that goes.
        key = self.settings.secrets_key or str(self.folder / "secrets.key")
        return msgspec.structs.replace(self.settings, database=await starting, secrets_key=key)

    async def _start_server(self, settings: Settings, ends: contextlib.AsyncExitStack) -> tuple[asyncio.Task[None], str]:
        listening, found = asyncio.Event(), list[str]()

        def heard(url: str) -> None:
            found.append(url)
            listening.set()

        server = asyncio.create_task(serve_until_cancelled(settings, heard))
        ends.push_async_callback(_end_server, server)
        await first_of(server, asyncio.create_task(listening.wait()))
        if not found:
            await server  # raises what was wrong
            raise Unavailable("the server ended before it listened")
        self._take_signals()  # after the server, which has handlers of its own: ours know the order of the end
        return server, found[0]

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in asking_signals():
            loop.add_signal_handler(number, self._asked_to_stop)

    def _asked_to_stop(self) -> None:
        if self._stopping.is_set() and self.agent is not None:
            self.agent.hurry()  # asked twice: tasks are not waited for
        self._stopping.set()

    async def _watch(self, server: asyncio.Task[None]) -> None:
        """Keep everything running until it is time to stop; a server that ends by itself ends all."""
        assert self.agent is not None
        watches: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._stopping.wait()),
            asyncio.create_task(self._keep("agent", self.agent)),
        ]
        if self.postgres is not None:
            watches.append(asyncio.create_task(self._keep("database", self.postgres)))
            watches.append(asyncio.create_task(self._watch_socket(self.postgres)))
        if self._while_used:
            watches.append(asyncio.create_task(self._await_unused()))
        try:
            for task in await first_of(server, *watches):
                task.result()
        finally:
            self._stopping.set()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _keep(self, name: str, part: AgentProcess | Postgres) -> None:
        """Start the part again whenever it ends, after pauses that grow when it does not last."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_S
        while True:
            begin = loop.time()
            await asyncio.to_thread(part.wait)
            if self._stopping.is_set():
                return
            if loop.time() - begin > STEADY_S:
                pause = FIRST_PAUSE_S
            log("restarting", level="warning", part=name, pause_s=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
            try:
                await asyncio.to_thread(part.start)
            except HeadwayError as error:
                log("restart_failed", level="error", part=name, error=str(error))
            orphans.reap([other.child for other in (self.agent, self.postgres) if other is not None])

    async def _watch_socket(self, postgres: Postgres) -> None:
        """A database whose socket was removed is ended; `_keep` starts it again, with another."""
        while True:
            await asyncio.sleep(SOCKET_CHECK_S)
            if postgres.end_if_unreachable():
                log("database.unreachable", level="error", reason="its socket or its folder was removed: it is started again")

    async def _await_unused(self) -> None:
        while not self.users.nobody():
            await asyncio.sleep(UNUSED_CHECK_S)
        log("unused")

    async def _end_agent(self) -> None:
        assert self.agent is not None
        await asyncio.to_thread(self.agent.stop)

    def _print(self, url: str) -> None:
        print(welcome(self.settings, url), flush=True)


async def serve_until_cancelled(settings: Settings, ready: Callable[[str], None]) -> None:
    """The server: brings the database up to date, then listens."""
    from headway.api.serve import serve

    await serve(settings, ready=ready)


async def first_of(*tasks: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
    """Wait until one of them is done."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _end_server(server: asyncio.Task[None]) -> None:
    server.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await server


def check_port(settings: Settings) -> None:
    """Say early, and by its name, that the port is taken: before a database was started for nothing."""
    if settings.port == 0:
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {settings.port} on {settings.host} is taken by another program",
                    hint="choose another with --port or HEADWAY_PORT; 0 takes a free one",
                    where=settings.sources.get("port", "--port"),
                ) from None
            raise ConfigError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
                hint="choose another address with --host",
                where=settings.sources.get("host", "--host"),
            ) from error


def here(url: str) -> str:
    """The address of a server that listens on all of them, as this machine calls it; certificates name it, but not 0.0.0.0."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:", 1).replace("//[::]:", "//[::1]:", 1)


def welcome(settings: Settings, url: str) -> str:
    """What a person needs to know once it runs."""
    folder = Path(settings.data_dir)
    database = "your PostgreSQL" if settings.database else f"embedded, in {folder / 'postgres'}"
    return "\n".join(
        [
            f"Headway is up: {url}",
            f"  token     {folder / 'token'} (commands on this machine find it by themselves)",
            f"  database  {database}",
            "Try, in another terminal:",
            "  headway run -- echo hello",
            "  headway top",
            "Ctrl-C ends it.",
        ]
    )
