"""Room for tasks that have just come, when nothing else waits that might go: leased by the commit that admits them, all or none."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping

from headway.policy.order import Group, Key
from headway.policy.placement import Board, Gate, Placed, Round

NOTHING = datetime.timedelta()
MOST_LOOKED = 64  # tenants at their quota; with more of them waiting the planner's round is not dearer

GateOf = Callable[[int, bool], Gate]


def nobody_is_passed(board: Board, gate: GateOf, *, tight: bool) -> bool:
    """Whether nothing waits that might go: only what a paused or closed queue holds back, or the quota of its tenant."""
    if board.hungry:
        return False
    left = MOST_LOOKED
    for shape, lane in board.lanes.items():
        if gate(shape, tight) is Gate.CLOSED:
            continue
        left -= len(lane.tenants)
        need = board.rooms.need(shape)
        if left < 0 or any(board.usage.allowance(tenant, need, 1) for tenant in lane.tenants):
            return False
    return True


def fit(board: Board, tasks: Mapping[Group, list[Key]], asked: Round) -> list[Placed] | None:
    """Room for all of these tasks at once, taken from the nodes, or none of it."""
    plan: list[Placed] = []
    for group, keys in tasks.items():
        if not _fit(board, group, keys, asked, plan):
            for placed in plan:
                board.hold(placed.node, placed.group, -len(placed.keys))
            return None
    return plan


def _fit(board: Board, group: Group, keys: list[Key], asked: Round, plan: list[Placed]) -> bool:
    tenant, shape = group
    door, need = asked.gate(shape, board.is_tight(asked)), board.rooms.need(shape)
    stands = keys[-1][0] - asked.early.get(shape, NOTHING)
    if door is Gate.CLOSED or (door is Gate.DUE and stands > asked.horizon):
        return False
    if board.usage.allowance(tenant, need, len(keys)) < len(keys):
        return False
    while keys:
        node = board.rooms.best(shape)
        if node is None:
            return False
        taken = keys[: node.room_for(need, len(keys))]
        board.hold(node.id, group, len(taken))
        plan.append(Placed(group, node.id, taken))
        keys = keys[len(taken) :]
    return True
