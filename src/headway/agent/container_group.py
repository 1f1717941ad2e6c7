"""Which processes and files of a node are a container's (G3 H2).

The engine gives each container an id, tells it in a file that the container does not see (`--cidfile`), and names its cgroups after it.
What stands in a process's environment it may have chosen itself, also to be taken for another task's; its group it cannot choose.
"""

from __future__ import annotations

import os
import re

ID_FILE = "id"  # in the folder that the engine's client is started in
_CGROUPS = "/sys/fs/cgroup"
_ID = re.compile(r"[0-9a-f]{64}")
_UPPER = re.compile(r"(?:^|,)upperdir=([^,]+)")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def id_in(folder: str) -> str:
    """Nothing until the engine has told it."""
    try:
        with open(f"{folder}/{ID_FILE}") as file:
            found = file.read().strip()
    except OSError:
        return ""
    return found if _ID.fullmatch(found) else ""


def members(container: str) -> list[int]:
    """Every process in its groups."""
    return [pid for pid in _processes() if groups_of(pid, container)] if container else []


class Search:
    """For the first process of a container that is being made. Those that were there before it are not looked at."""

    def __init__(self) -> None:
        self._older = _processes()

    def first(self, container: str) -> int | None:
        found = _processes()
        self._older &= found
        return next((pid for pid in found - self._older if groups_of(pid, container) and _has_own_root(pid)), None)


def groups_of(pid: int, container: str = "") -> dict[str, str]:
    """The folders of a process's cgroups: by controller in version 1, under no name in version 2. With a container's id, only those
    that are named after it: what lies below them is counted in them."""
    found: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return found  # gone
    for number, controllers, path in lines:
        if container and not (path := _up_to(path, container)):
            continue
        for name in controllers.split(","):
            if number == "0":
                found[""] = f"{_CGROUPS}{path}"
            elif os.path.isdir(f"{_CGROUPS}/{name}"):
                found[name] = f"{_CGROUPS}/{name}{path}"
    return found


def written_by(pid: int) -> tuple[str, ...]:
    """The folders of the node that a container's own files go to: its layer above the image, and volumes that the image asked for."""
    found: list[str] = []
    try:
        with open(f"/proc/{pid}/mountinfo") as file:
            lines = [line.rstrip("\n").split(" - ", 1) for line in file]
    except OSError:
        return ()
    for about, kind in lines:
        words = about.split()
        if words[4] == "/" and (upper := _UPPER.search(kind.split()[-1])):
            found.append(_plain(upper[1]))
        elif words[3].endswith("/_data") and "/volumes/" in words[3]:  # below the top of its file system, which is nearly always that of /
            found.append(_plain(words[3]))
    return tuple(path for path in found if os.path.isdir(path))


def _up_to(path: str, container: str) -> str:
    """The part that ends with the group named after the container (`libpod-ID`, `docker-ID.scope`, `ID`), or nothing. A monitor's group has
    the id in its name too."""
    parts = path.split("/")
    for at, part in enumerate(parts):
        if part.removesuffix(".scope").endswith(container) and "conmon" not in part:
            return "/".join(parts[: at + 1])
    return ""


def _has_own_root(pid: int) -> bool:
    """While the engine still prepares the process, it sees the files of the node."""
    try:
        theirs, ours = os.stat(f"/proc/{pid}/root"), os.stat("/")
    except OSError:
        return False  # gone
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _plain(path: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)
