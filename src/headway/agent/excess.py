"""What is told of an attempt that was ended for a limit: its outcome, and used and allowed in words (G3)."""

from __future__ import annotations

from headway.domain.lifecycle import Outcome
from headway.domain.units import size_text
from headway.wire.exchange import Excess

OUTCOMES = {"memory": Outcome.OUT_OF_MEMORY, "processes": Outcome.TOO_MANY_PROCESSES, "disk": Outcome.DISK_FULL}


def said(excess: Excess) -> tuple[str, str]:
    """The type and the message of an error: what was used and what was allowed."""
    if excess.what == "memory":
        return "OutOfMemory", f"used more than the {size_text(excess.allowed)} of memory it was allowed"
    if excess.what == "processes":
        return "TooManyProcesses", f"tried to have more than the {excess.allowed:g} processes it was allowed"
    return "DiskFull", f"wrote {size_text(excess.used)} into its folder and was allowed {size_text(excess.allowed)}"
