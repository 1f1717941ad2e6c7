"""Query parameters, checked by hand: each error names the parameter and what it takes."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Sequence
from typing import TypeVar

from headway.api.request import Http, core_of, id_of
from headway.control.core import Core
from headway.domain import units
from headway.domain.identity import MAX_ID, first_id_of
from headway.domain.lifecycle import State
from headway.domain.task import Category
from headway.domain.units import at_seconds
from headway.errors import InvalidInput, NotFound
from headway.store.listing import Filter

T = TypeVar("T")
MAX_LIMIT = 1000
LIST_PARAMETERS = ("state", "name", "label", "node", "q", "since", "until", "tree", "category", "limit", "cursor")


def filter_of(request: Http, core: Core, tenant: int | None) -> Filter:
    """The filter behind `GET /v1/tasks?...`."""
    given = request.query_params
    for name in given:
        if name not in LIST_PARAMETERS:
            near = difflib.get_close_matches(name, LIST_PARAMETERS, n=1)
            raise InvalidInput(
                f"there is no parameter {name[:40]!r}", field=name, hint=f"did you mean {near[0]!r}?" if near else None
            )
    wanted = Filter(tenant=tenant, limit=whole(request, "limit", 50, low=1, high=MAX_LIMIT))
    if states := [s for text in given.getall("state", []) for s in text.split(",") if s]:
        wanted.states = [int(_state(word)) for word in states]
    if category := given.get("category"):
        wanted.category = int(_category(category))
    wanted.name = _text(given.get("name"), "name")
    wanted.text = _text(given.get("q"), "q")
    for label in given.getall("label", []):
        key, sign, value = label.partition("=")
        if not sign:
            raise InvalidInput(f"label: {label[:40]!r} has no value", field="label", hint="write label=key=value")
        wanted.labels[_text(key, "label") or ""] = _text(value, "label") or ""
    if node := given.get("node"):
        found = core.fleet.by_name(node)
        if found is None:
            raise NotFound(f"there is no node {node[:60]!r}")
        wanted.node = found.id
    if tree := given.get("tree"):
        wanted.tree = id_of(tree, "tree")
    if cursor := given.get("cursor"):
        wanted.before = id_of(cursor, "cursor")
    if since := given.get("since"):
        wanted.after_id = _border(since, "since", core)
    if until := given.get("until"):
        wanted.below_id = _border(until, "until", core)
    return wanted


def whole(request: Http, name: str, default: int, *, low: int, high: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high):
        raise InvalidInput(f"{name}: {text[:20]!r} is out of range", field=name, hint=f"a whole number from {low} to {high}")
    return int(text)


def one_page(rows: Sequence[T], limit: int) -> tuple[Sequence[T], T | None]:
    """A page of rows of which one more than `limit` was asked for; and its last row, when there are more behind it."""
    return rows[:limit], rows[limit - 1] if len(rows) > limit else None


def seconds_of(request: Http, name: str, default: float) -> float:
    text = request.query_params.get(name)
    return default if text is None else units.seconds(text, name)


def text_of(request: Http, name: str) -> str | None:
    return _text(request.query_params.get(name), name)


def moment_of(request: Http, name: str) -> datetime.datetime | None:
    text = request.query_params.get(name)
    return None if text is None else datetime.datetime.fromtimestamp(_moment(text, name, core_of(request)), datetime.UTC)


def _border(text: str, field: str, core: Core) -> int:
    """A moment as the smallest id of that time."""
    return min(first_id_of(int(_moment(text, field, core) * 1000)), MAX_ID)


def _moment(text: str, field: str, core: Core) -> float:
    """ISO 8601, Unix seconds, or "1h" = an hour ago."""
    if text[:1].isdigit() and text[-1:] in "smhdw":
        return core.clock.now_us() / 1_000_000 - units.seconds(text, field)
    try:
        return at_seconds(float(text), field)
    except ValueError:
        return at_seconds(text.replace(" ", "+"), field)


def _state(word: str) -> State:
    try:
        return State[word.upper()]
    except KeyError:
        words = [state.word for state in State]
        near = difflib.get_close_matches(word, words, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(words)}"
        raise InvalidInput(f"state: {word[:40]!r} is unknown", field="state", hint=hint) from None


def _category(word: str) -> Category:
    try:
        return Category[word.upper()]
    except KeyError:
        raise InvalidInput(f"category: {word[:40]!r} is unknown", field="category", hint="urgent, delayable or periodic") from None


def _text(value: str | None, field: str) -> str | None:
    if value is not None and ("\x00" in value or len(value) > 1000):
        raise InvalidInput(f"{field}: not a text to search for", field=field, hint="at most 1,000 characters, no NUL")
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{field}: not valid Unicode", field=field) from None
    return value
