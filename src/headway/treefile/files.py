"""The one module of this package that touches the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.domain import languages
from headway.domain.content import UPLOAD, VOLUME, uploaded
from headway.domain.stages import StageSpec
from headway.errors import InvalidInput, NotFound
from headway.treefile.document import Mark, fail
from headway.treefile.loading import load
from headway.treefile.model import Tree


def load_file(path: str | os.PathLike[str], params: Mapping[str, str] = {}) -> list[Tree]:
    """The trees of a file. Relative paths in it are relative to its folder, whoever runs it from wherever."""
    file = Path(path)
    source = str(path)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"{source}: there is no such file") from None
    except OSError as error:
        raise InvalidInput(f"{source}: cannot be read: {error.strerror}", source=source) from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        mark = Mark(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        fail(source, mark, f"the byte 0x{data[error.start]:02x} is not UTF-8", hint="save the file as UTF-8")
    trees = load(text, source=source, params=params)
    folder = file.resolve().parent
    for tree in trees:
        _make_absolute(tree, folder, source)
    return trees


def _make_absolute(tree: Tree, folder: Path, source: str) -> None:
    for task in tree.tasks:
        spec = task.spec
        if spec.executable:
            spec.executable = _absolute(spec.executable, folder)
            if spec.executable.startswith("/") and not os.path.exists(spec.executable):  # it may be on the nodes all the same
                tree.warnings.append(f"{source}:{task.line}:{task.column}: {spec.executable} is not on this machine")
        for stage in spec.stages:
            if isinstance(stage, StageSpec) and stage.executable:
                stage.executable = _absolute(stage.executable, folder)
            if isinstance(stage, StageSpec) and stage.workdir:
                stage.workdir = os.path.normpath(folder / stage.workdir)
        spec.archives = [_absolute(item, folder) if isinstance(item, str) else item for item in spec.archives]
        spec.requires = _read_requires(spec.requires, folder, source)
        if spec.workdir:
            spec.workdir = os.path.normpath(folder / spec.workdir)
        module, _, name = (spec.function or "").partition(":")
        if languages.by_file(module) is not None:
            spec.function = f"{os.path.normpath(folder / module)}:{name}"


def _absolute(source: str, folder: Path) -> str:
    """A path as seen from the file's folder; the path inside `upload:` likewise. Everything else stays."""
    if "://" in source or source.startswith(VOLUME) or uploaded(source):
        return source
    prefix = UPLOAD if source.startswith(UPLOAD) else ""
    return prefix + os.path.normpath(folder / source.removeprefix(UPLOAD))


def _read_requires(requires: Any, folder: Path, source: str) -> Any:
    """`requires: requirements.txt` or `{npm: package-lock.json}` is the content of that file: the node need not have it."""
    if isinstance(requires, dict):
        return {name: _read_requires(value, folder, source) for name, value in requires.items()}
    if not isinstance(requires, str) or "\n" in requires or not requires.endswith((".txt", ".json")):
        return requires
    try:
        return (folder / requires).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{source}: requires: {requires} cannot be read: {error}", field="requires", source=source) from None
