"""Nice values: the supervisor has a better one, where it may, and what it starts has that of whoever started the agent.

An agent under `nice` has tasks that give way too. One that was made more important is so by itself: its tasks are as important as any.
"""

from __future__ import annotations

import contextlib
import os

PROMPT = -10  # a node full of busy tasks must still answer
USUAL = max(os.getpriority(os.PRIO_PROCESS, 0), 0)  # as this process began, before it is `prompt`


def be_prompt() -> None:
    """This thread, where it may."""
    _be(PROMPT)


def be_usual() -> None:
    """This thread, and what it starts. Whoever was made less important meanwhile may not be better than that, and stays so."""
    _be(USUAL)


def _be(value: int) -> None:
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, value)  # Linux: of the thread that asks
