"""Says once why work that is followed does not begin, in the words of `explain` (E8): no node, a paused queue, no room."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.cli.session import Server

FIRST_S = 5.0  # most work begins within this; who waits longer wants to know why
LONGEST_S = 60.0  # between two questions: many may wait for hours, for tasks that run
WAITS = ("blocked", "scheduled", "ready", "paused")


class Doubt:
    """Asks about a task that does not begin, now and then, until there is something to say."""

    def __init__(self, server: Server, say: Callable[[str], None]) -> None:
        self._server, self._say = server, say
        self._told = server.inside is not None  # a task may not ask, and its subtasks wait their turn
        self._pause = FIRST_S
        self._next = time.monotonic() + FIRST_S

    @property
    def patience_s(self) -> float | None:
        """How long until it would ask; None when it has said what there was."""
        return None if self._told else max(self._next - time.monotonic(), 0.0)

    async def about(self, task_id: str | None) -> None:
        """`task_id` is one that has not begun; None when there is none."""
        if task_id is None or self._told or time.monotonic() < self._next:
            return
        from headway.cli.session import task_path
        from headway.wire.views.explanations import Explanation

        self._pause = min(2 * self._pause, LONGEST_S)
        self._next = time.monotonic() + self._pause
        try:
            found = await self._server.get(task_path(task_id, "explain"), Explanation)
        except HeadwayError:
            return  # who follows the work goes on without this; a server that is away is noticed by its own questions
        if found.state not in WAITS or not found.reasons:
            return
        why = found.reasons[0]
        self._told = True
        self._say(f"headway: task {task_id} waits: {why.text}")
        self._say(f"  hint: {why.remedy or 'it begins by itself'} (`headway explain {task_id}` tells more)")
