"""Unpacking archives of people we do not know: nothing outside the folder, no links out of it, no devices, no bombs (H5 H11).

Every member is reached from the folder's own descriptor, one name at a time, and never through a link: not one of this archive, and not
one that an earlier archive or command left there. A link may be a member where its target, read as it is written, is inside the folder;
`..` in it comes first or not at all, because behind another link it would lead elsewhere than it seems.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MEMBERS = 200_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class BadArchive(Exception):
    """Why an archive is not unpacked; names the member."""


def unpack(archive: Path, place: Path, *, limit: int, into: str = "") -> None:
    """Unpack a tar (plain, gz, bz2, xz) or zip into a folder of the place, which is ours; at most `limit` bytes."""
    os.makedirs(place, exist_ok=True)
    top = os.open(place, _FOLDER)
    try:
        with _opened(top, _names(into)) as folder:
            if zipfile.is_zipfile(archive):
                _unzip(archive, folder, limit)
            elif tarfile.is_tarfile(archive):
                _untar(archive, folder, limit)
            else:
                raise BadArchive(f"{archive.name} is neither a tar nor a zip file")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise BadArchive(f"{archive.name} is damaged: {error}") from None
    finally:
        os.close(top)


def _untar(archive: Path, folder: int, limit: int) -> None:
    total = 0
    with tarfile.open(archive) as tar:
        for count, member in enumerate(tar):
            total += member.size
            _check_room(archive, count, total, limit)
            parents, name = _place_of(member.name)
            with _opened(folder, parents) as where:
                if member.isdir():
                    _make_folder(where, name)
                elif member.issym():
                    _link(where, name, member.linkname, member.name, depth=len(parents))
                elif member.islnk():
                    _hard_link(folder, where, name, member)
                elif member.isfile():
                    content = tar.extractfile(member)
                    if content is None:
                        raise BadArchive(f"{member.name!r} has no content")
                    _write(where, name, content, member.mode)
                else:
                    raise BadArchive(f"{member.name!r} is a device or a pipe")


def _unzip(archive: Path, folder: int, limit: int) -> None:
    total = 0
    with zipfile.ZipFile(archive) as zipped:
        for count, member in enumerate(zipped.infolist()):
            total += member.file_size
            _check_room(archive, count, total, limit)
            parents, name = _place_of(member.filename)
            mode = member.external_attr >> 16
            with _opened(folder, parents) as where:
                if member.is_dir():
                    _make_folder(where, name)
                elif stat.S_ISLNK(mode):
                    to = zipped.read(member).decode(errors="replace")
                    _link(where, name, to, member.filename, depth=len(parents))
                else:
                    with zipped.open(member) as content:
                        _write(where, name, content, mode or 0o644)


def _check_room(archive: Path, count: int, total: int, limit: int) -> None:
    if count >= MEMBERS:
        raise BadArchive(f"{archive.name} has more than {MEMBERS} members")
    if total > limit:
        raise BadArchive(f"{archive.name} unpacks to more than {limit} bytes")


def _names(path: str) -> list[str]:
    if path.startswith(("/", "\\")) or ".." in path.split("/") or "\0" in path:
        raise BadArchive(f"{path!r} would be outside the folder")
    return [name for name in path.split("/") if name not in ("", ".")]


def _place_of(member: str) -> tuple[list[str], str]:
    """The folders that lead to it, and its own name; no name is the folder that everything goes into."""
    names = _names(member)
    return names[:-1], names[-1] if names else ""


@contextlib.contextmanager
def _opened(folder: int, names: list[str]) -> Iterator[int]:
    """The folder below it that these names lead to, made where it is missing."""
    here = os.dup(folder)
    try:
        for at, name in enumerate(names):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            below = _enter(here, name, "/".join(names[: at + 1]))
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _enter(folder: int, name: str, path: str) -> int:
    if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise BadArchive(f"{path!r} is a link: nothing is unpacked through it")
    return os.open(name, _FOLDER, dir_fd=folder)


def _make_folder(where: int, name: str) -> None:
    if name:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=where)
        os.close(_enter(where, name, name))


def _link(where: int, name: str, to: str, member: str, *, depth: int) -> None:
    names = [part for part in to.split("/") if part not in ("", ".")]
    up = next((at for at, part in enumerate(names) if part != ".."), len(names))
    if to.startswith("/") or "\0" in to or up > depth:
        raise BadArchive(f"{member!r} is a link that leads out of the folder")
    if ".." in names[up:]:
        raise BadArchive(f"{member!r} is a link to {to!r}: .. may only stand at its beginning")
    _make_way(where, name)
    os.symlink(to, name, dir_fd=where)


def _hard_link(folder: int, where: int, name: str, member: tarfile.TarInfo) -> None:
    parents, source = _place_of(member.linkname)
    with _opened(folder, parents) as there:
        try:
            plain = stat.S_ISREG(os.stat(source, dir_fd=there, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            plain = False
        if not plain:
            raise BadArchive(f"{member.name!r} is a link to {member.linkname!r}, which is no file of the archive")
        _make_way(where, name)
        os.link(source, name, src_dir_fd=there, dst_dir_fd=where, follow_symlinks=False)


def _make_way(where: int, name: str) -> None:
    """What is there under this name goes, and what it points to stays."""
    try:
        os.unlink(name, dir_fd=where)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        raise BadArchive(f"{name!r} is a folder and a file") from None


def _write(where: int, name: str, content: IO[bytes], mode: int) -> None:
    _make_way(where, name)
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=where), "wb") as file:
        shutil.copyfileobj(content, file, 2**20)
        os.fchmod(file.fileno(), mode & 0o755 | 0o400)
