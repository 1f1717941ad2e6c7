"""Nice values: the supervisor has a better one, where it may, and what it starts has that of whoever started the agent.

An agent under `nice` has tasks that give way too. One that was made more important is so by itself: its tasks are as important as any.
"""

from __future__ import annotations

import contextlib
import os

PROMPT = -10  # a node full of busy tasks must still answer
TOLD = "HEADWAY_AGENT_NICE"  # what is usual, from one process of an agent to the next: who starts that may be `prompt`
USUAL = int(os.environ.get(TOLD) or max(os.getpriority(os.PRIO_PROCESS, 0), 0))  # else as this process began, before it is `prompt`


def be_prompt() -> None:
    """This thread, where it may."""
    _be(PROMPT)


def be_usual() -> None:
    """This thread, and what it starts. Whoever was made less important meanwhile may not be better than that, and stays so."""
    _be(USUAL)


def as_usual(words: list[str]) -> list[str]:
    """A command line by which this thread starts a program that is not prompt."""
    less = USUAL - os.getpriority(os.PRIO_PROCESS, 0)
    return ["nice", "-n", str(less), *words] if less > 0 else words


def _be(value: int) -> None:
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, value)  # Linux: of the thread that asks
