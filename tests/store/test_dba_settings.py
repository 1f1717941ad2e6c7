"""What a DBA sets for the role or the database that Headway uses: it changes nothing, or is refused in words (L4 J1)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from headway.errors import ConfigError, Unavailable
from headway.store import connecting
from headway.store.database import Database
from headway.store.fitness import doubts
from headway.store.migrate import migrate
from tests.e2e.test_tls import make_certificates
from tests.store.test_cli_database import examined, headway
from tests.support.databases import Databases
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit

# What a DBA may set, and what we have instead.
SETTINGS = {
    "statement_timeout": ("1s", "30s"),
    "lock_timeout": ("1ms", "10s"),
    "idle_in_transaction_session_timeout": ("1ms", "10s"),
    "idle_session_timeout": ("10s", "0"),
    "transaction_timeout": ("1s", "0"),  # since version 17
    "default_transaction_isolation": ("serializable", "read committed"),
    "default_transaction_deferrable": ("on", "off"),
    "search_path": ("public", "headway"),
    "timezone": ("Asia/Kathmandu", "UTC"),
    "datestyle": ("German, DMY", "ISO, MDY"),
    "intervalstyle": ("sql_standard", "postgres"),
    "bytea_output": ("escape", "hex"),
    "standard_conforming_strings": ("off", "on"),
    "array_nulls": ("off", "on"),
    "client_encoding": ("LATIN1", "UTF8"),
    "enable_indexscan": ("off", None),
}
Role = Callable[..., Coroutine[Any, Any, str]]


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
async def role(empty_dsn: str) -> AsyncIterator[Role]:
    """Makes a role that owns the database and has these settings; gives the address of the database for it."""
    made: list[str] = []

    async def make(options: str = "", **settings: str) -> str:
        name = f"app_{secrets.token_hex(4)}"
        made.append(name)
        database = urlsplit(empty_dsn).path.removeprefix("/")
        await execute(empty_dsn, f"create role {name} login {options}", f"alter database {database} owner to {name}")
        await execute(empty_dsn, *(f"alter role {name} set {key} to {value!r}" for key, value in settings.items()))
        user = urlsplit(empty_dsn).netloc.partition("@")[0]
        return empty_dsn.replace(f"//{user}@", f"//{name}@", 1)

    yield make
    me = "select session_user"
    connection = await asyncpg.connect(empty_dsn)
    owner = await connection.fetchval(me)
    for name in made:
        await connection.execute(f"reassign owned by {name} to {owner}; drop owned by {name}; drop role {name}")
    await connection.close()


async def known(dsn: str) -> dict[str, str]:
    connection = await asyncpg.connect(dsn)
    try:
        names = {row["name"].lower() for row in await connection.fetch("select name from pg_settings")}
    finally:
        await connection.close()
    return {name: theirs for name, (theirs, _) in SETTINGS.items() if name in names}


async def test_no_setting_of_the_role_reaches_our_sessions(role: Role, empty_dsn: str) -> None:
    settings = await known(empty_dsn)
    dsn = await role(**settings)
    await migrate(dsn)
    database = Database(dsn)
    try:
        for loan in (database.hot, database.cold):
            async with loan() as connection:
                found = {name: await connection.fetchval(f"show {name}") for name in settings if SETTINGS[name][1]}
            assert found == {name: ours for name, (_, ours) in SETTINGS.items() if name in settings and ours}
        notifier = await database.reach.connect("headway notify")
        assert await notifier.fetchval("show idle_session_timeout") == "0"
        await notifier.close()
    finally:
        await database.close()


async def test_work_is_done_under_a_role_whose_every_setting_is_another(role: Role, empty_dsn: str) -> None:
    dsn = await role(**await known(empty_dsn))
    await migrate(dsn)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        ids = (await submit(core, *(function(name="Grüße\\n", input=[None, "ü\\"]) for _ in range(4)))).ids
        await agent.succeed(*await agent.orders(4))
        assert {await state_of(core, task) for task in ids} == {6}


async def test_a_role_that_may_only_read_is_told_so_and_not_overruled(role: Role, tmp_path: Path) -> None:
    dsn = await role(default_transaction_read_only="on")
    with pytest.raises(Unavailable, match="takes no writes: it is a replica, or default_transaction_read_only is on"):
        await migrate(dsn)
    database = Database(dsn)
    with pytest.raises(Unavailable, match="takes no writes"):
        await database.open()
    await database.close()
    said = await asyncio.to_thread(headway, tmp_path, "doctor", "--database", dsn, "--json")
    assert examined(said)["writes"]["found"] == "default_transaction_read_only is on"


async def test_fewer_connections_than_wanted_are_shared(role: Role) -> None:
    dsn = await role("connection limit 4")
    await migrate(dsn)
    database = Database(dsn, pool_size=9)

    async def ask(_: int) -> int:
        async with database.hot() as connection:
            return int(await connection.fetchval("select pg_backend_pid() from pg_sleep(0.02)"))

    try:
        await database.open()
        assert 1 <= len(set(await asyncio.gather(*map(ask, range(40))))) <= 3
    finally:
        await database.close()


async def test_a_server_that_gets_no_connection_says_which_limit_it_met(role: Role, tmp_path: Path) -> None:
    dsn = await role("connection limit 1")
    held = await asyncpg.connect(dsn)
    database = Database(dsn)
    with pytest.raises(Unavailable, match=r"no more connections: too many connections for role .* lower pool_size") as refused:
        await database.open()
    assert "make room" not in str(refused.value)
    await database.close()
    said = await asyncio.to_thread(headway, tmp_path, "db", "migrate", "--database", dsn)
    assert said.returncode == 69
    assert "gives us no connection: too many connections for role" in said.stderr
    await held.close()


async def test_a_limit_below_what_a_server_uses_is_told_beforehand(role: Role) -> None:
    dsn = await role("connection limit 5")
    await migrate(dsn)
    connection = await connecting.connect(dsn, "headway")
    try:
        told = [doubt for doubt in await doubts(connection, 10) if doubt.name == "connections"]
        assert [("allows 5, one server of Headway uses 10" in one.found, "connection limit" in one.todo) for one in told] == [(True, True)]
        assert not [doubt for doubt in await doubts(connection, 5) if doubt.name == "connections"]
    finally:
        await connection.close()


async def test_a_schema_of_our_name_with_tables_of_others_is_left_alone(empty_dsn: str) -> None:
    await execute(empty_dsn, "create schema headway; create table headway.task (mine int); create table headway.migration (version int)")
    with pytest.raises(ConfigError, match="holds what is not Headway's: migration, task"):
        await migrate(empty_dsn)
    connection = await asyncpg.connect(empty_dsn)
    found = await connection.fetch("select tablename from pg_tables where schemaname = 'headway' order by 1")
    await connection.close()
    assert [row[0] for row in found] == ["migration", "task"]


async def test_an_encoding_that_cannot_hold_every_text_is_refused(postgres: Databases, empty_dsn: str) -> None:
    name = f"latin_{secrets.token_hex(4)}"
    await execute(empty_dsn, f"create database {name} encoding 'LATIN1' locale_provider libc locale 'C' template template0")
    try:
        with pytest.raises(ConfigError, match="has the encoding LATIN1"):
            await migrate(postgres.dsn(name))
    finally:
        await execute(empty_dsn, f"drop database {name}")


async def test_a_trigger_that_forbids_to_make_tables_is_heard(empty_dsn: str) -> None:
    raises = "create function stop() returns event_trigger language plpgsql as $$ begin raise exception 'no tables on weekdays'; end $$"
    await execute(empty_dsn, raises, "create event trigger stop on ddl_command_start execute function stop()")
    try:
        with pytest.raises(ConfigError, match=r"refuses us: no tables on weekdays \(a trigger or a rule in this database said so"):
            await migrate(empty_dsn)
    finally:
        await execute(empty_dsn, "drop event trigger stop")


async def test_a_certificate_that_is_not_trusted_or_not_there_is_told_as_that(tmp_path: Path) -> None:
    for names, folder in (("DNS:elsewhere.example", "other"), ("IP:127.0.0.1", "right")):
        make_certificates(tmp_path / folder, names=names)
    async with speaking_tls(tmp_path / "other") as port:
        url = f"postgresql://u@127.0.0.1:{port}/db?sslmode=verify-full&sslrootcert="
        with pytest.raises(ConfigError, match="cannot be trusted: IP address mismatch"):
            await migrate(f"{url}{tmp_path}/other/ca.pem")
        with pytest.raises(ConfigError, match="cannot be trusted: "):
            await migrate(f"{url}{tmp_path}/right/ca.pem")
        with pytest.raises(ConfigError, match=r"sslrootcert=/nowhere\.pem in the database's URL names a file that is not there"):
            await migrate(f"{url}/nowhere.pem")


@asynccontextmanager
async def speaking_tls(folder: Path) -> AsyncIterator[int]:
    """What a client of PostgreSQL meets before it says who it is."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"S")
        with contextlib.suppress(OSError):  # it does not trust us, and goes
            await writer.start_tls(context)
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_of_several_hosts_one_that_swallows_everything_does_not_keep_us_from_the_next(empty_dsn: str) -> None:
    folder = dict(part.split("=") for part in urlsplit(empty_dsn).query.split("&")).get("host")
    if folder is None:
        pytest.skip("needs a database with a Unix socket")
    parts = urlsplit(empty_dsn)
    with socket.create_server(("127.0.0.1", 0)) as dead:  # takes connections and says nothing
        hosts = f"host=127.0.0.1,{folder}&port={dead.getsockname()[1]},5432"
        reach = connecting.Reach(f"postgresql://{parts.netloc}{parts.path}?{hosts}")
        for _ in range(2):
            connection = await reach.connect("headway")
            assert await connection.fetchval("select 1") == 1
            await connection.close()
        assert dead.accept()  # asked once: the one that answered is asked first from then on
        dead.settimeout(0)
        with pytest.raises(BlockingIOError):
            dead.accept()


@pytest.mark.parametrize(
    ("url", "each"),
    [
        ("postgresql://u:p@a:1,b:2/db?x=y", ["postgresql://u:p@a:1/db?x=y", "postgresql://u:p@b:2/db?x=y"]),
        ("postgresql://u@/db?host=/run/a,b&port=1,2", ["postgresql://u@/db?host=%2Frun%2Fa&port=1", "postgresql://u@/db?host=b&port=2"]),
        ("postgresql://u@/db?host=a,b", ["postgresql://u@/db?host=a&port=5432", "postgresql://u@/db?host=b&port=5432"]),
        ("postgresql:///db", ["postgresql:///db"]),
    ],
)
def test_hosts_are_asked_one_by_one(url: str, each: list[str]) -> None:
    assert connecting.one_by_one(url) == each
