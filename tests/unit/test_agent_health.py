"""An agent looks at its own disk: too little room, too few files, and what an error says of it (I1)."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from headway.agent import health

MIB = 2**20


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the kernel says of a file system: only its answer is made up."""
    there = SimpleNamespace(f_blocks=100_000, f_frsize=MIB, f_bavail=50_000, f_files=1000, f_favail=500, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _folder: there)
    return there


def test_a_disk_with_room_is_no_trouble(disk: SimpleNamespace) -> None:
    assert health.trouble({"work": "/"}, before=False) == ""
    disk.f_files = disk.f_favail = 0  # a file system that does not count its files
    assert health.trouble({"work": "/"}, before=False) == ""


def test_who_is_in_trouble_needs_twice_the_room_to_be_out_of_it(disk: SimpleNamespace) -> None:
    disk.f_bavail = 63
    assert health.trouble({"work": "/"}, before=False) == "has 63MiB free in its work folder, less than 64MiB"
    disk.f_bavail = 100
    assert health.trouble({"work": "/"}, before=False) == ""
    assert health.trouble({"work": "/"}, before=True) == "has 100MiB free in its work folder, less than 128MiB"
    disk.f_bavail = 128
    assert health.trouble({"work": "/"}, before=True) == ""


def test_a_small_disk_is_full_when_a_twentieth_is_left(disk: SimpleNamespace) -> None:
    disk.f_blocks, disk.f_bavail = 100, 5
    assert health.trouble({"work": "/"}, before=False) == ""
    disk.f_bavail = 4
    assert health.trouble({"work": "/"}, before=False) == "has 4MiB free in its work folder, less than 5MiB"


def test_a_disk_without_room_for_files_is_full(disk: SimpleNamespace) -> None:
    disk.f_favail = 99
    assert health.trouble({"sandbox": "/"}, before=False) == "has room for 99 more files in its sandbox folder, less than 100"


def test_a_read_only_file_system_and_a_folder_that_is_gone_are_trouble(disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.f_flag = os.ST_RDONLY
    assert health.trouble({"work": "/x"}, before=False) == "cannot write in its work folder: the file system of /x is read-only"
    monkeypatch.undo()
    gone = "cannot use its work folder /nowhere (No such file or directory): restart its agent"
    assert health.trouble({"work": "/nowhere"}, before=False) == gone


def test_an_error_for_want_of_room_is_known_by_where_it_came_from() -> None:
    def fetch(number: int) -> None:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise ValueError(f"it could not be fetched: {error}") from None

    for number, full in ((errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, True), (errno.EACCES, False)):
        with pytest.raises(ValueError, match="could not be fetched") as caught:
            fetch(number)
        assert health.for_want_of_room(caught.value) is full
    assert health.for_want_of_room(ValueError("pip failed"), "OSError: [Errno 28] No space left on device")
    assert not health.for_want_of_room(ValueError("pip failed"), "no such package")
