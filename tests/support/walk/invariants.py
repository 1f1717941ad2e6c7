"""What must hold after a walk, in the database and in the memory of each server."""

from __future__ import annotations

from headway.control.core import Core
from headway.store.queries import query
from tests.support.walk.world import World

HOMES = """
select id, count(*) as homes from (
    select id from task union all select id from task_history union all select id from dead_letter
) homes group by id
"""
COUNTERS = """
select * from (
    select tree, level, total, succeeded, failed, cancelled, skipped + spared as skipped, expired from tree_level
) said full join (
    select tree, level, count(*)::int as total, count(*) filter (where state = 6)::int as succeeded,
        count(*) filter (where state = 7)::int as failed, count(*) filter (where state = 8)::int as cancelled,
        count(*) filter (where state = 9)::int as skipped, count(*) filter (where state = 10)::int as expired
    from task_anywhere where tree is not null group by tree, level
) there using (tree, level)
where (said.total, said.succeeded, said.failed, said.cancelled, said.skipped, said.expired)
    is distinct from (there.total, there.succeeded, there.failed, there.cancelled, there.skipped, there.expired)
    and (said.total > 0 or there.total > 0) -- a level has none when all its tasks were there already by their keys
"""
# Each says what is left over, and which rows of a walk that has ended would be.
LEFT = {
    "releases that do not go on": "select upstream from pending_release",
    "levels that do not go on": "select tree from pending_level",
    "lists that are due": "select task from fanout where due",
    "limits on the waiting of tasks that have ended": "select task from waiting_limit",
    "tasks that are out of the way": "select task from preemption",
    "controls that nobody will answer": "select number from control where done_at is null",
    "progress of tasks that have ended": "select task from progress",
    "checkpoints of tasks that are not dead letters": "select task from checkpoint where task not in (select id from dead_letter)",
    "blobs held for checkpoints that are gone": """select holder from blob_use where holder like 'checkpoint/%'
        and split_part(holder, '/', 2)::bigint not in (select task from checkpoint)""",
    "keys of tasks that are nowhere": "select key from idempotency_key where task not in (select id from task_anywhere)",
    "output of tasks that are nowhere": "select task from output where task not in (select id from task_anywhere)",
    "attempts of tasks that are nowhere": "select task from attempt where task not in (select id from task_anywhere)",
    "subtasks that are nowhere": "select child from subtask where child not in (select id from task_anywhere)",
    "attempts that come after the last": "select a.task from attempt a join task_anywhere t on t.id = a.task where a.attempt > t.attempt",
    "edges to tasks that are nowhere": "select downstream from edge where downstream not in (select id from task_anywhere)",
    "parts of trees that are tasks of others": """select p.tree from tree_part p join task_anywhere t
        on t.id between p.first and p.last and t.tree is distinct from p.tree""",
    "firings that wait": "select schedule from firing where state = 0",
    "trees still to be cancelled": "select tree from pending_cancel",
    "tasks that nobody ended": "select id from task",
    "tasks that waited for their subtasks and were skipped": "select id from task_history where state = 9 and requeues > 0",
}


async def homeless(world: World) -> dict[int, int]:
    """Tasks that were acknowledged and are nowhere, and any task that is in two places."""
    homes = {row["id"]: row["homes"] for row in await world.rows(HOMES)}
    lost = {task: 0 for task in world.known if task not in homes}
    return lost | {task: count for task, count in homes.items() if count != 1}


async def wrong_counters(world: World) -> list[dict[str, int]]:
    return [dict(row) for row in await world.rows(COUNTERS)]


async def tidy(world: World) -> None:
    """What duties do now and then is done now, by whoever leads them."""
    for core in world.cores:
        await core.trees.run_once()
        if core.leader.leads("archivist"):
            await core.archivist.run_once()
        if core.leader.leads("planner"):
            await core.preemption.run_once()
        async with core.database.cold() as connection:
            await connection.execute(query("control.abandon"), 10_000)


async def left_over(world: World) -> dict[str, int]:
    found = {what: len(await world.rows(statement)) for what, statement in LEFT.items()}
    return {what: count for what, count in found.items() if count}


def believes_nothing_is_left(core: Core) -> str:
    """What a server's memory says that the database, in which all has ended, does not."""
    for tenant, allowance in core.allowances.limited.items():
        if allowance.in_flight:
            return f"{core.holder}: {allowance.in_flight} tasks of tenant {tenant} are being stored"
    planner = core.planner
    if planner.leading_epoch < 0 or not core.leader.leads("planner"):
        return ""
    for room in planner.rooms.values():
        if room.held or room.free != list(room.capacity.amounts()):
            return f"{core.holder}: {room.name} holds {room.held}, {room.free} are free of {room.capacity.amounts()}"
    for tenant, held in planner.board.usage.tenants.items():
        if held.count:
            return f"{core.holder}: tenant {tenant} holds {held.count}"
    waiting = {group: len(head) for group, head in planner.board.heads.items() if len(head)}
    return f"{core.holder}: tasks wait: {waiting}" if waiting else ""
