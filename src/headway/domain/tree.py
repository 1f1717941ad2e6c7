"""What is said about a tree as a whole."""

from __future__ import annotations

import difflib

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
