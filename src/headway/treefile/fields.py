"""The fields of one task: from entries of a mapping to a checked TaskSpec.

The rules themselves are in domain.define; this module finds the line a complaint belongs to and says it in the words of
the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as AnyMapping
from typing import Any, NoReturn

import msgspec

from headway.domain.checks import check_key, check_labels, check_name
from headway.domain.define import define
from headway.domain.fanout import ResultOf, fan_of
from headway.domain.notify import NotifySpec
from headway.domain.spec import MAX_INPUT, AfterSpec, ResourcesSpec, RetrySpec, TaskSpec, raw_input
from headway.domain.stages import StageSpec
from headway.domain.task import Edge, When
from headway.domain.tenant import ANYWHERE
from headway.domain.units import at_seconds
from headway.domain.wrong_kind import read
from headway.errors import InvalidInput, UnknownField
from headway.treefile.document import Entry, Listing, Mapping, Mark, Node, Scalar
from headway.treefile.values import Reader, describe, did_you_mean, is_nothing

RUNS = ("command", "executable", "function", "image", "stages")  # a task has exactly one of them
FIELDS = frozenset(TaskSpec.__struct_fields__) - {"after"}
DEFAULTABLE = FIELDS - {"name", "input", "at", "idempotency_key", "for_each", *RUNS}
_MERGED = ("env", "labels", "retry", "resources")  # a task adds to its defaults here; elsewhere it replaces them
_TEXTS = (
    "name", "executable", "function", "interpreter", "workdir", "codec", "category", "idempotency_key", "image", "checksum", "logger",
    "prepare", "commands", "queue", "off_peak", "on_max_wait", "on_late",
)  # fmt: skip
_NESTED: dict[str, type[msgspec.Struct]] = {
    "retry": RetrySpec, "resources": ResourcesSpec, "notify": NotifySpec, "for_each": ResultOf, "stages": StageSpec,
}  # fmt: skip


def with_defaults(own: AnyMapping[str, Entry], defaults: AnyMapping[str, Entry]) -> dict[str, Entry]:
    """A task's entries over the defaults of its tree."""
    found = dict(defaults)
    for name, entry in own.items():
        base = found.get(name)
        if base and name in _MERGED and isinstance(base.value, Mapping) and isinstance(entry.value, Mapping):
            entry = Entry(entry.key, Mapping(entry.value.mark, {**base.value.entries, **entry.value.entries}))
        found[name] = entry
    return found


def read_spec(reader: Reader, entries: AnyMapping[str, Entry], mark: Mark) -> TaskSpec:
    """The task that these fields describe, checked as the server would check it."""
    reader.in_each = "for_each" in entries
    values: dict[str, Any] = {}
    for name, entry in entries.items():
        if name == "input":
            continue
        if is_nothing(entry.value):
            reader.fail(entry.key.mark, f"{name} has no value", hint="give one, or remove the line")
        values[name] = _value(reader, name, entry.value)
    try:
        spec = msgspec.convert(values, TaskSpec)
    except msgspec.ValidationError as error:
        _wrong_type(reader, str(error), entries, mark)
    if "input" in entries:
        spec.input = _input(reader, entries["input"])
    _check(reader, spec, entries, mark)
    return spec


def read_after(reader: Reader, node: Node) -> list[tuple[Edge, Mark]]:
    """`after: a`, `after: [a, b]`, `after: [{task: b, when: failed}]`."""
    found = []
    for item in node.items if isinstance(node, Listing) else [node]:
        if isinstance(item, Mapping):
            found.append((_edge(reader, item), item.mark))
            continue
        value = reader.value(item)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            reader.fail(item.mark, f"after: expected the name of a task, here is {describe(item)}")
        found.append((Edge(value), item.mark))
    return found


def _edge(reader: Reader, item: Mapping) -> Edge:
    for name, entry in item.entries.items():
        if name not in AfterSpec.__struct_fields__:
            near = did_you_mean(name, AfterSpec.__struct_fields__)
            reader.fail(
                entry.key.mark,
                f"after: unknown keyword {name!r}{near}",
                kind=UnknownField,
                hint="write {task: NAME, when: failed}",
            )
    if "task" not in item.entries:
        reader.fail(item.mark, "after: the name of the task is missing", hint="write {task: NAME, when: failed}")
    task = reader.text(item.entries["task"].value, "after: task")
    if "when" not in item.entries:
        return Edge(task)
    node = item.entries["when"].value
    word = reader.text(node, "after: when")
    if word.upper() not in When.__members__:
        near = did_you_mean(word, ("succeeded", "done", "failed"))
        reader.fail(node.mark, f"after: when: {word!r} is unknown{near}", hint="succeeded, done or failed")
    return Edge(task, When[word.upper()])


