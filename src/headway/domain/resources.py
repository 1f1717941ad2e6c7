"""What a task needs and what a node has, as vectors that add, subtract and compare.

CPUs are thousandths, everything else is whole: no rounding can make two tasks fit where one does.
"""

from __future__ import annotations

import difflib

import msgspec

LABEL_LIMIT = 64


class Resources(msgspec.Struct, frozen=True, omit_defaults=True):
    """A need. Labels must all be present on the node ("gpu" -> "a100"; an empty value means any)."""

    cpus_milli: int = 0
    memory: int = 0
    disk: int = 0
    iops: int = 0
    bandwidth: int = 0
    ports: int = 0
    labels: tuple[tuple[str, str], ...] = ()

    def amounts(self) -> tuple[int, int, int, int, int, int]:
        return (self.cpus_milli, self.memory, self.disk, self.iops, self.bandwidth, self.ports)


DIMENSIONS = ("cpus", "memory", "disk", "iops", "bandwidth", "ports")

MIB = 2**20
GIB = 2**30

TIERS: dict[str, Resources] = {
    "basic": Resources(cpus_milli=500, memory=256 * MIB, disk=1 * GIB),
    "regular": Resources(cpus_milli=1000, memory=1 * GIB, disk=4 * GIB),
    "premium": Resources(cpus_milli=2000, memory=4 * GIB, disk=16 * GIB),
}
DEFAULT_TIER = "basic"


def misspelt(name: str) -> str | None:
    """The predefined tier that `name` is a slip of: a client, which cannot know the operator's tiers, refuses it, and so no tier
    may be called so."""
    if name in TIERS or not name.isalpha():  # nearly every task: a search for what is near costs 40 µs
        return None
    near = difflib.get_close_matches(name, TIERS, n=1, cutoff=0.8)
    return near[0] if near and abs(len(name) - len(near[0])) <= 1 else None


class Capacity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node has in all, and the labels it carries."""

    cpus_milli: int
    memory: int
    disk: int
    iops: int = 1_000_000
    bandwidth: int = 10**12
    ports: int = 1000
    labels: dict[str, str] = {}

    def amounts(self) -> tuple[int, int, int, int, int, int]:
        return (self.cpus_milli, self.memory, self.disk, self.iops, self.bandwidth, self.ports)


def missing_labels(need: Resources, labels: dict[str, str]) -> list[str]:
    """The labels `need` asks for that are not among `labels`."""
    return [
        f"{key}={value}" if value else key for key, value in need.labels if key not in labels or (value and labels[key] != value)
    ]


def shortfall(need: Resources, free: tuple[int, ...]) -> list[str]:
    """The dimensions in which `need` does not fit into `free`."""
    return [dimension for dimension, asked, there in zip(DIMENSIONS, need.amounts(), free, strict=True) if asked > there]


def room(need: Resources, free: tuple[int, ...], *, most: int = 1_000_000) -> int:
    """How many times `need` fits into `free`."""
    for asked, there in zip(need.amounts(), free, strict=True):
        if asked:
            most = min(most, there // asked)
    return max(most, 0)


def fits(need: Resources, capacity: Capacity) -> bool:
    """Whether an empty node of this capacity could run it: asked at submission (G4)."""
    return not missing_labels(need, capacity.labels) and not shortfall(need, capacity.amounts())


def describe(need: Resources) -> str:
    """One line for people: "0.5 cpus, 256MiB memory, 1GiB disk, gpu=a100"."""
    from headway.domain.units import size_text

    parts = []
    if need.cpus_milli:
        parts.append(f"{need.cpus_milli / 1000:g} cpus")
    for word, value in (("memory", need.memory), ("disk", need.disk)):
        if value:
            parts.append(f"{size_text(value)} {word}")
    for word, value in (("iops", need.iops), ("bandwidth", need.bandwidth), ("ports", need.ports)):
        if value:
            parts.append(f"{value} {word}")
    parts += [f"{key}={value}" if value else key for key, value in need.labels]
    return ", ".join(parts) or "nothing"
