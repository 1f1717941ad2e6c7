"""The short folder of the embedded database's socket: made, and removed when its server was killed (L3)."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.embedded.socket_folder import YOUNG_S, make

DATABASE = Path("/data" + "/long" * 30)
NAME = ".s.PGSQL.5432"


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hw-") as folder:
        yield Path(folder)


def made(short: Path, *, heard: bool) -> tuple[Path, socket.socket]:
    """Of a server that runs, or was killed a while ago."""
    used = make(DATABASE, None, short)
    folder = used.path
    os.close(used._lock)  # as its end does
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / NAME))
    (folder / f"{NAME}.lock").write_text("1")
    if heard:
        listener.listen()
    else:
        listener.close()
    then = time.time() - 2 * YOUNG_S
    os.utime(folder, (then, then))
    return folder, listener


def test_a_folder_whose_path_is_short_is_used_itself(tmp_path: Path) -> None:
    assert make(Path("/srv/postgres"), None, tmp_path).path == Path("/srv/postgres")


def test_those_of_killed_servers_are_removed_and_those_in_use_are_not(short: Path) -> None:
    dead, _ = made(short, heard=False)
    living, listener = made(short, heard=True)
    assert not dead.exists()
    crashed = make(DATABASE, None, short)  # and is started again soon: its server lives
    more, _ = made(short, heard=False)
    (more / "file").write_text("not ours")
    for folder in (more, crashed.path):
        then = time.time() - 2 * YOUNG_S
        os.utime(folder, (then, then))
    with listener:
        last = make(DATABASE, None, short)
        assert {living, crashed.path, more, last.path} == set(short.iterdir())
    crashed.close()
    last.close()
    assert {living, more} == set(short.iterdir())


def test_of_another_user_nothing_is_touched(short: Path) -> None:
    dead, _ = made(short, heard=False)
    if os.geteuid() != 0:
        pytest.skip("only root can give it to somebody else")
    os.chown(dead, 12345, 12345)
    make(DATABASE, None, short)
    assert dead.is_dir()
