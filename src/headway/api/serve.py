"""`headway server`: the API and the duties in one process, until SIGTERM."""

from __future__ import annotations

import asyncio
import datetime
import gc
import secrets
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import uvicorn

from headway.api.app import create_app
from headway.api.front import Front
from headway.api.http_logs import tell_in_our_lines
from headway.config import Settings
from headway.control.core import Core
from headway.ending import asking_signals
from headway.errors import ConfigError
from headway.logs import configure, log
from headway.store.fitness import doubts
from headway.store.migrate import migrate

GRACE_S = 5  # open requests may finish for so long
BACKLOG = 2048
SOON_DAYS = 14


async def serve(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Run until SIGTERM or SIGINT, or until cancelled."""
    if settings.database is None:
        raise ConfigError("no database is set", hint="give --database URL, or use `headway up`, which brings its own")
    configure(log_format=settings.log_format, log_level=settings.log_level)
    tell_in_our_lines()
    _check_certificate(settings)
    await migrate(settings.database)
    gc.set_threshold(
        50_000, 20, 50
    )  # bulks make and drop objects by the hundred thousand: the default spends 5-10 % on looking at them
    core = Core(settings, settings.database, holder=f"{socket.gethostname()}-{secrets.token_hex(4)}")
    sock = _listen(settings)
    core.url = url_of(settings, sock.getsockname()[1])
    await core.start()
    await _accept_tokens(core, settings)
    await _tell_doubts(core)
    server = _Server(_uvicorn(core, settings), core)
    loop = asyncio.get_running_loop()
    for number in asking_signals():
        loop.add_signal_handler(number, server.end)
    if ready is not None:
        ready(core.url)
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:  # `up` ends us like this, after its agent
        server.end()
        await serving
        raise
    finally:
        await core.stop()


def url_of(settings: Settings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def _uvicorn(core: Core, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(core),
        http=Front,
        loop="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=75,
        backlog=BACKLOG,
        server_header=False,
        proxy_headers=False,
        date_header=False,
    )


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: ours also serve `up`, which ends the agent first."""

    def __init__(self, config: uvicorn.Config, core: Core) -> None:
        super().__init__(config)
        self.core = core
        self._ended = asyncio.Event()

    def end(self) -> None:
        self.core.begin_stop()
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn's own loop wakes ten times a second to keep a date header we do not send."""
        await self._ended.wait()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((settings.host, settings.port))
        sock.listen(BACKLOG)  # now: whoever is told the address may connect at once, and waits until we serve
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="choose another with --port (0 takes a free one)",
        ) from None
    return sock


def _check_certificate(settings: Settings) -> None:
    """Before anything else is begun: what is wrong with it would show at the first connection, and name no file."""
    if settings.tls_cert is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # of TLS too
        raise ConfigError(
            f"the certificate {settings.tls_cert} with the key {settings.tls_key} cannot be used: {error.strerror or error}",
            hint="tls_cert and tls_key name PEM files that belong together",
        ) from None
    left = certificate_ends(Path(settings.tls_cert)) - datetime.datetime.now(datetime.UTC)
    if left.days < SOON_DAYS:  # nobody may be looking at it but us
        when = f"ends in {left.days} days" if left.days >= 0 else "has ended: nobody will trust this server"
        log("server.certificate", level="warning", file=settings.tls_cert, found=when, hint="make a new one and restart this server")


def certificate_ends(file: Path) -> datetime.datetime:
    from cryptography.x509 import load_pem_x509_certificate  # only who speaks TLS pays for loading it

    return load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc


async def _tell_doubts(core: Core) -> None:
    """It works on this database, but its DBA and ours should speak."""
    async with core.database.cold() as connection:
        for doubt in await doubts(connection, core.settings.pool_size + 1):
            log("database.doubtful", level="warning", what=doubt.name, found=doubt.found, hint=doubt.todo)


async def _accept_tokens(core: Core, settings: Settings) -> None:
    """The tokens of the data folder, and the one in the settings, work here."""
    for file, role in (("token", "admin"), ("agent-token", "agent")):
        path = Path(settings.data_dir) / file
        if path.is_file():
            await core.access.add(path.read_text().strip(), role, name=f"{file} file")
    if settings.token:
        await core.access.add(settings.token, "admin", name="settings")
    if not await core.access.has_admin():
        log(
            "server.no_admin_token",
            level="error",
            reason="there is no admin token in this database: nobody can submit a task, and no agent can join",
            hint=f"start again with HEADWAY_TOKEN set to a long secret, or with one in the file {Path(settings.data_dir) / 'token'}; "
            "make the others with it: headway key create",
        )
