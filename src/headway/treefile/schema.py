"""The JSON Schema of task files, made from the same structs that read them: editors complete and check with it."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.domain.spec import KEYWORDS, TaskSpec
from headway.domain.tree import EAGER, STRICT
from headway.treefile import schedules
from headway.treefile.elements import LISTS, OF_TREE
from headway.treefile.fields import DEFAULTABLE, RUNS

_SCALAR = {"type": ["string", "number", "boolean"]}
_TEXTS = {"type": "object", "additionalProperties": _SCALAR}
_TASK = {"$ref": "#/$defs/task"}
_ITEM = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/task"}, {"$ref": "#/$defs/named"}, {"$ref": "#/$defs/group"}]}


def schema() -> dict[str, Any]:
    """What `headway schema` prints."""
    fields, definitions = _fields()
    words = {**fields, **_structure(), **dict.fromkeys(KEYWORDS - set(fields) - set(_structure()), False)}
    tree_words = {name: words[name] for name in sorted(OF_TREE & set(words))}
    definitions |= {
        "task": _mapping(words, anyOf=[{"required": [run]} for run in RUNS]),
        "group": _mapping(tree_words, anyOf=[{"required": ["sequence"]}, {"required": ["parallel"]}]),
        "named": {"type": "object", "minProperties": 1, "maxProperties": 1, **_subtasks(words)},
        "tree": _mapping({**dict.fromkeys(KEYWORDS, False), **tree_words}),
        "any": {"anyOf": [_TASK, {"$ref": "#/$defs/group"}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headway task file",
        "description": "One task, one tree, or several trees by name.",
        "anyOf": [
            _TASK,
            {"$ref": "#/$defs/tree"},
            {
                "type": "object",
                "properties": {name: words[name] for name in ("parameters", "defaults")},
                "patternProperties": {r"^(x-|\.)": True},
                "additionalProperties": {"anyOf": [_TASK, {"$ref": "#/$defs/tree"}]},
            },
        ],
        "$defs": definitions,
    }


def _mapping(words: dict[str, Any], **rules: Any) -> dict[str, Any]:
    """Keywords with their types; every other key is a subtask."""
    return {"type": "object", "properties": words, "additionalProperties": {"$ref": "#/$defs/any"}, **rules}


def _subtasks(words: dict[str, Any]) -> dict[str, Any]:
    return {"properties": dict.fromkeys(words, False), "additionalProperties": {"$ref": "#/$defs/any"}}


def _fields() -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a task, with the shared types they refer to. Any JSON is an `input`, which a struct cannot say."""
    typed = [(f.name, f.type, None) for f in msgspec.structs.fields(TaskSpec) if f.name != "input"]
    clone = msgspec.defstruct("Task", typed)
    _, components = msgspec.json.schema_components([clone], ref_template="#/$defs/{name}")
    fields = components.pop("Task")["properties"]
    for field in fields.values():
        field.pop("default", None)  # None in the clone, not the task's default
    texts = {"env": _TEXTS, "labels": _TEXTS, "args": {"type": "array", "items": _SCALAR}}
    command = {"anyOf": [{"type": "string"}, {"type": "array", "items": _SCALAR, "minItems": 1}]}
    components["ResourcesSpec"]["properties"]["labels"] = _TEXTS
    return {**fields, **texts, "command": command, "input": True}, components


def _structure() -> dict[str, Any]:
    """The words that order tasks, and those about the whole tree."""
    items = {"type": "array", "items": _ITEM}
    named = {"type": "object", **_subtasks(dict.fromkeys(KEYWORDS, False))}
    words: dict[str, Any] = dict.fromkeys(LISTS, items)
    words["subtasks"] = {"anyOf": [items, named]}
    words["levels"] = {"enum": [EAGER, STRICT]}
    words["parameters"] = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
    words["defaults"] = {
        "type": "object",
        "properties": {name: {"$ref": f"#/$defs/task/properties/{name}"} for name in sorted(DEFAULTABLE)},
        "additionalProperties": False,
    }
    moment = {"type": ["string", "number"]}
    when = {"schedule": moment, "timezone": {"type": "string"}, "start": moment, "end": moment, "jitter": moment}
    choices = {"overlap": {"enum": list(schedules.OVERLAP)}, "misfire": {"enum": list(schedules.MISFIRE)}}
    return {**words, **when, **choices}
