"""What became of a load under one policy: waiting times, misses, how even it was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headway.simulate.load import KINDS

_BUCKETS = 1 / math.log(1.02)


@dataclass(frozen=True)
class Fleet:
    nodes: int = 10
    cpus: float = 8.0
    memory_gib: float = 32.0
    tick_s: float = 1.0  # between rounds of planning, at least: they come when something happens
    start_s: float = 0.0  # from a round to the first instruction of what it hands out
    turn_s: float = 0.0  # from the end of a task to the round that knows of its room
    look_s: float = 30.0  # how often what waits is looked through; the planner does it twice a second


@dataclass
class Waits:
    """Waiting times of one kind, in buckets that grow by a fiftieth."""

    count: int = 0
    missed: int = 0
    total: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float, *, missed: bool) -> None:
        self.count += 1
        self.missed += missed
        self.total += seconds
        bucket = int(math.log(seconds * 1000) * _BUCKETS) + 1 if seconds > 0.001 else 0
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def quantile(self, part: float) -> float:
        left = part * self.count
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return float(0.001 * 1.02**bucket)
        return 0.0


@dataclass
class Outcome:
    policy: str
    fleet: Fleet
    waits: dict[str, Waits] = field(default_factory=lambda: {kind: Waits() for kind in KINDS})
    utilisation: list[tuple[float, float]] = field(default_factory=list)  # (time, part taken)
    waiting: list[tuple[float, int]] = field(default_factory=list)
    jain: float = 1.0
    peak_s: float = 0.0
    put_off_cpus: float = 0.0  # the most that waited only because it was peak
    stopped: int = 0  # tasks that made room for urgent ones
    ended_at: float = 0.0

    @property
    def missed(self) -> float:
        """Part of all tasks that began too late."""
        return sum(waits.missed for waits in self.waits.values()) / max(sum(waits.count for waits in self.waits.values()), 1)

    @property
    def mean_utilisation(self) -> float:
        return sum(part for _, part in self.utilisation) / max(len(self.utilisation), 1)


@dataclass
class Evenness:
    """Who held how much of the fleet, against what would have been fair, while something waited."""

    served: dict[int, tuple[float, float]] = field(default_factory=dict)  # by tenant: what it held, what would have been fair

    def sample(self, holding: dict[int, float], wanting: dict[int, float]) -> None:
        """By tenant, the parts of the fleet it holds and asks for."""
        for tenant, part in fair_parts(holding, wanting).items():
            got, fair = self.served.get(tenant, (0.0, 0.0))
            self.served[tenant] = (got + holding.get(tenant, 0.0), fair + part)


def fair_parts(holding: dict[int, float], wanting: dict[int, float]) -> dict[int, float]:
    """What everyone would hold if all that is held now were divided evenly, and nobody got more than it asks for (max-min)."""
    asked = {tenant: holding.get(tenant, 0.0) + wanting.get(tenant, 0.0) for tenant in {*holding, *wanting}}
    left, found = sum(holding.values()), {}
    waiting = sorted((amount, tenant) for tenant, amount in asked.items() if amount > 1e-12)
    for number, (amount, tenant) in enumerate(waiting):
        found[tenant] = min(amount, left / (len(waiting) - number))
        left -= found[tenant]
    return found
