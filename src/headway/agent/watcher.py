"""Memory and processes of tasks where the kernel gives no groups: counted now and then, and ended when above (G3).

Weaker than a cgroup: what a task grabs and uses between two looks is seen late. `headway doctor` says so.
"""

from __future__ import annotations

import os

from headway.agent import tree
from headway.agent.group import Limits
from headway.wire.exchange import Excess

EVERY_S = 0.25
PAGE = os.sysconf("SC_PAGE_SIZE")


def above(tasks: dict[int, Limits]) -> tuple[dict[int, Excess], dict[int, int]]:
    """By first process: the limit it is above, if any; and the memory its tree has now."""
    processes = {pid: of for pid, of in tree.table().items() if not of.zombie}
    found: dict[int, Excess] = {}
    memory: dict[int, int] = {}
    for root, limits in tasks.items():
        members = tree.descendants([root], processes)
        memory[root] = sum(map(resident, members))
        if limits.memory and memory[root] > limits.memory:
            found[root] = Excess("memory", memory[root], limits.memory)
        elif limits.processes and len(members) > limits.processes:
            found[root] = Excess("processes", len(members), limits.processes)
    return found, memory


def resident(pid: int) -> int:
    """What one process has in memory; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0
