"""An exception that nobody foresaw, while one task was being looked after: it is the end of that task, not of the supervisor (I1).

The supervisor is the parent of all tasks of its node. An exception that left its loop ended all of them, and the order that caused it came
again to the next one, as often as the task may lose its node.
"""

from __future__ import annotations

from headway.logs import log

LONGEST = 500  # characters of its words


def unforeseen(error: Exception, doing: str, **what: object) -> str:
    """Logs it where the operator looks; returns what to tell the owner of the task."""
    log("agent.unforeseen", level="error", exc_info=error, doing=doing, **what)
    words = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
    return f"the agent failed while {doing}: {words}"
