"""A task file's text to its trees: which mapping is a tree, which a task, and what the parameters are.

    parameters: {...}        of the file: all trees see them
    defaults: {...}
    x-anything: ...          never a tree: a place for anchors
    nightly:                 a tree
      task: {...}            its root
      other: {...}           further tasks, joined by `after:`

A file whose top keys are task keywords is one task, with its subtasks below it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from collections.abc import Mapping as AnyMapping

from headway.domain.checks import check_name
from headway.domain.define import define
from headway.domain.spec import KEYWORDS
from headway.domain.tenant import ANYWHERE
from headway.errors import InvalidInput, UnknownField
from headway.treefile.document import Entry, Listing, Mapping, Mark, Node, Scalar, fail, missing_space, parse
from headway.treefile.elements import check_defaults, is_tree, read_shape
from headway.treefile.joining import join
from headway.treefile.model import Tree
from headway.treefile.values import Reader, describe, did_you_mean, is_nothing, parameters_in

_OF_FILE = ("parameters", "defaults")


def load(text: str, *, source: str = "<file>", params: AnyMapping[str, str] = {}) -> list[Tree]:
    """The trees of a YAML or JSON text. Raises InvalidInput with `line`, `column` and `source` in its extra."""
    with _collector_asleep():
        return _load(text, source, params)


@contextlib.contextmanager
def _collector_asleep() -> Iterator[None]:
    """Reading makes values by the million, all of them needed: looking for garbage among them was a third of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _load(text: str, source: str, params: AnyMapping[str, str]) -> list[Tree]:
    documents = [node for node in parse(text, source) if not is_nothing(node)]
    if not documents:
        fail(source, Mark(1, 1), "the file is empty", hint="see docs/quickstart.md for a first task")
    trees: list[Tree] = []
    known: set[str] = set()
    for node in documents:
        _File(source, params, trees, known).read(node)
    for name in params:
        if name not in known:
            fail(
                source,
                Mark(1, 1),
                f"there is no parameter {name!r} in this file{did_you_mean(name, known)}",
                field=name,
            )
    return trees


class _File:
    """One document of a file."""

    def __init__(self, source: str, params: AnyMapping[str, str], trees: list[Tree], known: set[str]) -> None:
        self.source = source
        self.params = params
        self.trees = trees
        self.known = known

    def read(self, node: Node) -> None:
        reader = Reader(self.source, dict(self.params))
        if isinstance(node, Scalar) and not missing_space(node):
            reader.fail(node.mark, f"expected a tree or a task, here is {describe(node)}", hint="write `command: ...`")
        if isinstance(node, Listing):
            hint = "a JSON list of tasks (FILE.json) or one task a line (FILE.ndjson) goes to `headway submit` or `headway run`"
            reader.fail(node.mark, "expected a tree or a task, here is a list", hint=hint)
        entries = {
            name: entry for name, entry in reader.mapping(node, "the file").entries.items() if not name.startswith(("x-", "."))
        }
        reader.parameters.update(self.declared(reader, entries))
        if any(name in KEYWORDS and name not in _OF_FILE for name in entries) or not set(entries) - set(_OF_FILE):
            self.tree(reader, None, Mapping(node.mark, entries), {})
            return
        defaults = check_defaults(reader, entries["defaults"].value) if "defaults" in entries else {}
        for name, entry in entries.items():
            if name not in _OF_FILE:
                self.named_tree(reader, entry, defaults)

    def named_tree(self, outer: Reader, entry: Entry, defaults: dict[str, Entry]) -> None:
        name = entry.key.text
        if not isinstance(entry.value, Mapping):
            near = did_you_mean(name, KEYWORDS, cutoff=0.7)
            if near or (isinstance(entry.value, Scalar) and not missing_space(entry.value)):
                outer.fail(
                    entry.key.mark,
                    f"unknown keyword {name!r}{near}",
                    kind=UnknownField,
                    hint=None if near else "a tree is a mapping of tasks",
                )
        node = outer.mapping(entry.value, f"the tree {name!r}")
        reader = Reader(self.source, dict(outer.parameters))
        reader.parameters.update(self.declared(reader, node.entries))
        self.tree(reader, entry.key, node, defaults)
        self.known |= reader.used

    def tree(self, reader: Reader, key: Scalar | None, node: Mapping, defaults: dict[str, Entry]) -> None:
        mark = key.mark if key else node.mark
        shape = read_shape(reader, key.text if key else None, key, node, defaults)
        if key is None and shape.top.spec and shape.top.name is None:
            shape.top.name = define(shape.top.spec, ANYWHERE).name  # one task: it is called as it would be without a tree around it
        name = (shape.top.name if is_tree(node) or key is None else None) or (key.text if key else self.stem())
        try:
            check_name(name)
        except InvalidInput as error:
            reader.fail(mark, error.detail, hint=error.hint)
        if any(tree.name == name for tree in self.trees):
            reader.fail(mark, f"two trees are called {name!r}", hint="rename one of them")
        self.trees.append(join(reader, name, shape))
        self.known |= reader.used

    def stem(self) -> str:
        """What an unnamed tree is called: after its file."""
        return self.source.replace("\\", "/").rpartition("/")[2].partition(".")[0].strip("<>") or "task"

    def declared(self, reader: Reader, entries: AnyMapping[str, Entry]) -> dict[str, str]:
        """The parameters under `parameters:`, with what the caller gave in place of the defaults."""
        if "parameters" not in entries:
            return {}
        found = {}
        declared = reader.mapping(entries["parameters"].value, "parameters").entries
        for name, entry in declared.items():
            self.known.add(name)
            if not name.replace("-", "_").isidentifier():
                reader.fail(entry.key.mark, f"parameters: {name!r} is not a name", hint="letters, digits, '_' and '-'")
            if name in self.params:
                found[name] = self.params[name]
            elif is_nothing(entry.value):
                reader.fail(entry.key.mark, f"the parameter {name!r} has no default", hint=f"give --param {name}=VALUE")
            else:
                _refuse_siblings(reader, name, entry.value, declared)
                found[name] = reader.text(entry.value, f"parameters.{name}")
        return found


def _refuse_siblings(reader: Reader, name: str, default: Node, declared: AnyMapping[str, Entry]) -> None:
    """A default is a value, or made of parameters further out: there is no order among those of one list."""
    others = parameters_in(default) & set(declared) - set(reader.parameters)
    if others:
        reader.fail(
            default.mark,
            f"parameters.{name}: a default cannot be made of {min(others)!r}, which is declared beside it",
            hint="write the value itself, or put both into the task",
        )
