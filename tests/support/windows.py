"""Whether a rate limit held in every window of time, from what those who asked saw."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple


class Taken(NamedTuple):
    """One token: it was taken at some moment between the question and its answer."""

    asked: float
    answered: float


def assert_within(taken: Iterable[Taken], *, rate: float, burst: float) -> None:
    """What was asked for and answered within a window was taken in it, however slow the machine was."""
    answers: list[float] = []
    for asked, answered in sorted(taken, reverse=True):
        insort(answers, answered)
        for count, end in enumerate(answers, 1):
            assert count <= burst + rate * (end - asked), f"{count} in {end - asked:.3f} s"
