"""Unpacking archives of people we do not know: nothing outside the folder, no links out of it, no devices, no bombs (H5).

Members are checked one by one before anything is written. A link is allowed when where it points to is inside the folder.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import IO

MEMBERS = 200_000


class BadArchive(Exception):
    """Why an archive is not unpacked; names the member."""


def unpack(archive: Path, folder: Path, *, limit: int) -> None:
    """Unpack a tar (plain, gz, bz2, xz) or zip into the folder; at most `limit` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, folder, limit)
        elif tarfile.is_tarfile(archive):
            _untar(archive, folder, limit)
        else:
            raise BadArchive(f"{archive.name} is neither a tar nor a zip file")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise BadArchive(f"{archive.name} is damaged: {error}") from None


def _untar(archive: Path, folder: Path, limit: int) -> None:
    total = 0
    with tarfile.open(archive) as tar:
        for count, member in enumerate(tar):
            total += member.size
            _check_room(archive, count, total, limit)
            target = _inside(folder, member.name)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.issym():
                _link(folder, target, member.linkname, member.name)
            elif member.islnk():
                source = _inside(folder, member.linkname)
                _make_way(folder, target)
                if source.is_symlink() or not source.is_file():
                    raise BadArchive(f"{member.name!r} is a link to {member.linkname!r}, which is no file of the archive")
                os.link(source, target, follow_symlinks=False)
            elif member.isfile():
                content = tar.extractfile(member)
                if content is None:
                    raise BadArchive(f"{member.name!r} has no content")
                _write(folder, target, content, member.mode)
            else:
                raise BadArchive(f"{member.name!r} is a device or a pipe")


def _unzip(archive: Path, folder: Path, limit: int) -> None:
    total = 0
    with zipfile.ZipFile(archive) as zipped:
        for count, member in enumerate(zipped.infolist()):
            total += member.file_size
            _check_room(archive, count, total, limit)
            target = _inside(folder, member.filename)
            mode = member.external_attr >> 16
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif stat.S_ISLNK(mode):
                _link(folder, target, zipped.read(member).decode(errors="replace"), member.filename)
            else:
                with zipped.open(member) as content:
                    _write(folder, target, content, mode or 0o644)


def _check_room(archive: Path, count: int, total: int, limit: int) -> None:
    if count >= MEMBERS:
        raise BadArchive(f"{archive.name} has more than {MEMBERS} members")
    if total > limit:
        raise BadArchive(f"{archive.name} unpacks to more than {limit} bytes")


def _inside(folder: Path, name: str) -> Path:
    """The path of a member; its parents may not be links that lead out."""
    if name.startswith(("/", "\\")) or ".." in Path(name).parts or "\0" in name:
        raise BadArchive(f"{name!r} would be outside the folder")
    target = folder / name
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise BadArchive(f"{name!r} would be outside the folder, through a link")
    return target


def _link(folder: Path, target: Path, to: str, name: str) -> None:
    there = (target.parent / to).resolve()
    if to.startswith("/") or not there.is_relative_to(folder.resolve()):
        raise BadArchive(f"{name!r} is a link that leads out of the folder")
    _make_way(folder, target)
    os.symlink(to, target)


def _make_way(folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target == folder or (target.is_dir() and not target.is_symlink()):
        raise BadArchive(f"{target.name!r} is a folder and a file")
    target.unlink(missing_ok=True)


def _write(folder: Path, target: Path, content: IO[bytes], mode: int) -> None:
    _make_way(folder, target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
        shutil.copyfileobj(content, file, 2**20)
        os.fchmod(file.fileno(), mode & 0o755 | 0o400)
