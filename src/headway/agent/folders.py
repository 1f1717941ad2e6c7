"""A checkpoint folder as one file and back: only files and folders, nothing that points elsewhere (H8).

The folder belongs to a task that may be hostile and still running. It is walked by descriptors and without following links, so
that nothing outside of it can be read, whatever the task puts there in the meantime.
"""

from __future__ import annotations

import itertools
import os
import stat
import tarfile
from collections.abc import Iterator
from typing import IO

MOST = 10_000  # files and folders
DEEPEST = 32
TOO_MANY = f"it has more than {MOST} files and folders"
UNFINISHED = ".tmp"  # what ends so is being written: left out
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

Signature = tuple[tuple[str, int, int, int], ...]


class Unfit(Exception):
    """Why a folder cannot be a checkpoint."""


class Changed(Exception):
    """The folder was changed while it was read."""


def signature(folder: str, most: int = MOST) -> Signature:
    """Changes when anything in the folder does."""
    found: list[tuple[str, int, int, int]] = []
    with _opened(folder) as top:
        for path, of, descriptor in _walk(top, "", 0):
            found.append((path, of.st_mtime_ns, of.st_size if stat.S_ISREG(of.st_mode) else -1, of.st_ino))
            if descriptor is not None:
                os.close(descriptor)
            if len(found) >= most:
                break
    return tuple(found)


def newest(found: Signature) -> float:
    """When something in it was last written, in Unix seconds."""
    return max((mtime_ns for _, mtime_ns, _, _ in found), default=0) / 1e9


def pack(folder: str, into: IO[bytes], limit: int) -> None:
    """The same content gives the same bytes."""
    total = count = 0
    with _opened(folder) as top, tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, of, descriptor in _walk(top, "", 0):
            member = tarfile.TarInfo(path)
            member.mode, member.mtime = stat.S_IMODE(of.st_mode) & 0o777, int(of.st_mtime)
            count += 1
            if count > MOST:  # `unpack` would not take it back
                if descriptor is not None:
                    os.close(descriptor)
                raise Unfit(TOO_MANY)
            if descriptor is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
                continue
            with os.fdopen(descriptor, "rb") as file:
                member.size = os.fstat(file.fileno()).st_size
                total += member.size
                if total > limit:
                    raise Unfit(f"it has more than {limit} bytes")
                try:
                    archive.addfile(member, file)
                except OSError as error:
                    raise Changed(f"{path} became shorter") from error


def unpack(packed: IO[bytes], folder: str, limit: int) -> None:
    """Into an empty folder, in which nobody works."""
    owner = os.stat(folder)
    total = count = 0
    try:
        with tarfile.open(fileobj=packed, mode="r:") as archive:
            for member in archive:
                count, total = count + 1, total + member.size
                if count > MOST or total > limit:
                    raise Unfit(TOO_MANY if count > MOST else f"it has more than {limit} bytes")
                _put(archive, member, folder, owner)
    except (tarfile.TarError, EOFError) as error:
        raise Unfit(f"it cannot be unpacked: {error}") from None


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str, owner: os.stat_result) -> None:
    parts = member.name.split("/")
    if not all(part not in ("", ".", "..") for part in parts) or "\0" in member.name:
        raise Unfit(f"{member.name!r} leads out of the folder")
    path = os.path.join(folder, *parts)
    if member.isdir():
        os.mkdir(path, 0o700)
    elif member.isreg() and (content := archive.extractfile(member)) is not None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            while piece := content.read(2**20):
                file.write(piece)
    else:
        raise Unfit(f"{member.name!r} is neither a file nor a folder")
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    os.chmod(path, member.mode & 0o777)


class _opened:
    """A folder's descriptor for as long as a block."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._folder, _READ | os.O_DIRECTORY)
        except OSError as error:
            raise Unfit(f"the folder cannot be read: {error.strerror}") from None
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _names(folder: int) -> list[str]:
    """Sorted. Of very many not all are read: the supervisor looks at these folders too, and others wait for it."""
    with os.scandir(folder) as entries:
        found = [entry.name for entry in itertools.islice(entries, MOST + 1)]
    if len(found) > MOST:
        raise Unfit(TOO_MANY)
    return sorted(found)


def _walk(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result, int | None]]:
    """Folders before what is in them, by name; for a file its open descriptor, which the caller closes."""
    if depth > DEEPEST:
        raise Unfit(f"{prefix} is nested too deeply")
    for name in _names(folder):
        if name.endswith(UNFINISHED):
            continue
        path = f"{prefix}{name}"
        try:
            of = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(of.st_mode):
                descriptor = os.open(name, _READ | os.O_DIRECTORY, dir_fd=folder)
            elif stat.S_ISREG(of.st_mode):
                descriptor = os.open(name, _READ | os.O_NONBLOCK, dir_fd=folder)
            else:
                raise Unfit(f"{path!r} is neither a file nor a folder")
        except UnicodeEncodeError:
            raise Unfit(f"{path!r} has a name that is not UTF-8") from None
        except OSError as error:
            raise Changed(f"{path!r}: {error.strerror}") from None
        if not stat.S_ISDIR(of.st_mode):
            yield path, of, descriptor
            continue
        try:
            yield path, of, None
            yield from _walk(descriptor, f"{path}/", depth + 1)
        finally:
            os.close(descriptor)
