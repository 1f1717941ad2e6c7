"""What waits, counted: for the lead, for what tenants are entitled to, for how much is handed out, and for what is published."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from headway.policy.lanes import Lane
from headway.policy.order import LOW_HEAD, Key
from headway.policy.room import Rooms

Lanes = Mapping[int, Lane]  # by shape
KINDS = 16  # shapes that stand for all when free room is counted


def waiting(lanes: Lanes, most: int = 2_000) -> list[tuple[Key, float]]:
    """A sample of the known waiting tasks that can wait to be due, each with the number it stands for."""
    heads = [head for lane in lanes.values() for head in itertools.islice(lane.tenants.values(), most)]
    scale = max(len(heads) / most, 1.0)
    found: list[tuple[Key, float]] = []
    for head in heads[:: int(scale) or 1]:
        at, last = head.taken, head.taken - 1
        while at < len(head.keys):
            found.append((head.keys[at], (at - last) * scale))
            last, at = at, at + 1 + (at - head.taken)
    return found


def parts(lanes: Lanes, rooms: Rooms) -> dict[int, float]:
    """The part of the fleet that a task of each shape that waits asks for."""
    return {shape: rooms.part(shape) for shape in lanes}


def counted(lanes: Lanes) -> dict[int, tuple[int, int]]:
    """By tenant, how many tasks are known to wait, and how many of them are due."""
    found: dict[int, tuple[int, int]] = {}
    for lane in lanes.values():
        for tenant, head in lane.tenants.items():
            known, due_now = found.get(tenant, (0, 0))
            found[tenant] = (known + len(head), due_now + lane.due(head))
    return found


def asked(lanes: Lanes) -> dict[int, dict[int, int]]:
    """By tenant and shape, how many tasks are known to wait."""
    found: dict[int, dict[int, int]] = {}
    for shape, lane in lanes.items():
        for tenant, head in lane.tenants.items():
            found.setdefault(tenant, {})[shape] = len(head)
    return found


def due(lanes: Lanes, rooms: Rooms) -> dict[int, float]:
    """What is due, by tenant, in parts of the fleet; of a head that is due as far as it is known, without end."""
    found: dict[int, float] = {}
    for shape, lane in lanes.items():
        part = rooms.part(shape)
        for tenant, head in lane.tenants.items():
            if count := lane.due(head):
                found[tenant] = found.get(tenant, 0.0) + (math.inf if head.more and count == len(head) > LOW_HEAD else count * part)
    return found


def free_tasks(lanes: Lanes, rooms: Rooms) -> float:
    """About how many tasks, of the shapes that wait, the fleet has room for."""
    if not lanes:
        return 0.0
    needs = [rooms.need(shape) for shape in itertools.islice(lanes, KINDS)]
    total = [0] * len(rooms.capacity)
    for need in needs:
        for i, amount in need:
            total[i] += amount
    free = [whole - used for whole, used in zip(rooms.capacity, rooms.used, strict=True)]
    return min((left * len(needs) / asked for left, asked in zip(free, total, strict=True) if asked), default=1e9)
