"""Options that become parts of a task: K=V pairs, JSON values and @files."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """["k=v", ...] as a mapping."""
    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint=option)
        found[key] = value
    return found
