"""What any call may answer: how much it changed, or what went wrong."""

from __future__ import annotations

import msgspec


class Changed(msgspec.Struct):
    """The answer to bulk actions."""

    changed: int
    ids: list[str] = []


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None
    field: str | None = None
    retry_after: float | None = None
    instance: str | None = None