def _value(reader: Reader, name: str, node: Node) -> Any:
    """A field's value; what can only be a text is taken as it was written, so that `args: [1.10]` stays 1.10."""
    if isinstance(node, Mapping) and name in FIELDS - {"env", "labels"} and any(run in node.entries for run in RUNS):
        reader.fail(node.mark, f"{name!r} is a keyword and cannot name a subtask", hint="choose another name")
    if isinstance(node, Scalar) and (name in _TEXTS or name == "command"):
        return reader.text(node, name)
    if name in ("command", "args", "commands", "prepare", "volumes", "secrets") and isinstance(node, Listing):
        return [reader.text(item, f"{name}[{number}]") for number, item in enumerate(node.items)]
    if name in ("env", "labels"):
        return _texts(reader, name, node)
    if name == "stages" and isinstance(node, Listing):
        return [_stage(reader, number, item) for number, item in enumerate(node.items)]
    if name == "resources" and isinstance(node, Mapping) and "labels" in node.entries:
        rest = Mapping(node.mark, {key: entry for key, entry in node.entries.items() if key != "labels"})
        return {**reader.value(rest), "labels": _texts(reader, "resources.labels", node.entries["labels"].value)}
    if name in _NESTED and isinstance(node, Mapping):
        for key, entry in node.entries.items():
            if is_nothing(entry.value):
                reader.fail(entry.key.mark, f"{name}.{key} has no value", hint="give one, or remove it")
    return reader.value(node)


def _stage(reader: Reader, number: int, node: Node) -> Any:
    if not isinstance(node, Mapping):
        return reader.text(node, f"stages[{number}]")
    for key, entry in node.entries.items():
        if key not in StageSpec.__struct_fields__:
            near = did_you_mean(key, StageSpec.__struct_fields__)
            reader.fail(entry.key.mark, f"unknown keyword {key!r} in stages[{number}]{near}", kind=UnknownField, field="stages")
    return {key: _value(reader, key, entry.value) for key, entry in node.entries.items()}


def _texts(reader: Reader, name: str, node: Node) -> dict[str, str]:
    mapping = reader.mapping(node, name)
    return {key: reader.text(entry.value, f"{name}.{key}") for key, entry in mapping.entries.items()}


def _input(reader: Reader, entry: Entry) -> msgspec.Raw:
    raw = raw_input(reader.value(entry.value))
    if (size := len(memoryview(raw))) > MAX_INPUT:
        reader.fail(entry.key.mark, f"input: {size} bytes are too many", hint=f"at most {MAX_INPUT}")
    return raw


def _check(reader: Reader, spec: TaskSpec, entries: AnyMapping[str, Entry], mark: Mark) -> None:
    try:
        define(spec, ANYWHERE)
        if spec.for_each is not None:
            fan_of(spec.for_each, spec.command)
        check_labels(spec.labels)
        if spec.name is not None:
            check_name(spec.name)
        if spec.idempotency_key is not None:
            check_key(spec.idempotency_key)
        if spec.at is not None:
            at_seconds(spec.at)
    except InvalidInput as error:
        at = locate(entries, error.field or "", mark)
        reader.fail(at, error.detail, kind=type(error), hint=error.hint, field=error.field)


def _wrong_type(reader: Reader, complaint: str, entries: AnyMapping[str, Entry], mark: Mark) -> NoReturn:
    """The decoder's "Expected `int`, got `str` - at `$.attempts`" with a line, a column and plain words."""
    said = read(complaint)
    path = said.path
    if said.unknown is not None:
        nested = _NESTED.get(path)
        near = did_you_mean(said.unknown, nested.__struct_fields__ if nested else FIELDS)
        key = locate(entries, f"{path}.{said.unknown}", mark, key=True)
        reader.fail(key, f"unknown keyword {said.unknown!r} in {path}{near}", kind=UnknownField, field=f"{path}.{said.unknown}")
    at = locate(entries, path, mark)
    if said.missing is not None:
        reader.fail(at, f"{path}: {said.missing} is missing", field=f"{path}.{said.missing}")
    node = _node(entries, path)
    words = said.rest if said.expected is None else f"expected {said.expected}"
    reader.fail(at, f"{path}: {words}, here is {describe(node)}" if node else f"{path}: {words}", field=path)


def locate(entries: AnyMapping[str, Entry], path: str, mark: Mark, *, key: bool = False) -> Mark:
    """Where a field path such as `retry.backoff` stands; the nearest outer place that exists."""
    for part in _parts(path):
        entry = entries.get(part)
        if entry is None:
            break
        mark = entry.key.mark if key else entry.value.mark
        entries = entry.value.entries if isinstance(entry.value, Mapping) else {}
    return mark


def _node(entries: AnyMapping[str, Entry], path: str) -> Node | None:
    node: Node | None = None
    for part in _parts(path):
        if part not in entries:
            return node
        node = entries[part].value
        entries = node.entries if isinstance(node, Mapping) else {}
    return node


def _parts(path: str) -> list[str]:
    return [part for part in re.split(r"\.|\[.*", path) if part]
