"""Checkpoint folders as one file and back: the same bytes for the same content, and nothing that points elsewhere (H8)."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.agent import folders
from headway.agent.folders import Changed, Unfit

LIMIT = 2**20


def packed(folder, limit: int = LIMIT) -> bytes:
    into = io.BytesIO()
    folders.pack(str(folder), into, limit)
    return into.getvalue()


def unpacked(data: bytes, folder, limit: int = LIMIT) -> None:
    folders.unpack(io.BytesIO(data), str(folder), limit)


def test_files_and_folders_come_back_with_their_modes(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "deep" / "er").mkdir(parents=True)
    (one / "deep" / "er" / "model").write_bytes(os.urandom(5000))
    (one / "run.sh").write_text("true")
    (one / "run.sh").chmod(0o750)
    (one / "empty").touch()
    (one / "half.tmp").write_text("unfinished")
    two.mkdir()
    unpacked(packed(one), two)
    assert (two / "deep" / "er" / "model").read_bytes() == (one / "deep" / "er" / "model").read_bytes()
    assert (two / "run.sh").stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(two)) == ["deep", "empty", "run.sh"]
    os.utime(two, (1, 1))
    assert packed(one) == packed(one)


def test_a_signature_changes_with_everything_that_is_written(tmp_path):
    (tmp_path / "a").write_text("1")
    before = folders.signature(str(tmp_path))
    (tmp_path / "new.tmp").write_text("not yet")
    assert folders.signature(str(tmp_path)) == before
    os.replace(tmp_path / "new.tmp", tmp_path / "a")
    after = folders.signature(str(tmp_path))
    assert after != before
    (tmp_path / "b").mkdir()
    assert folders.signature(str(tmp_path)) != after


@pytest.mark.parametrize("make", [lambda p: p.symlink_to("/etc"), lambda p: p.symlink_to("nowhere"), lambda p: os.mkfifo(p)])
def test_links_and_pipes_are_refused(tmp_path, make):
    (tmp_path / "sub").mkdir()
    make(tmp_path / "sub" / "x")
    with pytest.raises(Unfit, match="neither a file nor a folder"):
        packed(tmp_path)


def test_a_folder_that_is_itself_a_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(Unfit, match="cannot be read"):
        packed(tmp_path / "link")


def test_too_many_bytes_and_too_deep_folders_are_refused(tmp_path):
    (tmp_path / "large").write_bytes(bytes(2000))
    with pytest.raises(Unfit, match="more than 1999 bytes"):
        packed(tmp_path, 1999)
    assert packed(tmp_path, 2000)
    (tmp_path / "/".join("d" * 40)).mkdir(parents=True)
    with pytest.raises(Unfit, match="nested too deeply"):
        packed(tmp_path)


def test_more_than_could_be_unpacked_is_not_packed(tmp_path, monkeypatch):
    """Nor in many folders that have few each: it would be saved, and be lost when it is needed."""
    monkeypatch.setattr(folders, "MOST", 100)
    for folder in range(11):
        (tmp_path / f"f{folder}").mkdir()
        for file in range(10):
            (tmp_path / f"f{folder}" / str(file)).touch()
    with pytest.raises(Unfit, match="files and folders"):
        packed(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Unfit):
        packed(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    for folder in (9, 10):
        for file in range(10):
            (tmp_path / f"f{folder}" / str(file)).unlink()
        (tmp_path / f"f{folder}").rmdir()
    (tmp_path / "back").mkdir()
    unpacked(packed(tmp_path), tmp_path / "back")


def test_of_very_many_names_not_all_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MOST", 10)
    for name in range(12):
        (tmp_path / str(name)).touch()
    with pytest.raises(Unfit, match="files and folders"):
        folders.signature(str(tmp_path), 5)


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"x", link: str = "") -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        made = tarfile.TarInfo(name)
        made.type, made.linkname, made.size = kind, link, len(content) if kind == tarfile.REGTYPE else 0
        archive.addfile(made, io.BytesIO(content))
    return into.getvalue()


HOSTILE = {
    "upwards": member("../x"),
    "upwards inside": member("a/../../x"),
    "absolute": member("/tmp/x"),
    "a symbolic link": member("x", tarfile.SYMTYPE, link="/etc/passwd"),
    "a hard link": member("x", tarfile.LNKTYPE, link="/etc/passwd"),
    "a device": member("x", tarfile.CHRTYPE),
    "a pipe": member("x", tarfile.FIFOTYPE),
    "too large": member("x", content=bytes(LIMIT + 1)),
    "no archive": b"nonsense" * 200,
    "cut off": member("x", content=bytes(5000))[:3000],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path, what):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    with pytest.raises((Unfit, OSError)):
        unpacked(HOSTILE[what], inside)
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a") == ["b"]


@settings(max_examples=60)
@given(st.binary(max_size=3000))
def test_no_bytes_make_the_unpacking_fail_in_another_way(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    try:
        unpacked(data, folder)
    except (Unfit, Changed):
        return
