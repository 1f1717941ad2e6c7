"""Archives of people we do not know: nothing leaves the folder (H5)."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from headway.agent.unpack import BadArchive, unpack

LIMIT = 2**20


def tar_of(path: Path, *members: tuple[str, dict[str, object], bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, fields, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            file.addfile(member, io.BytesIO(data))
    return path


def link(to: str) -> dict[str, object]:
    return {"type": tarfile.SYMTYPE, "linkname": to}


def test_files_folders_and_inner_links_are_unpacked(tmp_path: Path) -> None:
    packed = tar_of(
        tmp_path / "a.tgz",
        ("bin/tool", {"mode": 0o4755}, b"#!/bin/sh\n"),
        ("bin/alias", link("tool"), b""),
        ("empty", {"type": tarfile.DIRTYPE}, b""),
    )
    unpack(packed, tmp_path / "out", limit=LIMIT)
    tool = tmp_path / "out" / "bin" / "tool"
    assert tool.read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE(tool.stat().st_mode) == 0o755  # no setuid
    assert (tmp_path / "out" / "bin" / "alias").read_bytes() == b"#!/bin/sh\n"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("../evil", {}, b"x")], "outside the folder"),
        ([("a/../../evil", {}, b"x")], "outside the folder"),
        ([("/tmp/evil", {}, b"x")], "outside the folder"),
        ([("out", link("/etc"), b"")], "leads out of the folder"),
        ([("out", link("../.."), b"")], "leads out of the folder"),
        ([("in", link("."), b""), ("in/up", link("../.."), b"")], "nothing is unpacked through it"),
        ([("in", link("."), b""), ("in/file", {}, b"x")], "'in' is a link: nothing is unpacked through it"),
        ([("a/x", {}, b""), ("in", link("a"), b""), ("in/b", {"type": tarfile.DIRTYPE}, b"")], "nothing is unpacked through it"),
        ([("in", link("."), b""), ("in", {"type": tarfile.DIRTYPE}, b"")], "nothing is unpacked through it"),
        ([("a", {}, b"x"), ("in", link("."), b""), ("hard", {"type": tarfile.LNKTYPE, "linkname": "in/a"}, b"")], "is a link"),
        ([("x", link("y/.."), b""), ("y", link("."), b"")], "may only stand at its beginning"),
        ([("hard", {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"}, b"")], "outside the folder"),
        ([("hard", {"type": tarfile.LNKTYPE, "linkname": "missing"}, b"")], "no file of the archive"),
        ([("null", {"type": tarfile.CHRTYPE}, b"")], "device or a pipe"),
        ([("fifo", {"type": tarfile.FIFOTYPE}, b"")], "device or a pipe"),
        ([("a", {}, b"x"), ("a/b", {}, b"x")], "Not a directory|File exists"),
        ([("big", {}, b"\0" * (LIMIT + 1))], "unpacks to more than"),
    ],
)
def test_a_tar_that_would_leave_is_refused(tmp_path: Path, members: list[tuple[str, dict[str, object], bytes]], words: str) -> None:
    before = set(os.listdir("/tmp")) & {"evil"}
    with pytest.raises((BadArchive, OSError), match=words):
        unpack(tar_of(tmp_path / "a.tgz", *members), tmp_path / "deep" / "out", limit=LIMIT)
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "deep" / "evil").exists()
    assert set(os.listdir("/tmp")) & {"evil"} == before


def test_a_second_archive_does_not_go_through_a_link_that_was_there_before_it(tmp_path: Path) -> None:
    outside, place = tmp_path / "outside", tmp_path / "place"
    outside.mkdir()
    place.mkdir()
    (place / "way").symlink_to(outside)
    for into, name in (("way", "evil"), ("", "way/evil"), ("way/deeper", "evil")):
        with pytest.raises(BadArchive, match="'way' is a link: nothing is unpacked through it"):
            unpack(tar_of(tmp_path / "a.tgz", (name, {}, b"x")), place, limit=LIMIT, into=into)
    assert list(outside.iterdir()) == []


def test_two_archives_go_into_their_folders(tmp_path: Path) -> None:
    unpack(tar_of(tmp_path / "a.tgz", ("./x", {}, b"one"), ("./up/link", link("../x"), b"")), tmp_path / "out", limit=LIMIT, into="a/b")
    unpack(tar_of(tmp_path / "b.tgz", ("y", {}, b"two"), (".", {"type": tarfile.DIRTYPE}, b"")), tmp_path / "out", limit=LIMIT, into="a/./")
    assert (tmp_path / "out" / "a" / "b" / "up" / "link").read_bytes() == b"one"
    assert (tmp_path / "out" / "a" / "y").read_bytes() == b"two"


def test_a_file_written_through_a_link_stays_inside(tmp_path: Path) -> None:
    """A link to a place inside, replaced by a file of the same name: the file replaces the link, not what it points to."""
    packed = tar_of(tmp_path / "a.tgz", ("real", {}, b"real"), ("name", link("real"), b""), ("name", {}, b"new"))
    unpack(packed, tmp_path / "out", limit=LIMIT)
    assert (tmp_path / "out" / "real").read_bytes() == b"real"
    assert (tmp_path / "out" / "name").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_a_zip_that_would_leave_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(name, "x")
    with pytest.raises(BadArchive, match="outside the folder"):
        unpack(tmp_path / "a.zip", tmp_path / "out", limit=LIMIT)


def test_a_link_in_a_zip_may_not_lead_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        member = zipfile.ZipInfo("out")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(member, "/etc")
    with pytest.raises(BadArchive, match="leads out"):
        unpack(tmp_path / "a.zip", tmp_path / "folder", limit=LIMIT)


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_text("hello")
    with pytest.raises(BadArchive, match="neither a tar nor a zip"):
        unpack(tmp_path / "a.tgz", tmp_path / "out", limit=LIMIT)
