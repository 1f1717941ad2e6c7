"""Tasks that become many while the tree runs: one for each item of a list, or of another task's result (C1).

Such a task stands in the graph like any other, and never runs itself. It is held back by one thing more than its edges say; when
only this hold is left, a durable mark says that it is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.domain.lifecycle import State
from headway.store.database import Connection
from headway.store.queries import query

if TYPE_CHECKING:
    from headway.control.settle import Effects

_DUE = query("fanout.due")
_BLOCKED = int(State.BLOCKED)  # enums are slow to compare


def is_due(state: int | None, cap_ms: int, blocked_on: int) -> bool:
    """Whether only the hold keeps back a task that was counted down. One that never runs has no cap."""
    return state == _BLOCKED and cap_ms == 0 and blocked_on == 1


async def note_due(connection: Connection, due: list[int], effects: Effects) -> None:
    """Mark those that only the hold keeps back."""
    if due:
        await connection.execute(_DUE, due)
        effects.deferred = True
