"""Times as people type and read them: "1h" ago or ISO 8601 in, "3m" ago and "1.2s" out."""

from __future__ import annotations

import datetime

import typer

from headway.domain.units import duration_text, seconds
from headway.errors import InvalidInput


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def moment(text: str | None, option: str) -> str | None:
    """ISO 8601 of a moment given as such, or as a duration before now."""
    if text is None:
        return None
    try:
        return (now() - datetime.timedelta(seconds=seconds(text, option))).isoformat()
    except InvalidInput:
        pass  # not a duration: a moment, then
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        hint = 'write how long ago ("90s", "1h30m", "2d") or ISO 8601 ("2026-11-15T03:00:00+00:00")'
        raise typer.BadParameter(f"{text!r} is no time: {hint}", param_hint=option) from None
    return (found if found.tzinfo else found.astimezone()).isoformat()


def duration(text: str, option: str) -> float:
    """Seconds of a duration."""
    try:
        return seconds(text, option)
    except InvalidInput as error:
        raise typer.BadParameter(f"{text!r} is not a duration: {error.hint}", param_hint=option) from None


def ago(at: datetime.datetime | None) -> str:
    """How long ago, in one short word."""
    return "" if at is None else brief((now() - at).total_seconds())


def took(start: datetime.datetime | None, end: datetime.datetime | None) -> str:
    """How long from start to end, or to now while it goes on."""
    return "" if start is None else brief(((end or now()) - start).total_seconds())


def brief(length: float) -> str:
    """A duration for a column: whole milliseconds, never negative though clocks differ."""
    length = max(length, 0.0)
    return f"{length * 1000:.0f}ms" if length < 1 else duration_text(length)


def when(at: datetime.datetime | None) -> str | None:
    """A moment in local time with how long ago it was."""
    if at is None:
        return None
    local = at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{local}  ({ago(at)} ago)" if at <= now() else f"{local}  (in {duration_text((at - now()).total_seconds())})"
