"""Which program runs a file: named by the task, by the file's suffix, by its `#!`, or the file itself (H1)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from headway.domain.task import Definition

SUFFIXES: dict[str, tuple[str, ...]] = {
    ".py": (sys.executable,),
    ".sh": ("sh",),
    ".bash": ("bash",),
    ".zsh": ("zsh",),
    ".js": ("node",),
    ".mjs": ("node",),
    ".cjs": ("node",),
    ".ts": ("deno", "run"),
    ".pl": ("perl",),
    ".rb": ("ruby",),
    ".php": ("php",),
    ".tcl": ("tclsh",),
    ".lua": ("lua",),
    ".r": ("Rscript",),
    ".jl": ("julia",),
    ".java": ("java",),
    ".jar": ("java", "-jar"),
    ".go": ("go", "run"),
    ".awk": ("awk", "-f"),
    ".ps1": ("pwsh", "-File"),
}
LABELLED = ("bash", "node", "perl", "ruby", "php", "tclsh", "lua", "Rscript", "java", "go", "deno", "julia")


class NotStartable(Exception):
    """Why nothing can be started; shown to the task's owner."""


def command_of(definition: Definition, env: Mapping[str, str], work_dir: str) -> list[str]:
    """The argument vector, its first element an absolute path."""
    if definition.command:
        return [program(definition.command[0], env, work_dir), *definition.command[1:], *definition.args]
    path = os.path.join(work_dir, definition.executable)
    if not os.path.exists(path):
        raise NotStartable(f"the executable {definition.executable!r} does not exist on this node")
    if os.path.isdir(path):
        raise NotStartable(f"the executable {definition.executable!r} is a directory")
    return [*_interpreter(definition, path, env, work_dir), path, *definition.args]


def program(name: str, env: Mapping[str, str], work_dir: str) -> str:
    """The absolute path of a program, looked up as a shell would."""
    if "/" in name:
        path = os.path.join(work_dir, name)
        if not os.path.exists(path):
            raise NotStartable(f"the program {name!r} does not exist on this node")
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise NotStartable(f"the program {name!r} is not executable")
        return path
    found = shutil.which(name, path=env.get("PATH"))
    if found is None:
        raise NotStartable(f"the program {name!r} was not found on this node (PATH={env.get('PATH', '')})")
    return os.path.abspath(found)


def _interpreter(definition: Definition, path: str, env: Mapping[str, str], work_dir: str) -> list[str]:
    if definition.interpreter:
        words = definition.interpreter.split()
        return [program(words[0], env, work_dir), *words[1:]]
    suffix = os.path.splitext(path)[1].lower()
    if suffix in SUFFIXES:
        first, *rest = SUFFIXES[suffix]
        try:
            return [program(first, env, work_dir), *rest]
        except NotStartable:
            raise NotStartable(f"{first!r}, which runs {suffix} files, was not found on this node") from None
    if os.access(path, os.X_OK):
        return []
    return _from_first_line(path, definition, env, work_dir)


def _from_first_line(path: str, definition: Definition, env: Mapping[str, str], work_dir: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError as error:
        raise NotStartable(f"{definition.executable!r} cannot be read: {error.strerror}") from None
    if not line.startswith(b"#!"):
        raise NotStartable(
            f"{definition.executable!r} is not executable, has no #! line, and its suffix names no interpreter; set `interpreter`"
        )
    words = line[2:].decode(errors="replace").split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words:
        raise NotStartable(f"{definition.executable!r} has an empty #! line")
    return [program(words[0], env, work_dir), *words[1:]]
