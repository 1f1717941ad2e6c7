"""Trees as the API shows them: from counters, so that a tree of a million tasks costs no more than a small one."""

from __future__ import annotations

from typing import Any

from headway.api.render import error_of
from headway.control.core import Core
from headway.domain.lifecycle import State
from headway.errors import NotFound
from headway.policy import trees as policy
from headway.store.database import Connection
from headway.store.queries import query
from headway.wire.views.tasks import ProgressView
from headway.wire.views.trees import LevelView, TreeSummary, TreeTaskView, TreeView

MAX_SHOWN = 2_000
MAX_LEVELS = 500
_GET = query("tree.get")
_TASKS = query("tree.tasks")
_SUMS = query("tree.sums")
_BEGUN = query("tree.begun")
_LEVELS = query("tree.levels")
_EARLIER = query("tree.earlier")
_LOWEST = query("tree.lowest_shown")
_PROGRESS = query("output.progress_of")


async def tree_row(core: Core, tree: int, tenant: int | None) -> Any:
    """The tree, if it is the tenant's."""
    async with core.database.reads() as connection:
        row = await connection.fetchrow(_GET, tree, tenant)
    if row is None:
        raise NotFound(f"there is no tree {tree}")
    return row


async def tree_view(core: Core, tree: int, tenant: int | None) -> TreeView:
    row = await tree_row(core, tree, tenant)
    async with core.database.reads() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        sums = await connection.fetchrow(_SUMS, tree)
        begun = bool(await connection.fetchval(_BEGUN, tree))
        low = 0 if sums["levels"] <= MAX_LEVELS else max((await connection.fetchval(_LOWEST, tree)) - 5, 0)
        shown = await _levels(core, connection, row, low, MAX_LEVELS)
        tasks = await connection.fetch(_TASKS, tree, MAX_SHOWN)
        progress = {
            p["task"]: ProgressView(p["done"], p["total"], p["text"])
            for p in await connection.fetch(_PROGRESS, [t["id"] for t in tasks])
        }
    total = sums_of(sums)
    left = total.total - total.ended
    return TreeView(
        id=str(tree),
        name=row["name"],
        state=policy.state(total, begun=begun),
        created_at=row["created_at"],
        levels=shown,
        tasks=[
            TreeTaskView(
                str(t["id"]),
                t["name"],
                State(t["state"]).word,
                t["level"],
                progress.get(t["id"]),
                t["exit_code"],
                error_of(t["error"]),
            )
            for t in tasks
        ],
        total=total.total,
        left=left,
        height=sums["levels"],
        strict=row["strict"],
        ended_at=None if left else sums["last_at"],
        expected_end_at=shown[-1].expected_end_at if left and shown and low + len(shown) >= sums["levels"] else None,
    )


async def level_views(core: Core, tree: Any, first: int, limit: int) -> list[LevelView]:
    """The counters of a tree's levels from one up."""
    async with core.database.reads() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        return await _levels(core, connection, tree, first, limit)


async def _levels(core: Core, connection: Connection, tree: Any, first: int, limit: int) -> list[LevelView]:
    rows = await connection.fetch(_LEVELS, tree["id"], first, limit)
    earlier = await connection.fetch(_EARLIER, tree["tenant"], tree["name"], tree["id"], first, limit)
    before = {row["level"]: _known(row, 0) for row in earlier}
    ends = policy.expected_ends(
        [_known(row, row["left"]) for row in rows], [before.get(row["level"]) for row in rows], core.clock.now()
    )
    return [
        LevelView(
            row["level"], row["total"], row["left"], row["succeeded"], row["failed"], row["cancelled"], row["skipped"], row["spared"],
            row["expired"], row["first_at"], row["last_at"], end.replace(microsecond=0) if end and row["left"] else None,
        )
        for row, end in zip(rows, ends, strict=True)
    ]  # fmt: skip


def _known(row: Any, left: int) -> policy.Level:
    return policy.Level(left, row["succeeded"], row["busy_ms"] / 1000, row["first_at"], row["last_at"])


def sums_of(row: Any) -> policy.Sums:
    names = ("total", "succeeded", "failed", "cancelled", "skipped", "spared", "expired")
    return policy.Sums(**{name: row[name] for name in names})


def summary(row: Any) -> TreeSummary:
    total = sums_of(row)
    left = total.total - total.ended
    return TreeSummary(
        str(row["id"]), row["name"], row["tenant"], policy.state(total, begun=row["begun"]), row["created_at"], total.total, left,
        row["levels"], None if left else row["last_at"],
    )  # fmt: skip
