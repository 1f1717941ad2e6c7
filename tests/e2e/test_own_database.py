"""Headway on a PostgreSQL of one's own, of the oldest version it promises to work with (L4): Debian's 15, beside other tables."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from headway.embedded.privileges import identity, in_child
from tests.support.packages import need
from tests.support.upped import Upped, upped

TREE = """
shop:
  report:
    command: [sh, -c, 'echo "\\"sold\\"" > $HEADWAY_RESULT']
    orders:
      command: ["true"]
    stock:
      command: ["true"]
"""


@pytest.fixture(scope="module")
def dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of version 15 with somebody's database in it."""
    programs = Path(need("postgresql-15")).parent
    folder = tmp_path_factory.mktemp("postgresql-15")
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir(mode=0o700)
    who = identity(data)
    if who is not None:
        shutil.chown(data, who.uid, who.gid)
        shutil.chown(folder, who.uid, who.gid)
    become = in_child(who, None)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}

    def pg(program: str, *arguments: str) -> None:
        command = [str(programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=become, env=environment, cwd=folder)

    pg("initdb", "-D", str(data), "-U", "shop", "--auth=trust", "--no-sync")
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    pg("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        pg("createdb", "-h", str(folder), "-U", "shop", "shop")
        yield f"postgresql://shop@/shop?host={folder}"
    finally:
        pg("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")


@pytest.fixture
def up(dsn: str, tmp_path: Path) -> Iterator[Upped]:
    with upped(tmp_path / "up", HEADWAY_DATABASE=dsn) as running:
        yield running


async def test_work_of_every_kind_is_done_on_version_15_beside_tables_of_the_same_names(dsn: str, up: Upped, tmp_path: Path) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        assert connection.get_server_version().major == 15
        await connection.execute("create table public.task (mine int); insert into public.task values (1)")
        file = tmp_path / "shop.yaml"
        file.write_text(TREE)
        done = up.headway("run", str(file))
        assert done.returncode == 0, done.stderr
        submitted = up.headway("submit", "--attempts", "2", "--retry", "interval=0.1", "-o", "quiet", "--", "false")
        task = submitted.stdout.strip()
        assert up.headway("wait", task).returncode == 1
        assert up.headway("ls", "--state", "failed", "-o", "quiet").stdout.split() == [task]
        states = dict(await connection.fetch("select state, count(*) from headway.task_anywhere group by state"))
        assert states == {6: 3, 7: 1}
        assert await connection.fetchval("select mine from public.task") == 1
    finally:
        await connection.close()
