"""Problem answers (RFC 9457) back into the exceptions of headway.errors, by their stable code."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from headway import errors
from headway.errors import HeadwayError
from headway.wire.http import Response

KINDS: dict[str, type[HeadwayError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HeadwayError) and kind.__module__ == errors.__name__
}

# For answers that are not Headway's own: a proxy in between, or something else listening there.
_BY_STATUS: dict[int, type[HeadwayError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    429: errors.LimitExceeded,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
_STANDARD = frozenset({"type", "title", "status", "code", "detail", "hint", "instance"})


def error_from(response: Response) -> HeadwayError:
    """The exception behind an answer of 400 and above."""
    problem = _problem(response)
    kind = KINDS.get(str(problem.get("code"))) or _BY_STATUS.get(response.status, HeadwayError)
    detail = str(problem.get("detail") or problem.get("title") or f"the server answered {response.status}")
    extra = {name: value for name, value in problem.items() if name not in _STANDARD}
    if "retry-after" in response.headers:
        extra.setdefault("retry_after", _seconds(response.headers["retry-after"]))
    if kind is errors.LimitExceeded:
        extra.setdefault("retry_after", 1.0)
    return _make(kind, detail, problem.get("hint"), extra)


def _make(kind: type[HeadwayError], detail: str, hint: str | None, extra: dict[str, Any]) -> HeadwayError:
    """Each exception takes what its constructor names; the rest of the answer stays at hand in `extra`."""
    accepted = inspect.signature(kind).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    given = extra if takes_all else {name: value for name, value in extra.items() if name in accepted}
    error = kind(detail, hint=hint, **given)
    error.extra = {**extra, **error.extra}
    return error


def _problem(response: Response) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        found = None
    if isinstance(found, dict):
        return found
    words = response.body[:200].decode("utf-8", "replace").strip()
    return {"detail": f"the server answered {response.status}{': ' if words else ''}{words}"}


def _seconds(text: str) -> float:
    """Retry-After as a number; its other form, a date, is rare enough to be taken as one second."""
    return float(text) if text.replace(".", "", 1).isdigit() else 1.0
