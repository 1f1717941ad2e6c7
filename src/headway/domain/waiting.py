"""How long a task may wait (E7): `max_wait`, `on_max_wait`, `on_late`."""

from __future__ import annotations

import difflib
from typing import Protocol

import msgspec

from headway.domain import units
from headway.errors import InvalidInput

ON_MAX_WAIT = ("expire", "keep")
ON_LATE = ("warn", "refuse")


class WaitingSpec(Protocol):
    """The fields of a task this module reads."""

    max_wait: float | str | None
    on_max_wait: str
    on_late: str


class Patience(msgspec.Struct, frozen=True, omit_defaults=True):
    """`limit_ms` 0 is no limit."""

    limit_ms: int = 0
    keep: bool = False  # waits on beyond the limit, after a warning
    refuse_late: bool = False  # is refused when its start cannot be promised

    @property
    def word(self) -> str | None:
        """What it does at its limit; None without one."""
        return ON_MAX_WAIT[self.keep] if self.limit_ms else None


def patience_of(spec: WaitingSpec, default_s: float | None) -> Patience:
    """What a task says about its waiting, checked; without a limit of its own it has its tenant's."""
    limit = default_s if spec.max_wait is None else units.seconds(spec.max_wait, "max_wait")
    if limit is not None and limit <= 0:
        raise InvalidInput(f"max_wait: {spec.max_wait!r} is out of range", field="max_wait", hint='above 0, for example "10m"')
    _one_of("on_max_wait", spec.on_max_wait, ON_MAX_WAIT)
    _one_of("on_late", spec.on_late, ON_LATE)
    limit_ms = 0 if limit is None else max(1, round(limit * 1000))
    return Patience(limit_ms, limit_ms > 0 and spec.on_max_wait == "keep", spec.on_late == "refuse")


def _one_of(field: str, word: str, words: tuple[str, ...]) -> None:
    if word not in words:
        near = difflib.get_close_matches(word, words, n=1)
        hint = f"did you mean {near[0]!r}?" if near else " or ".join(words)
        raise InvalidInput(f"{field}: {word[:40]!r} is unknown", field=field, hint=hint)
