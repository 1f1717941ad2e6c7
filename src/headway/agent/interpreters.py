"""Which program runs a file: named by the task, by the file's suffix, by its `#!`, or the file itself (H1).

The table of languages is domain/languages.py; here it meets a real node.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.domain import languages
from headway.domain.content import on_volume
from headway.domain.languages import LANGUAGES, PYTHON, Language
from headway.domain.task import Definition

VERSION_S = 5.0
_LIVING = ("/proc/", "/sys/", "/dev/")
_SAVE = "save it with Unix line ends (`sed -i 's/\\r$//' FILE`)"
SHELLS = ("sh", "bash", "zsh")
_VERSION = re.compile(r"(\d+)(\.\d+)?")


class NotStartable(Exception):
    """Why nothing can be started; shown to the task's owner."""


def command_of(
    definition: Definition,
    env: Mapping[str, str],
    work_dir: str,
    *,
    executable: str = "",
    program_of: str = "",
    volumes: Mapping[str, str] = {},
) -> list[str]:
    """The argument vector, its first element an absolute path. `executable` and `program_of` are what preparation made."""
    if definition.command:
        return [program(definition.command[0], env, work_dir), *definition.command[1:], *definition.args]
    if program_of:
        return [program_of, *definition.args]
    path = executable or located(definition.executable, work_dir, volumes)
    if not os.path.exists(path):
        raise NotStartable(f"the executable {definition.executable!r} does not exist on this node")
    if os.path.isdir(path):
        raise NotStartable(f"the executable {definition.executable!r} is a directory")
    if not stat.S_ISREG(os.stat(path).st_mode) or os.path.realpath(path).startswith(_LIVING):  # reading them may wait, or do something
        raise NotStartable(f"the executable {definition.executable!r} is not a plain file")
    return [*_interpreter(definition, path, env, work_dir), path, *definition.args]


def located(executable: str, work_dir: str, volumes: Mapping[str, str]) -> str:
    return in_volume(executable, volumes) if on_volume(executable) else os.path.join(work_dir, executable)


def in_volume(source: str, volumes: Mapping[str, str]) -> str:
    """The path of volume:NAME/path on this node; it may not leave the volume, not by a link either."""
    name, path = on_volume(source) or ("", "")
    if name not in volumes:
        raise NotStartable(f"this node has no volume {name!r}; it has: {', '.join(sorted(volumes)) or 'none'}")
    root = os.path.realpath(volumes[name])
    found = os.path.realpath(os.path.join(root, path))
    if found != root and not found.startswith(root.rstrip("/") + "/"):
        raise NotStartable(f"{source!r} is outside the volume")
    return found


def program(name: str, env: Mapping[str, str], work_dir: str) -> str:
    """The absolute path of a program, looked up as a shell would."""
    if "/" in name:
        path = os.path.join(work_dir, name)
        if not os.path.exists(path):
            raise NotStartable(f"the program {name!r} does not exist on this node")
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise NotStartable(f"the program {name!r} is not executable")
        _check_first_line(path, name, env)
        return path
    found = shutil.which(name, path=env.get("PATH"))
    if found is None:
        raise NotStartable(f"the program {name!r} was not found on this node (PATH={env.get('PATH', '')})")
    return os.path.abspath(found)


def _interpreter(definition: Definition, path: str, env: Mapping[str, str], work_dir: str) -> list[str]:
    if definition.interpreter:
        words = definition.interpreter.split()
        known = languages.BY_NAME.get(words[0])
        return [*_run(known, env, work_dir), *words[1:]] if known else [program(words[0], env, work_dir), *words[1:]]
    language = languages.by_file(path)
    if language is not None and language.run:
        if language.name in SHELLS and _first_line(path).endswith(b"\r\n"):
            raise NotStartable(
                f"the lines of {definition.executable!r} end with carriage returns, as on Windows, which {language.name} does not "
                f"understand; {_SAVE}"
            )
        try:
            return _run(language, env, work_dir)
        except NotStartable:
            suffix = os.path.splitext(path)[1]
            raise NotStartable(f"{language.run[0]!r}, which runs {suffix} files, was not found on this node") from None
    if os.access(path, os.X_OK):
        _check_first_line(path, definition.executable, env)
        return []
    return _from_first_line(path, definition, env, work_dir)


def _run(language: Language, env: Mapping[str, str], work_dir: str) -> list[str]:
    """Python files run with the agent's own Python, unless packages were prepared for another place on the PATH."""
    if language is PYTHON:
        return [sys.executable]
    return [program(language.run[0], env, work_dir), *language.run[1:]]


def _from_first_line(path: str, definition: Definition, env: Mapping[str, str], work_dir: str) -> list[str]:
    try:
        line = _first_line(path)
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


def _check_first_line(path: str, name: str, env: Mapping[str, str]) -> None:
    """The kernel says "no such file" of a script whose interpreter is missing, and `env` ends as any program does: so it is said here."""
    if not stat.S_ISREG(os.stat(path).st_mode) or os.path.realpath(path).startswith(_LIVING):
        return
    try:
        line = _first_line(path)
    except OSError:
        return  # what may be run need not be readable
    words = line[2:].decode(errors="replace").split(" ") if line.startswith(b"#!") else []
    words = [word for word in words if word]
    if not words:
        return
    if line.endswith(b"\r\n"):
        raise NotStartable(f"the #! line of {name!r} ends with a carriage return, as on Windows; {_SAVE}")
    first = words[0].strip()
    if not os.path.exists(first):
        raise NotStartable(f"the #! line of {name!r} names {first!r}, which is not on this node")
    if os.path.basename(first) == "env" and len(words) == 2 and not words[1].startswith("-"):
        asked = words[1].strip()
        if "=" not in asked and shutil.which(asked, path=env.get("PATH")) is None:
            raise NotStartable(f"the #! line of {name!r} asks for {asked!r}, which was not found on this node (PATH={env.get('PATH', '')})")


def _first_line(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.readline(256)


# --- what a node announces


def found_interpreters(cache: Path) -> dict[str, str]:
    """The languages this node can run, as labels with their versions.

    Asking twenty programs for their version takes half a second: the answers are kept in `cache` until a program changes.
    """
    there = [(language, found) for language in LANGUAGES if (found := shutil.which(language.program))]
    known = _read(cache)
    keys = {language.name: _key(path) for language, path in there}
    new = [(language, path) for language, path in there if keys[language.name] not in known]
    if new:
        with ThreadPoolExecutor(4) as pool:
            versions = pool.map(lambda each: _version(*each), new)
            known |= {keys[language.name]: version for (language, _), version in zip(new, versions, strict=True)}
        _write(cache, {keys[language.name]: known[keys[language.name]] for language, _ in there})
    return {language.label: known[keys[language.name]] for language, _ in there}


def _version(language: Language, path: str) -> str:
    """The major version; "yes" when the program does not say."""
    if not language.version:
        return "yes"
    try:
        done = subprocess.run(
            [path, *language.version], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=VERSION_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return "yes"
    found = _VERSION.search(done.stdout or done.stderr)
    return found[1] if found else "yes"


def _key(path: str) -> str:
    of = os.stat(path)
    return f"{os.path.realpath(path)}|{of.st_mtime_ns}|{of.st_size}"


def _read(cache: Path) -> dict[str, str]:
    try:
        found = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _write(cache: Path, known: dict[str, str]) -> None:
    """Another agent may write at the same time: whole files only. A cache that cannot be kept costs time, nothing else."""
    part = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(known))
        part.replace(cache)
    except OSError:
        return
