"""The Headway under test: a throw-away one in a temporary folder, or one that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import msgspec

from headway.bench import bodies
from headway.bench.ledger import Ledger
from headway.embedded.privileges import in_child
from headway.errors import Unavailable
from headway.store.connecting import connect
from headway.store.unreached import in_our_words
from headway.wire.http import Http

START_S = 60.0
TENANTS = 100


@dataclass
class Instance:
    """Where it is, what it is made of, and how to talk to it."""

    url: str
    token: str
    connection: asyncpg.Connection
    http: Http
    roots: list[int]  # processes whose trees are all of it; empty when unknown
    throw_away: bool
    spawned: float  # when (monotonic) its process was started, or ours reached it
    tenant_tokens: list[str] = field(default_factory=list)
    folder: Path = Path()  # of a throw-away one

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.connection)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request as the administrator; the decoded answer."""
        sent = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await self.http.request(method, path, body=sent)
        except ConnectionError as error:
            raise Unavailable(f"no server answers: {error}") from error
        if answer.status >= 300:
            raise Unavailable(f"{method} {path} was answered with {answer.status}: {answer.body[:300]!r}")
        return msgspec.json.decode(answer.body) if answer.body else None

    async def make_tenants(self) -> None:
        """A hundred tenants with a token each, so that fairness has something to do; trusted, so that runners serve all of them."""
        run = secrets.token_hex(3)
        for at in range(TENANTS):
            name = f"bench-{run}-{at}"
            await self.call("POST", "/v1/tenants", {"name": name, "isolation": "none"})
            made = await self.call("POST", "/v1/keys", {"tenant": name, "role": "tenant"})
            self.tenant_tokens.append(made["token"])

    async def first_task(self) -> float:
        """Wait for a node, run one task; the seconds since the start of it all."""
        deadline = time.monotonic() + START_S
        while not any(node["state"] == "up" for node in await self.call("GET", "/v1/nodes")):
            if time.monotonic() > deadline:
                raise Unavailable(f"no node was up after {START_S:.0f} s")
            await asyncio.sleep(0.02)
        made = await self.call("POST", "/v1/tasks", {"function": bodies.NOOP, "input": ["first"]})
        view = await self.call("GET", f"/v1/tasks/{made['id']}?wait=20")
        if view["state"] != "succeeded":
            raise Unavailable(f"the first task is {view['state']}: {view.get('error')}")
        return time.monotonic() - self.spawned

    async def hold(self) -> None:
        """Nodes take nothing new: what is submitted becomes backlog."""
        for node in await self.call("GET", "/v1/nodes"):
            await self.call("POST", f"/v1/nodes/{node['id']}/drain")

    async def release(self) -> None:
        for node in await self.call("GET", "/v1/nodes"):
            await self.call("POST", f"/v1/nodes/{node['id']}/undrain")


@contextlib.asynccontextmanager
async def running(url: str, token: str, dsn: str, pids: list[int]) -> AsyncIterator[Instance]:
    """One that runs already; its database is needed too, since only SQL counts."""
    async with _connected(url, token, dsn, roots=pids, throw_away=False, spawned=time.monotonic()) as instance:
        yield instance


@contextlib.asynccontextmanager
async def throw_away(*words: str, **settings: str) -> AsyncIterator[Instance]:
    """`headway up` on a new folder, as a user starts it, with more words and settings if wanted; everything is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="headway-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "data"
        command = [sys.executable, "-m", "headway.cli.main", "up", "--port", "0", "--data-dir", str(folder)]
        quiet = ["--log-level", "warning", "-o", "json"]
        spawned = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            *words,
            *quiet,
            stdout=asyncio.subprocess.PIPE,
            cwd=name,
            env={**environment(name), **settings},
            preexec_fn=in_child(None, signal.SIGTERM),  # a benchmark that is killed leaves nothing running
        )
        try:
            url = await _first_line(process)
            token = (folder / "token").read_text().strip()
            dsn = embedded_dsn(folder)
            roots = [process.pid]
            async with _connected(url, token, dsn, roots=roots, throw_away=True, spawned=spawned) as instance:
                instance.folder = folder
                yield instance
        finally:
            await end(process)


def embedded_dsn(folder: Path) -> str:
    """The database of an `up` on this folder: PostgreSQL writes down where its socket is."""
    lines = (folder / "postgres" / "postmaster.pid").read_text().splitlines()
    return f"postgresql://headway@/postgres?host={quote(lines[4].strip(), safe='/')}"


@contextlib.asynccontextmanager
async def _connected(
    url: str, token: str, dsn: str, *, roots: list[int], throw_away: bool, spawned: float
) -> AsyncIterator[Instance]:
    with in_our_words(dsn):
        connection = await connect(dsn, "headway bench")
    http = Http(url, token=token)
    try:
        yield Instance(url, token, connection, http, roots, throw_away, spawned)
    finally:
        await http.close()
        await connection.close()


def environment(folder: str) -> dict[str, str]:
    """Nothing of the caller's Headway: no database, server or settings file of theirs may come under load."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return {**ours, "XDG_CONFIG_HOME": folder}


async def _first_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), START_S)
    if not line:
        raise Unavailable("the throw-away Headway ended at its start", hint="its message is above")
    return str(msgspec.json.decode(line)["url"])


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 30)
        except TimeoutError:
            process.kill()
            await process.wait()
