"""What to say when an id is no task's: perhaps it is a tree's (A8)."""

from __future__ import annotations

from headway.errors import NotFound
from headway.store.database import Connection
from headway.store.queries import query

_TREE = query("tree.get")


async def no_task(connection: Connection, task: int, tenant: int | None) -> NotFound:
    """The error for a task that is not there, or that the caller may not see."""
    if await connection.fetchrow(_TREE, task, tenant) is not None:
        return NotFound(f"{task} is a tree, not a task", hint=f"name one of its tasks: `headway ls --tree {task}` lists them")
    return NotFound(f"there is no task {task}")
