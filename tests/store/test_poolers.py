"""PgBouncer before the database: in session mode Headway works, in the other modes it says so at its start (L4)."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from headway.embedded.privileges import identity, in_child
from headway.errors import ConfigError
from headway.store.migrate import migrate
from tests.store.test_cli_database import examined, headway
from tests.support.engine import ScriptedAgent, engine, function, listening, state_of, submit
from tests.support.packages import need
from tests.support.waiting import eventually, until

CONFIG = """
[databases]
{name} = host={host} user={user} dbname={name}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 20
logfile = {folder}/log
pidfile = {folder}/pid
"""


@contextmanager
def pooler(folder: Path, dsn: str, mode: str) -> Iterator[str]:
    """The address of a PgBouncer before this database."""
    program = need("pgbouncer")
    parts = urlsplit(dsn)
    host = parse_qs(parts.query).get("host", [parts.hostname])[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    who = identity(Path(str(host)))  # of the database: only its own user may use its socket
    folder.mkdir()
    folder.chmod(0o777)
    file = folder / "pgbouncer.ini"
    file.write_text(CONFIG.format(name=parts.path[1:], host=host, user=parts.username, port=port, mode=mode, folder=folder))
    running = subprocess.Popen([program, str(file)], preexec_fn=in_child(who, None), stderr=subprocess.DEVNULL)
    try:
        until(lambda: socket.create_connection(("127.0.0.1", port), 1), away=(OSError,), what="the pooler listens").close()
        yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def pooled(tmp_path_factory: pytest.TempPathFactory, empty_dsn: str) -> Iterator[Callable[[str], str]]:
    from contextlib import ExitStack

    with ExitStack() as ends:
        base = tmp_path_factory.mktemp("pooler")
        for folder in (base, *base.parents[:2]):
            folder.chmod(0o755)
        yield lambda mode: ends.enter_context(pooler(base / mode, empty_dsn, mode))


async def test_behind_a_pooler_in_session_mode_work_is_done_and_servers_hear_each_other(pooled: Callable[[str], str]) -> None:
    dsn = pooled("session")
    await migrate(dsn)
    async with engine(dsn, holder="first", pool_size=6) as first, engine(dsn, holder="second", pool_size=6) as second:
        await eventually(lambda: listening(first, 2), what="both servers listen")
        agent = await ScriptedAgent(second).join()
        ids = (await submit(first, *(function() for _ in range(4)))).ids
        await agent.succeed(*await agent.orders(4))
        assert {await state_of(first, task) for task in ids} == {6}


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_in_another_mode_is_refused_before_anything_is_made(
    pooled: Callable[[str], str], empty_dsn: str, tmp_path: Path, mode: str
) -> None:
    dsn = pooled(mode)
    for _ in range(3):
        with pytest.raises(ConfigError, match="behind a pooler that gives every transaction another session") as refused:
            await migrate(dsn)
    assert "pool_mode = session" in str(refused.value.hint)
    connection = await asyncpg.connect(empty_dsn)
    assert await connection.fetchval("select to_regnamespace('headway') is null")
    await connection.close()
    said = headway(tmp_path, "server", "--database", dsn, "--port", "0")
    assert (said.returncode, said.stdout) == (64, "")
    assert "connect to PostgreSQL directly" in said.stderr
    assert "pooler" in examined(headway(tmp_path, "doctor", "--database", dsn, "--json"))["database"]["found"]
