"""A Python call as a task: which function, and its arguments as JSON or, when JSON would change them, as a pickle.

JSON carries None, booleans, numbers, text, lists, and mappings with text as keys, exactly. Everything else (tuples,
dates, sets, your classes) goes as a pickle, so that the function gets what the caller gave.
"""

from __future__ import annotations

import base64
import inspect
import math
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec

from headway.errors import InvalidInput

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

MAX_DEPTH = 64
SCRIPT = "headway_script_"  # runners load the script of a `__main__` function under this name and a hash of its path
_SAFE_INT = 2**63


def function_name(function: Callable[..., Any]) -> str:
    """How an agent finds the function: "module:qualname", or the script's file for a function of `__main__`."""
    qualname = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", None)
    if not qualname or not module or "<" in qualname:
        raise InvalidInput(
            f"{function!r} cannot be found by name on another machine",
            field="function",
            hint="submit a function of a module, not a lambda, an inner function or an instance",
        )
    if module.startswith(SCRIPT):  # in a runner: a script that somebody ran as `__main__`
        return f"{sys.modules[module].__file__}:{qualname}"
    if module != "__main__":
        return f"{module}:{qualname}"
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # python -m package.module
        return f"{spec.name}:{qualname}"
    file = getattr(main, "__file__", None)
    if file is None or file.startswith("<"):  # "<stdin>": a script that came through a pipe
        raise InvalidInput(
            f"{qualname} was typed into an interactive session, where no runner can find it",
            field="function",
            hint="put it into a file and import it from there; the agent finds it with --path FOLDER, or installed",
        )
    return f"{os.path.abspath(file)}:{qualname}"


def check_calls(function: Callable[..., Any], calls: Sequence[Arguments]) -> None:
    """A call that the function does not take is the TypeError of an ordinary call, here and not later on a node (A8)."""
    try:  # what a decorator of the author wraps may take other arguments than the wrapper
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions of C do not say
        return
    fine: set[int] = set()  # numbers of arguments: of a map all calls have the same
    for args, kwargs in calls:
        if kwargs or len(args) not in fine:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{getattr(function, '__name__', function)}(): {error}") from None
            fine.add(len(args))


def encode_calls(calls: Sequence[Arguments], codec: str | None = None) -> tuple[str, list[msgspec.Raw]]:
    """The codec that fits all of these calls, and each of them encoded as a task's input."""
    if codec is None:
        codec = "json" if all(_is_json(list(args)) and _is_json(dict(kwargs)) for args, kwargs in calls) else "pickle"
    encode = _as_json if codec == "json" else _as_pickle
    return codec, [encode(args, kwargs) for args, kwargs in calls]


def decode_call(raw: bytes, codec: str) -> Arguments:
    """The arguments behind a task's input: the rules of every runner, for eager() and for tests."""
    if not raw:
        return (), {}
    found = msgspec.json.decode(raw)
    if codec == "pickle":
        args, kwargs = pickle.loads(base64.b64decode(found))
        return args, kwargs
    if found is None:
        return (), {}
    if isinstance(found, list):
        return tuple(found), {}
    if isinstance(found, dict):
        if found.keys() <= {"*", "**"} and found:
            return tuple(found.get("*", ())), found.get("**", {})
        return (), found
    return (found,), {}


def encode_result(value: Any, codec: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value)) if codec == "json" else _pickled(value)


def return_kind(function: Callable[..., Any]) -> Any:
    """The annotated type of the result, when it is more than what JSON gives anyway; None when there is none to use."""
    try:
        kind = get_type_hints(inspect.unwrap(function)).get("return")
    except (NameError, TypeError):  # an annotation that cannot be resolved here says nothing
        return None
    return None if kind in (None, type(None), Any, str, int, bool, float, list, dict) else kind


def _as_json(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> msgspec.Raw:
    if kwargs:
        return msgspec.Raw(msgspec.json.encode({"*": args, "**": kwargs} if args else {"**": kwargs}))
    return msgspec.Raw(msgspec.json.encode(args)) if args else msgspec.Raw(b"null")


def _as_pickle(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> msgspec.Raw:
    try:
        return _pickled((args, dict(kwargs)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"the arguments cannot be sent: {error}", field="input", hint="send data, not open files, locks or lambdas"
        ) from error


def _pickled(value: Any) -> msgspec.Raw:
    return msgspec.Raw(b'"' + base64.b64encode(pickle.dumps(value, protocol=5)) + b'"')


def _is_json(value: Any, depth: int = 0) -> bool:
    """Whether JSON gives back exactly this value. Subclasses (an IntEnum, a named tuple) would come back as their base,
    so only the types themselves count."""
    kind = type(value)
    if kind is str:
        return _is_unicode(value)
    if value is None or kind is bool:
        return True
    if kind is int:
        return bool(-_SAFE_INT <= value < _SAFE_INT)
    if kind is float:
        return math.isfinite(value)
    if depth > MAX_DEPTH:
        return False
    if kind is list:
        return all(_is_json(item, depth + 1) for item in value)
    if kind is dict:
        return all(type(key) is str and _is_unicode(key) and _is_json(item, depth + 1) for key, item in value.items())
    return False


def _is_unicode(text: str) -> bool:
    """No lone surrogates, which Python allows in text and JSON does not; no NUL, which PostgreSQL does not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
