"""The results of the tasks that the running one waited for: from its order in a warm runner, from a file elsewhere."""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from headway.wire.exchange import Dependencies


def read(order: Callable[[], bytes | None] | None) -> dict[str, Any]:
    """By name. A task that did not ask for them is told how to."""
    if order is None:
        return _from_file()
    data = order()
    if data is None:
        _not_asked()
    found = msgspec.json.decode(data, type=Dependencies)
    if found.error:
        raise RuntimeError(found.error)
    return {name: _value(value, pickled=name in found.pickled) for name, value in found.results.items()}


def _from_file() -> dict[str, Any]:
    path = os.environ.get("HEADWAY_DEPENDENCIES")
    if path is None:
        _not_asked()
    with open(path, "rb") as file:
        found: dict[str, Any] = msgspec.json.decode(file.read())
    return found


def _not_asked() -> NoReturn:
    raise RuntimeError("this task did not ask for the results of its dependencies: submit it with `with_results: true`")


def _value(data: msgspec.Raw, *, pickled: bool) -> Any:
    value = msgspec.json.decode(data)
    if not pickled or value is None:
        return value
    if isinstance(value, list):  # of a `for_each`
        return [None if one is None else pickle.loads(base64.b64decode(one)) for one in value]
    return pickle.loads(base64.b64decode(value))
