"""What `doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Check:
    """One line of the report."""

    name: str
    state: str  # ok | warn | fail
    found: str
    todo: str = ""
