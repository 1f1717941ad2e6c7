"""The one module of this package that touches the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

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
        if spec.executable and "://" not in spec.executable:
            spec.executable = os.path.normpath(folder / spec.executable)
            if not os.path.exists(spec.executable):  # it may be on the nodes all the same: a note, not an error
                tree.warnings.append(f"{source}:{task.line}:{task.column}: {spec.executable} is not on this machine")
        if spec.workdir:
            spec.workdir = os.path.normpath(folder / spec.workdir)
        if spec.function and spec.function.partition(":")[0].endswith(".py"):
            module, _, name = spec.function.partition(":")
            spec.function = f"{os.path.normpath(folder / module)}:{name}"
