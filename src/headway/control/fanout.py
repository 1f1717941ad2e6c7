"""Tasks that become many while the tree runs: one for each item of a list, or of another task's result (C1).

Such a task stands in the graph like any other, and never runs itself. It is held back by one thing more than its edges say; when
only this hold is left, a durable mark says that it is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headway.domain.lifecycle import State
from headway.store.database import Connection
from headway.store.queries import query

if TYPE_CHECKING:
    from headway.control.settle import Effects

_DUE = query("fanout.due")


async def note_due(connection: Connection, released: Iterable[Any], effects: Effects) -> None:
    """Mark those of the counted-down tasks that only the hold keeps back. A task that never runs has no cap."""
    due = [row["id"] for row in released if row["cap_ms"] == 0 and row["state"] == State.BLOCKED and row["blocked_on"] == 1]
    if due:
        await connection.execute(_DUE, due)
        effects.deferred = True
