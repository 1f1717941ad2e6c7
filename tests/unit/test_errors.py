"""Errors as values: each can be told with its place in a request."""

from __future__ import annotations

import inspect
import pickle

import pytest

from headway import errors
from headway.errors import HeadwayError, InvalidInput, LimitExceeded, Unavailable

EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HeadwayError)]


def made(kind: type[HeadwayError]) -> HeadwayError:
    needed = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return kind(**{name: "it is wrong" if name == "detail" else 2.0 for name in needed})


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_can_be_placed_in_a_request(kind: type[HeadwayError]) -> None:
    """A database that went away while the third of a bulk was read answered 500: the error could not be built again with its place."""
    error = made(kind)
    placed = error.at("task", 3)
    assert type(placed) is kind
    if kind is Unavailable:
        assert placed is error
    else:
        assert placed.detail == f"task 3: {error.detail}"
        assert str(placed) == f"task 3: {error}"
        assert placed.extra == {**error.extra, "task": 3}
        assert "task" not in error.extra


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_error_passes_through_a_pickle(kind: type[HeadwayError]) -> None:
    """In a pool of processes an error that cannot be read back breaks the pool."""
    error = made(kind)
    error.add_note("on node a")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


def test_what_an_error_carries_goes_with_it() -> None:
    placed = InvalidInput("not a number", field="cpus", hint="write 0.5").at("line", 2)
    assert (placed.field, placed.hint, placed.extra) == ("cpus", "write 0.5", {"field": "cpus", "line": 2})
    assert LimitExceeded("too many", retry_after=7.0).at("task", 0).retry_after == 7.0


def test_a_limit_says_how_long_to_wait() -> None:
    assert str(LimitExceeded("too many", retry_after=7.0)) == "too many (try again in 7 s)"
    soon = LimitExceeded("too many", retry_after=0.123, hint="nothing was stored")
    assert str(soon) == "too many (try again in 0.2 s; nothing was stored)"
