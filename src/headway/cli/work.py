"""The work a command line describes: a file of trees, lines of tasks, or one task of options and `-- CMD`.

`submit` and `run` take the same words, so they are read here, once.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from headway.cli import options
from headway.errors import InvalidInput

if TYPE_CHECKING:
    from headway.domain.spec import TaskSpec
    from headway.treefile.model import Tree

_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://|upload:|volume:)")
LINES = (".ndjson", ".jsonl")
_LIST_HINT = 'as in [{"command": ["echo", "hello"]}]'


@dataclass
class Work:
    """Exactly one of trees, lines and task is filled."""

    trees: list[Tree] = field(default_factory=list)
    lines: bytes | None = None  # NDJSON of task specs
    tree_name: str | None = None  # they are a tree of this name
    task: dict[str, Any] | None = None  # a file whose top keys are a task's is one task, not a tree
    inputs: list[Any] | None = None  # the same task over these
    kept: list[dict[str, Any]] = field(default_factory=list)  # schedules, as the API takes them
    notes: list[str] = field(default_factory=list)  # what the file says and has no effect here


def read(
    file: str | None,
    command: Sequence[str] | None,
    spec: dict[str, Any],
    *,
    params: Sequence[str] | None = None,
    inputs: str | None = None,
    once: bool = False,
) -> Work:
    """The work asked for; a usage error when it is none, or more than one thing. `once`: schedules do not count."""
    if file is None:
        return _one(command, spec, inputs)
    if command:
        raise typer.BadParameter("give a FILE or `-- CMD`, not both", param_hint="FILE")
    if spec or inputs:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in spec) or "--inputs"
        raise typer.BadParameter(f"{named}: a file says these itself; options go with `-- CMD`", param_hint="FILE")
    if file == "-" or file.endswith(LINES):
        text = options.contents(file, "FILE")
        if not text.strip():
            said = "nothing came on stdin" if file == "-" else f"{file}: the file is empty"
            raise InvalidInput(said, where=file, hint='one task a line: {"command": ["echo", "hello"]}')
        return Work(lines=_lines_of_list(file, text) if _is_list(text) else text.encode())
    if file.endswith(".json") and os.path.isfile(file) and _is_list(text := options.contents(file, "FILE")):
        if params:
            raise typer.BadParameter("a list of tasks has no parameters; a tree has", param_hint="--param")
        return Work(lines=_lines_of_list(file, text))
    found = trees(file, params)
    return _now(found) if once else _with_schedules(found)


def _is_list(text: str) -> bool:
    """Whether it is a JSON list of tasks, as `POST /v1/tasks` takes it; a tree and a task are mappings."""
    return text.lstrip().startswith("[")


def _lines_of_list(file: str, text: str) -> bytes:
    """The tasks of a JSON list, one a line."""
    import msgspec

    try:
        found = msgspec.json.decode(text, type=list[Any])
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{file}: not a JSON list of tasks: {error}", where=file, hint=_LIST_HINT) from None
    if not found:
        raise InvalidInput(f"{file}: the list is empty", where=file, hint=_LIST_HINT)
    return b"\n".join(msgspec.json.encode(task) for task in found)


def _with_schedules(found: list[Tree]) -> Work:
    """What has a schedule is kept, the rest runs now. `schedule: 0` and no more is a run now, too."""
    from headway.cli.schedule import bodies
    from headway.treefile.schedules import is_once

    kept = [tree.schedule is not None and not is_once(tree.schedule) for tree in found]
    work = _now([tree for tree, keep in zip(found, kept, strict=True) if not keep])
    work.kept = [body for tree, keep in zip(found, kept, strict=True) if keep for body in bodies(tree)]
    work.notes = _notes(found)
    return work


def _now(found: list[Tree]) -> Work:
    if len(found) == 1 and len(found[0].tasks) == 1 and found[0].tasks[0].name == found[0].name:
        return Work(task=said(found[0].tasks[0].spec), notes=_notes(found))
    return Work(trees=found, notes=_notes(found))


def _notes(found: list[Tree]) -> list[str]:
    return [warning for tree in found for warning in tree.warnings]


def trees(file: str, params: Sequence[str] | None = None) -> list[Tree]:
    """The trees of a YAML or JSON file, checked."""
    from headway.treefile import load_file

    if not os.path.exists(file):
        hint = f"`headway run -- {file}` runs a command" if "." not in file else "is the path right?"
        raise InvalidInput(f"{file}: no such file", where=file, hint=hint)
    return load_file(file, options.pairs(params, "--param"))


def said(spec: TaskSpec) -> dict[str, Any]:
    """The fields that a spec sets. An input that is not set is no bytes, which JSON cannot say: it is left out too."""
    blank = type(spec)()
    given = {name: getattr(spec, name) for name in spec.__struct_fields__ if getattr(spec, name) != getattr(blank, name)}
    if not bytes(spec.input):
        given.pop("input", None)
    return given


def _one(command: Sequence[str] | None, spec: dict[str, Any], inputs: str | None) -> Work:
    if command and "image" in spec:
        spec = {**spec, "commands": [shlex.join(command)]}
    elif command:
        spec = {**spec, "command": list(command)}
        spec.setdefault("workdir", os.getcwd())
    elif "/" in spec.get("executable", "") and not _REMOTE.match(spec["executable"]):
        spec = {**spec, "executable": os.path.abspath(spec["executable"])}
    if not any(kind in spec for kind in ("command", "executable", "function", "image", "stages")):
        raise typer.BadParameter("nothing to run: give a FILE, `-- CMD`, --executable, --function, --image or --stage", param_hint="FILE")
    if inputs is None:
        return Work(task=spec)
    return Work(task=spec, inputs=_lines_of_json(inputs))


def _lines_of_json(path: str) -> list[Any]:
    import json

    found = []
    for number, line in enumerate(options.contents(path, "--inputs").splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                where = f"{path}:{number}"
                raise InvalidInput(f"{where}: not JSON: {error}", where=where, hint="one JSON value a line") from None
    return found
