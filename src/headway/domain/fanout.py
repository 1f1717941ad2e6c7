"""`for_each`: one task said once, run for each item of a list (C1).

    for_each: [64, 256, 1024]            the list itself
    for_each: {result_of: list_files}    the result of a task it waits for, known only when that has ended

Each item is the input of its task, unless the task says where it goes: `${item}`, `${item.key}` and `${index}` are put into
`args`, `env`, `input`, and the words of a `command` given as a list.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headway.errors import InvalidInput

MOST_ITEMS = 100_000
MOST_DIFFERENT = 1_000  # tasks whose words differ are stored one by one
DEEPEST = 100  # of an input that items are put into: each level takes of the stack
_PLACE = re.compile(r"\$\{(item|index)((?:\.[A-Za-z_][\w-]*)*)\}")
_ANY_PLACE = re.compile(rb"\$\{(?:item|index)(?:\.[A-Za-z_][\w-]*)*\}")


class ResultOf(msgspec.Struct, forbid_unknown_fields=True):
    """The list is the result of another task."""

    result_of: str | int


class Fan(msgspec.Struct, frozen=True):
    """What a task that stands for many is made of: the items, or whose result they are."""

    items: bytes | None = None
    source: str | int | None = None
    count: int = 0  # of the items, as far as they are known


ForEach = list[Any] | ResultOf


def fan_of(asked: ForEach, command: list[str] | str | None) -> Fan:
    """The fan behind a `for_each`, checked."""
    if isinstance(command, str) and _PLACE.search(command):
        raise InvalidInput(
            "command: ${item} inside a shell's line would let an item be a command of its own",
            field="command",
            hint='give it by env: {ITEM: "${item}"} and write "$ITEM", or give the command as a list',
        )
    if isinstance(asked, ResultOf):
        return Fan(source=asked.result_of)
    check_count(len(asked))
    return Fan(items=_encoded(asked, "for_each: the list"), count=len(asked))


def check_count(count: int) -> None:
    if count > MOST_ITEMS:
        raise InvalidInput(f"for_each: {count} items are too many", field="for_each", hint=f"at most {MOST_ITEMS}")


def check_template(template: bytes) -> None:
    """Refuse an input that items could not be put into, before there are any."""
    if not _ANY_PLACE.search(template):
        return
    within = [_decoded(template, "input: it", "input")]
    for _ in range(DEEPEST + 1):
        lists = [value.values() if isinstance(value, dict) else value for value in within if isinstance(value, list | dict)]
        within = [each for values in lists for each in values]
    if within:
        raise InvalidInput(f"input: it is nested too deeply, at most {DEEPEST} levels where items are put into it", field="input")


def items_of(data: bytes | None) -> list[Any]:
    """The items in a result, or an error that says what is there instead."""
    value = _decoded(data, "for_each: the result", "for_each") if data else None
    if not isinstance(value, list):
        kind = {dict: "an object", str: "a text", type(None): "nothing", bool: "true or false"}.get(type(value), "a number")
        raise InvalidInput(f"for_each: the result is {kind}, not a list", field="for_each", hint="let that task result in a list")
    check_count(len(value))
    return value


def has_place(texts: Any) -> bool:
    """Whether an item goes somewhere into these words."""
    return any(_PLACE.search(text) for text in texts)


def fill(text: str, item: Any, index: int) -> str:
    """A text with its places filled; what is no text goes in as JSON."""

    def put(found: re.Match[str]) -> str:
        if found[1] == "index":
            return str(index)
        value = item
        for key in found[2].split(".")[1:]:
            if not isinstance(value, dict) or key not in value:
                raise InvalidInput(f"for_each: item {index} has no {key!r}", field="for_each", hint=f"for {found[0]}")
            value = value[key]
        return value if isinstance(value, str) else _encoded(value, f"for_each: item {index}").decode()

    return _PLACE.sub(put, text)


def input_of(template: bytes, item: Any, index: int) -> bytes:
    """The input for one item: the item, unless the task has an input of its own."""
    what = f"for_each: the input for item {index}"
    if not template or template == b"null":
        return _encoded(item, what)
    if not _ANY_PLACE.search(template):
        return template
    words = _decoded(template, "for_each: the input", "for_each")
    try:
        filled = _filled(words, item, index)
    except RecursionError:
        raise _too_deep(what, "for_each") from None
    return _encoded(filled, what)


def _filled(value: Any, item: Any, index: int) -> Any:
    if isinstance(value, str):
        if value == "${item}":
            return item  # alone, it keeps its type
        return index if value == "${index}" else fill(value, item, index)
    if isinstance(value, list):
        return [_filled(each, item, index) for each in value]
    if isinstance(value, dict):
        return {key: _filled(each, item, index) for key, each in value.items()}
    return value


def _decoded(data: bytes, what: str, field: str) -> Any:
    """JSON that a task or a user made: it may be anything."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep(what, field) from None
    except ValueError as error:
        raise InvalidInput(f"{what} cannot be read: {error}", field=field) from None


def _encoded(value: Any, what: str) -> bytes:
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        raise _too_deep(what, "for_each") from None
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{what} cannot be written: {error}", field="for_each") from None


def _too_deep(what: str, field: str) -> InvalidInput:
    return InvalidInput(f"{what} is nested too deeply", field=field)
