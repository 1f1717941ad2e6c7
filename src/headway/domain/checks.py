"""Checks of what many things have: names, labels, idempotency keys, interpreters."""

from __future__ import annotations

import re

from headway.domain.resources import LABEL_LIMIT
from headway.errors import InvalidInput

NAME_LIMIT = 200
KEY_LIMIT = 200
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
DEEPEST = 500  # a half of what can be read: whoever reads it again may have begun deeper in Python's stack
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{])|[\]}]')


def is_name(name: str) -> bool:
    return bool(name) and len(name) <= NAME_LIMIT and CONTROL.search(name) is None


def check_name(name: str, field: str = "name") -> None:
    if not is_name(name):
        raise InvalidInput(
            f"{field}: {name[:40]!r} is not a name", field=field, hint=f"1 to {NAME_LIMIT} characters, no control characters"
        )


def check_labels(labels: dict[str, str], field: str = "labels") -> None:
    if len(labels) > LABEL_LIMIT:
        raise InvalidInput(f"{field}: {len(labels)} labels are too many", field=field, hint=f"at most {LABEL_LIMIT}")
    for key, value in labels.items():
        check_name(key, f"{field}.{key[:40]}")
        if len(value) > NAME_LIMIT or CONTROL.search(value):
            raise InvalidInput(
                f"{field}.{key}: the value is not valid",
                field=f"{field}.{key}",
                hint="at most 200 characters, no control characters",
            )


def check_key(key: str) -> None:
    if not key or len(key) > KEY_LIMIT or CONTROL.search(key):
        raise InvalidInput(
            "idempotency_key is not valid", field="idempotency_key", hint=f"1 to {KEY_LIMIT} characters, no control characters"
        )


def check_interpreter(interpreter: str | None, field: str) -> None:
    if interpreter is not None and not interpreter.split():
        raise InvalidInput(
            f"{field}: the interpreter is empty", field=field, hint="for example python or perl; leave it out to go by the file's suffix"
        )


def check_nesting(body: bytes, field: str) -> None:
    """A JSON text that is kept, to be read again and again."""
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    depth = 0
    for found in _BRACKETS.finditer(body):
        if found[1]:
            depth += 1
            if depth > DEEPEST:
                raise InvalidInput(f"{field}: it is nested too deeply", field=field, hint=f"at most {DEEPEST} levels")
        elif found[0][:1] != b'"':
            depth -= 1
