"""What a planned task costs in Python (CPU time): rounds of policy.placement alone, without a database.

    python bench/micro/planning.py [--tenants 1000] [--nodes 1000] [--tasks 20000] [--batch 100]

A full fleet with every tenant waiting. In each round some tasks end (which frees room somewhere) and as many are planned, so every
placement is a choice between all tenants. Printed for growing fleets, with the growth against n log n.
"""

from __future__ import annotations

import argparse
import datetime
import math
import random
import time

from headway.domain.resources import GIB, Capacity, Resources
from headway.policy.order import Head
from headway.policy.placement import Board, NodeRoom, Round

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SHAPES = {
    1: Resources(cpus_milli=500, memory=GIB // 4, disk=GIB),
    2: Resources(cpus_milli=1000, memory=GIB, disk=4 * GIB),
    3: Resources(cpus_milli=2000, memory=4 * GIB, disk=16 * GIB),
}


def board_of(tenants: int, nodes: int, luck: random.Random) -> Board:
    """Every tenant waits with many tasks of one or two shapes; the fleet is empty."""
    board = Board(SHAPES)
    for number in range(1, nodes + 1):
        board.add_node(NodeRoom(number, f"n{number}", Capacity(8000, 32 * GIB, 500 * GIB)))
    board.resize()
    task = 0
    for tenant in range(1, tenants + 1):
        for shape in luck.sample(sorted(SHAPES), 1 + tenant % 2):
            keys = []
            for n in range(max(40, (60_000 + 12 * nodes) // tenants)):  # more than the fleet holds: it stays full
                task += 1
                keys.append((BASE + datetime.timedelta(seconds=luck.random() + n), 60_000, task))
            head = Head(more=False)
            head.refill(keys, asked=10**9)
            board.heads[(tenant, shape)] = head
            board.touched((tenant, shape))
    return board


def measure(tenants: int, nodes: int, tasks: int, batch: int) -> tuple[float, float]:
    """µs for each planned task, and for each ended one, on a full fleet."""
    luck = random.Random(1)
    board = board_of(tenants, nodes, luck)
    held = []
    while plan := board.place(Round(2_000, BASE)):
        held += [(placed.node, placed.group) for placed in plan for _ in placed.keys]
    planned = 0
    spent = freed = 0.0
    while planned < tasks:
        ended = [held.pop(luck.randrange(len(held))) for _ in range(min(batch, len(held)))]
        began = time.process_time()
        for node, group in ended:
            board.hold(node, group, -1)
        freed += time.process_time() - began
        began = time.process_time()
        plan = board.place(Round(2_000, BASE))
        spent += time.process_time() - began
        placed_now = [(placed.node, placed.group) for placed in plan for _ in placed.keys]
        held += placed_now
        planned += len(placed_now)
    return spent / planned * 1e6, freed / planned * 1e6


def loop_ns() -> float:
    """One turn of an empty loop: how fast this machine is just now."""
    began = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number
    return (time.process_time() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    options = parser.parse_args()
    first = None
    for nodes in sorted({options.nodes // 10, options.nodes, options.nodes * 3, options.nodes * 10}):
        cost, freed = measure(options.tenants, nodes, options.tasks, options.batch)
        scale = nodes * math.log(nodes)
        first = first or (cost, max(scale, 1.0))
        growth = f"planned × {cost / first[0]:.2f} for n log n × {scale / first[1]:.0f}"
        numbers = f"{cost:6.1f} µs planned {freed:5.1f} ended"
        print(f"{options.tenants:>6} tenants {nodes:>6} nodes {numbers}   {growth}   (loop {loop_ns():.0f} ns)", flush=True)


if __name__ == "__main__":
    main()
