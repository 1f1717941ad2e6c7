"""What the decoder says of a value of the wrong kind, in our own words: which field, what was expected, what is given (A8).

    Expected `int | null`, got `str` - at `$.retry.node_losses`
    retry.node_losses: expected a whole number, here is the text 'three'

Every request, edit and option that is decoded passes here; task files say the same with a line and a column (treefile).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from headway.domain.content import ArchiveSpec
from headway.domain.fanout import ResultOf
from headway.domain.notify import NotifySpec
from headway.domain.spec import NOT_YET, SCHEDULE_WORDS, SUPPORTED, AfterSpec, ResourcesSpec, RetrySpec
from headway.domain.stages import StageSpec
from headway.errors import InvalidInput, UnknownField

T = TypeVar("T")

KINDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "array": "a list", "object": "a mapping",
    "bool": "true or false", "datetime": "a moment (ISO 8601)", "bytes": "a text in base64", "null": "nothing",
}  # fmt: skip
SHORT = 40  # characters of a value that are repeated
_WORDS = {dict: "object", list: "array", tuple: "array", str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}
_PATH = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")
_EVERY_FIELD = SUPPORTED.union(
    *(kind.__struct_fields__ for kind in (RetrySpec, ResourcesSpec, AfterSpec, ResultOf, ArchiveSpec, NotifySpec, StageSpec))
)
_NOT_GIVEN = object()


class Complaint(NamedTuple):
    """The parts of what the decoder said."""

    path: str  # of the field, "" for the whole
    unknown: str | None  # the field there that does not exist
    missing: str | None  # the field that is not there
    expected: str | None  # in our words
    got: str | None  # in the decoder's word
    rest: str  # what else it said
    about_keys: bool = False  # of a mapping, not its values


def decoded(decode: Callable[[bytes], T], body: bytes, fields: Iterable[str] = _EVERY_FIELD, *, what: str = "the body") -> T:
    """What the bytes say, or our error."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise decode_error(error, fields, given=_anything(body), what=what) from None
    except msgspec.DecodeError as error:
        raise InvalidInput(_unreadable(str(error), body, what)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply") from None


def decode_error(
    error: msgspec.ValidationError,
    fields: Iterable[str] = _EVERY_FIELD,
    *,
    given: Any = _NOT_GIVEN,
    field: str = "",
    what: str = "it",
) -> InvalidInput:
    """Our error for the decoder's. `given` is what was decoded, and `field` where it stands in something larger."""
    said = read(str(error))
    if said.unknown is not None:
        return _no_such_field(_joined(field, said.path), said.unknown, fields)
    if said.missing is not None:
        full = _joined(field, said.path, said.missing)
        return InvalidInput(f"{full}: it is needed, and not given", field=full)
    steps, value = _look(given, said)
    full = _joined(field, steps)
    if said.expected is None:
        return InvalidInput(f"{full or what}: {said.rest}", field=full or None)
    here = describe(value) if value is not _NOT_GIVEN else KINDS.get(said.got or "", "something else")
    if not full:
        return InvalidInput(f"{what} is {here}, expected {said.expected}")
    return InvalidInput(f"{full}: expected {said.expected}, here is {here}", field=full)


def read(complaint: str) -> Complaint:
    """The decoder's sentence, taken apart."""
    place = _PATH.search(complaint)
    about_keys = bool(place and place[1])
    path = place[2].lstrip(".") if place else ""
    text = complaint[: place.start()] if place else complaint
    if found := re.fullmatch(r"Object contains unknown field `([^`]*)`", text):
        return Complaint(path, found[1], None, None, None, text)
    if found := re.fullmatch(r"Object missing required field `([^`]*)`", text):
        return Complaint(path, None, found[1], None, None, text)
    if found := re.fullmatch(r"Expected `([^`]*)`(?:, got `([^`]*)`)?(.*)", text):
        expected = _kinds(found[1]) + found[3] + (" as each key" if about_keys else "")
        return Complaint(path, None, None, expected, found[2], text, about_keys)
    return Complaint(path, None, None, None, None, text[:1].lower() + text[1:], about_keys)


def describe(value: Any) -> str:
    """A value in an error message: what stands there instead."""
    if value is None:
        return KINDS["null"]
    if isinstance(value, dict | list | tuple):
        return KINDS["object" if isinstance(value, dict) else "array"]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text = str(value)
        return text if len(text) <= SHORT else f"{text[:SHORT]}…"
    if isinstance(value, str):
        return f"the text {value if len(value) <= SHORT else value[: SHORT - 3] + '...'!r}"
    return f"a {type(value).__name__}"


def _kinds(union: str) -> str:
    words = [word for word in union.split(" | ") if word != "null"] or ["null"]
    if "float" in words:
        words = [word for word in words if word != "int"]
    return " or ".join(KINDS.get(word, word) for word in words)


def _no_such_field(path: str, name: str, fields: Iterable[str]) -> UnknownField:
    full = _joined(path, name)
    if name in SCHEDULE_WORDS:
        where = "PUT /v1/schedules/NAME, `headway apply FILE`, or Client.apply() keep a schedule with its task"
        return UnknownField(f"{full}: a task by itself runs once", field=full, hint=where)
    if name in NOT_YET:
        return UnknownField(f"{full}: this version of Headway does not support `{name}` yet", field=full)
    known = {*fields, *_EVERY_FIELD} if path else set(fields)  # below the top it is part of a task
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    hint = f"did you mean `{near[0]}`?" if near else None
    return UnknownField(f"{full}: there is no field `{name}`", field=full, hint=hint)


def _look(given: Any, said: Complaint) -> tuple[str, Any]:
    """The path and the value there. The decoder does not say which value of a mapping it means: the first of the kind it got."""
    at, value = "", given
    for name, number in _STEP.findall(f".{said.path}" if said.path and said.path[0] != "[" else said.path):
        if number == "...":
            key = _first_of_kind(value, said.got)
            at, value = (at, _NOT_GIVEN) if key is None else (_joined(at, key), value[key])
        elif number:
            at, value = f"{at}[{number}]", _item(value, list | tuple, int(number))
        else:
            at, value = _joined(at, name), _item(value, dict, name)
    return at, _NOT_GIVEN if said.about_keys else value


def _item(value: Any, kind: Any, key: Any) -> Any:
    try:
        return value[key] if isinstance(value, kind) else _NOT_GIVEN
    except LookupError:
        return _NOT_GIVEN


def _first_of_kind(value: Any, word: str | None) -> str | None:
    if not isinstance(value, dict):
        return None
    return next((str(key) for key, item in value.items() if isinstance(key, str) and _WORDS.get(type(item)) == word), None)


def _joined(*parts: str) -> str:
    return "".join(part if part.startswith("[") else f".{part}" for part in parts if part).removeprefix(".")


def _anything(body: bytes) -> Any:
    """What a JSON body says, to show the value that was refused."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NOT_GIVEN  # MessagePack, or many lines


def _unreadable(complaint: str, body: bytes, what: str) -> str:
    if not body.strip():
        return f"{what} is empty"
    if complaint == "Input data was truncated":
        return f"{what} ends too early: a bracket or a quote is not closed"
    form, _, reason = complaint.partition(" is malformed: ")
    return f"{what} is not {form.removesuffix(' data')}: {reason}" if reason else f"{what}: {complaint}"
