"""CPU time and memory of a tree of processes, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Stat:
    """What /proc/PID/stat says, as far as it matters here."""

    pid: int
    parent: int
    ticks: int  # own time and that of ended children, user and system


def parse_stat(text: str) -> Stat:
    """The name in parentheses may hold anything, spaces and parentheses too: split after the last one."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return Stat(pid=int(pid), parent=int(fields[1]), ticks=sum(int(field) for field in fields[11:15]))


def parse_pss(smaps_rollup: str) -> int:
    """Proportional set size in bytes: shared pages are divided by the number of processes that share them."""
    for line in smaps_rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no Pss line")


def tree(roots: Iterable[int]) -> list[Stat]:
    """The processes `roots` and all their descendants that live now."""
    living = {stat.pid: stat for stat in _living()}
    children: dict[int, list[int]] = {}
    for stat in living.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: dict[int, Stat] = {}
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid in living and pid not in found:
            found[pid] = living[pid]
            todo += children.get(pid, [])
    return list(found.values())


def cpu_seconds(roots: Iterable[int]) -> float:
    """CPU time of a tree since its beginning.

    A child that ends hands its time to its parent, so the difference between two calls is exact though processes
    came and went in between.
    """
    return sum(stat.ticks for stat in tree(roots)) / os.sysconf("SC_CLK_TCK")


def pss_bytes(roots: Iterable[int]) -> int:
    """Memory of a tree; a process that ends meanwhile has none."""
    total = 0
    for stat in tree(roots):
        try:
            total += parse_pss((PROC / str(stat.pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def _living() -> Iterable[Stat]:
    for name in os.listdir(PROC):
        if name.isdigit():
            try:
                yield parse_stat((PROC / name / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended between the listing and the reading
