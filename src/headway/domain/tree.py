"""What is said about a tree as a whole."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from headway.errors import InvalidInput

EAGER, STRICT = "eager", "strict"


def check_levels(word: str) -> bool:
    """Whether levels are barriers."""
    if word not in (EAGER, STRICT):
        near = difflib.get_close_matches(word[:40], (EAGER, STRICT), n=1)
        raise InvalidInput(
            f"levels: {word[:40]!r} is unknown" + (f", did you mean {near[0]!r}?" if near else ""),
            field="levels",
            hint="eager (a task starts when its own dependencies are done) or strict (when the whole level below is)",
        )
    return word == STRICT


def runs(tasks: Iterable[tuple[int, int]]) -> tuple[list[int], list[int], list[int]]:
    """Tasks as (id, level), in the order of their ids: the level, the first and the last id of each run of neighbours on one level."""
    levels: list[int] = []
    firsts: list[int] = []
    lasts: list[int] = []
    level, last = -1, -2
    for task, here in tasks:
        if task != last + 1 or here != level:
            if level >= 0:
                lasts.append(last)
            levels.append(here)
            firsts.append(task)
            level = here
        last = task
    if level >= 0:
        lasts.append(last)
    return levels, firsts, lasts
