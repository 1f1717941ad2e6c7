"""The embedded database: made once, owned by one, and there again after any crash."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from headway.embedded import postmaster
from headway.embedded.folder import FolderLock
from headway.embedded.postgres import Postgres
from headway.errors import ConfigError, DatabaseInUse, Unavailable

# Another process that owns a database: says where it is once it runs, then waits to be ended.
OWNER = """
    import sys
    from headway.embedded.postgres import Postgres
    postgres = Postgres(sys.argv[1])
    print(postgres.start(), postgres.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    server = Postgres(tmp_path / "data")
    yield server
    server.stop()


async def remember(dsn: str, value: int) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("create table if not exists kept (value int)")
    await connection.execute("insert into kept values ($1)", value)
    await connection.close()


async def remembered(dsn: str) -> list[int]:
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("select value from kept order by value")
    await connection.close()
    return [row["value"] for row in rows]


def own(folder: Path) -> subprocess.Popen[str]:
    """A process that owns the database of `folder`, once it runs."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_data_is_there_after_a_stop_and_a_start(postgres: Postgres) -> None:
    await remember(postgres.start(), 1)
    postgres.stop()
    assert postgres.pid is None
    assert await remembered(postgres.start()) == [1]


async def test_data_is_there_after_a_power_cut(postgres: Postgres) -> None:
    await remember(postgres.start(), 1)
    postgres.kill()
    assert await remembered(postgres.start()) == [1]


async def test_nothing_is_traded_for_speed_and_nothing_listens_on_the_network(postgres: Postgres) -> None:
    connection = await asyncpg.connect(postgres.start())
    shown = dict(await connection.fetch("select name, setting from pg_settings"))
    await connection.close()
    assert [shown[name] for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3
    assert shown["listen_addresses"] == ""
    assert shown["server_version_num"].startswith("18")
    assert stat.S_IMODE(postgres.folder.stat().st_mode) == 0o700


async def test_a_second_owner_is_told_who_has_the_folder(tmp_path: Path) -> None:
    with own(tmp_path / "data") as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with pytest.raises(DatabaseInUse, match=f"pid {owner.pid}") as caught:
            Postgres(tmp_path / "data").start()
        assert caught.value.extra["pid"] == owner.pid
        owner.kill()


async def test_an_owner_that_was_killed_leaves_a_folder_that_starts_again(tmp_path: Path, postgres: Postgres) -> None:
    with own(tmp_path / "data") as owner:
        assert owner.stdout is not None
        dsn, postmaster_pid = owner.stdout.readline().split()
        await remember(dsn, 1)
        owner.kill()
    # Its database may still be ending, or not have noticed yet: both are dealt with.
    assert await remembered(postgres.start()) == [1]
    assert postgres.pid != int(postmaster_pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties the two together")
async def test_the_database_ends_by_itself_when_its_owner_is_killed(tmp_path: Path) -> None:
    with own(tmp_path / "data") as owner:
        assert owner.stdout is not None
        _, pid = owner.stdout.readline().split()
        watch = os.pidfd_open(int(pid))
        owner.kill()
        ended = await wait_readable(watch)
        os.close(watch)
    assert ended


async def wait_readable(fd: int, timeout: float = 120.0) -> bool:
    import select

    return bool(select.select([fd], [], [], timeout)[0])


async def test_backends_that_outlive_their_postmaster_do_not_stop_the_next_start(postgres: Postgres) -> None:
    connection = await asyncpg.connect(postgres.start())
    backend = connection.get_server_pid()
    # Stopped, the backend cannot notice that its postmaster is gone, and keeps the shared memory.
    os.kill(backend, signal.SIGSTOP)
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGKILL)
    postgres.wait()
    dsn = postgres.start()
    await remember(dsn, 1)
    assert await remembered(dsn) == [1]
    connection.terminate()


async def test_a_stale_pid_file_that_names_another_live_process_does_not_stop_the_start(postgres: Postgres) -> None:
    postgres.start()
    postgres.stop()
    (postgres.folder / "postmaster.pid").write_text(f"{os.getppid()}\n{postgres.folder}\n1\n5432\n\n\n  1 1\nready\n")
    postgres.start()
    found = postmaster.read(postgres.folder)
    assert found is not None
    assert found.pid == postgres.pid


async def test_a_creation_that_was_cut_short_is_begun_anew(postgres: Postgres) -> None:
    (postgres.data_dir / "postgres.new" / "base").mkdir(parents=True)
    await remember(postgres.start(), 1)
    assert not (postgres.data_dir / "postgres.new").exists()


async def test_a_long_path_gets_a_short_socket_that_stays_the_same_after_a_crash(tmp_path: Path) -> None:
    server = Postgres(tmp_path / ("long" * 25) / "data")
    dsn = server.start()
    await remember(dsn, 1)
    server.kill()
    assert server.start() == dsn
    assert await remembered(dsn) == [1]
    short = Path(dsn.split("host=")[1])
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    server.stop()
    assert not short.exists()


async def test_a_socket_that_somebody_removed_with_all_of_tmp_is_there_again_after_a_start(tmp_path: Path) -> None:
    server = Postgres(tmp_path / ("long" * 25) / "data")
    dsn = server.start()
    await remember(dsn, 1)
    assert not server.end_if_unreachable()
    shutil.rmtree(dsn.split("host=")[1])
    assert server.end_if_unreachable()
    server.wait()
    assert server.start() == dsn
    assert await remembered(dsn) == [1]
    shutil.rmtree(dsn.split("host=")[1])
    server.stop()


def test_files_of_others_are_not_overwritten(postgres: Postgres) -> None:
    postgres.folder.mkdir(parents=True)
    (postgres.folder / "precious").write_text("x")
    with pytest.raises(ConfigError, match="holds files but no database"):
        postgres.start()
    assert (postgres.folder / "precious").read_text() == "x"


def test_a_database_of_another_version_is_refused_with_its_number(postgres: Postgres) -> None:
    postgres.folder.mkdir(parents=True)
    (postgres.folder / "PG_VERSION").write_text("16\n")
    with pytest.raises(ConfigError, match="made by PostgreSQL 16"):
        postgres.start()


def test_a_database_that_cannot_start_says_why_and_lets_the_folder_go(tmp_path: Path) -> None:
    server = Postgres(tmp_path, settings={"shared_buffers": "nonsense"})
    with pytest.raises(Unavailable, match="shared_buffers"):
        server.start()
    FolderLock(tmp_path).acquire()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
async def test_root_runs_it_as_another_user_below_a_folder_closed_to_others(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = Postgres(closed / "data")
    await remember(server.start(), 1)
    assert server.pid is not None
    assert Path(f"/proc/{server.pid}").stat().st_uid not in (0, closed.stat().st_uid)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700, "nothing was opened to others"
    server.stop()
