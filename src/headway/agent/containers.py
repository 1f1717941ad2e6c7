"""Tasks in containers: the command line of Podman or Docker, with the task's limits (H2)."""

from __future__ import annotations

import os
import shlex
import shutil

ENGINES = ("podman", "docker")


def engine_words(setting: str) -> list[str]:
    """The command line that runs containers on this node, or nothing: a name, a whole command line, `auto` or `none`."""
    if setting == "none":
        return []
    if setting == "auto":
        return next(([found] for name in ENGINES if (found := shutil.which(name))), [])
    words = shlex.split(setting)
    found = shutil.which(words[0]) if words else None
    return [os.path.abspath(found), *words[1:]] if found else []
