"""Are estimated starts right? `python bench/estimates.py [--minutes 90] [--loads 0.75,0.85,0.95] [--every 5] [--seeds 1,2]`.

The simulator's fleet (two nodes of 2 cpus, three tenants, three categories) with policy.forecast asked about tasks that still wait a second
after they came, as `explain` asks it: from what runs and for how long, what waits, how fast tasks come. Printed is how often a task began
within the interval, before it and after it, in all, by category and by size, and how wide it was. Seconds instead of hours, and the same
answer each time; `calibrate.py` asks a real server.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from headway.policy.explain import PROMPT_S
from headway.policy.forecast import Held, Lasting, Rival, Scene, Start, foresee
from headway.policy.placement import Gate
from headway.policy.preemption import PATIENCE_S
from headway.simulate.load import KINDS, TIER_NAMES, Arrival, shapes
from headway.simulate.outcome import Fleet
from headway.simulate.world import World

_, RULES = shapes()
MEAN_S = 4.0
MEAN_CPUS = 0.65
LOOK_AFTER_S = 1.0
RATE_S = 60.0
AFTER_MIN = 15.0  # so long tasks go on to come after the last that is asked about: else those wait less than anybody could foresee


def arrivals(load: float, minutes: float, cpus: float, seed: int) -> Iterator[Arrival]:
    """The load of calibrate.py."""
    luck = random.Random(seed)
    at, per_s = 0.0, load * cpus / (MEAN_CPUS * MEAN_S)
    while (at := at + luck.expovariate(per_s)) < minutes * 60:
        chance = luck.random()
        kind, tolerance = (0, 2.0) if chance < 0.2 else (2, luck.uniform(10, 60)) if chance < 0.4 else (1, luck.uniform(10, 600))
        tier = 0 if luck.random() < 0.7 else 1
        seconds = min(max(luck.expovariate(1 / MEAN_S), 0.2), 5 * MEAN_S)
        yield Arrival(at, at + tolerance, seconds, luck.choice((1, 1, 1, 2, 2, 3)), 1 + kind * 3 + tier)


class Asking(World):
    """A world in which some tasks are asked about while they wait."""

    def __init__(self, fleet: Fleet, every: int, until: float) -> None:
        super().__init__("headway", fleet)
        self.every, self.until = every, until
        self.to_ask: list[tuple[float, int]] = []
        self.said: dict[int, tuple[Arrival, float, Start | None]] = {}
        self.began: dict[int, float] = {}
        self.times: list[float] = []
        self.rates: dict[int, float] = {}
        self.spent = 0.0

    def _arrive(self, one: Arrival) -> None:
        super()._arrive(one)
        self.to_ask.append((self.now, self._task))

    def _plan(self) -> None:
        super()._plan()
        while self.to_ask and self.to_ask[0][0] + LOOK_AFTER_S <= self.now:
            _, task = self.to_ask.pop(0)
            if task in self.waiting and task % self.every == 0 and self.now < self.until:
                began = time.process_time()
                one, _ = self.waiting[task]
                scene = self.scene(task)
                self.said[task] = (one, self.now, foresee(scene, random.Random(task)) if scene.small else None)
                self.spent += time.process_time() - began

    def _begin(self, task: int, node: int, group: tuple[int, int]) -> Any:
        run = super()._begin(task, node, group)
        if not run.times:
            self.began[task] = run.began
        fresh = math.exp(-1 / 60)
        owner = run.one.tenant
        self.rates[owner] = self.rates.get(owner, 0.0) + 1 / RATE_S
        for tenant in self.rates:
            self.rates[tenant] *= fresh ** (self.now - self._rated)
        self._rated = self.now
        return run

    _rated = 0.0

    def _leave(self, run: Any) -> None:
        super()._leave(run)
        self.times = [*self.times[-199:], run.one.seconds]

    def stands(self, one: Arrival) -> float:
        return one.start_by - self.pressure.early.get(one.shape, 0.0)

    def scene(self, task: int) -> Scene:
        board, pressure, rooms = self.board, self.pressure, self.board.rooms
        one, _ = self.waiting[task]
        lasting = Lasting(tuple(sorted(self.times)))
        rivals = []
        for tenant in (1, 2, 3):
            waits = [other for other, _ in self.waiting.values() if other.tenant == tenant]
            if tenant == one.tenant:
                waits = [other for other in waits if self.stands(other) < self.stands(one)]
            due = sum(1 for other in waits if self.stands(other) <= self.now + pressure.lead_s)
            asks = Counter(rooms.need(other.shape) for other in waits)
            share = board.usage.share(tenant)
            rivals.append(Rival(tenant, len(waits), self.rates.get(tenant, 0.0), share, due, asks=tuple(asks.items())))
        gate = self._gate(one.shape, pressure.peak)
        urgent = pressure.urgent_per_s / pressure.drain_per_s if pressure.drain_per_s > 0 else 0.0
        return Scene(
            need=rooms.need(one.shape),
            tenant=one.tenant,
            free=[(room.id, tuple(room.free)) for room in rooms.values()],
            capacity=tuple(rooms.capacity),
            held=[
                Held(r.node, r.one.tenant, rooms.need(r.one.shape), max(self.now - r.began, 0.0), lasting, RULES[r.one.shape].preemptible)
                for r in self.runs.values()
            ],
            rivals=rivals,
            slack_s=self.stands(one) - self.now - pressure.lead_s,
            lead_s=pressure.lead_s,
            stops_s=max(one.start_by - self.now, 0.0) + PATIENCE_S if RULES[one.shape].urgent else math.inf,
            level=board.usage.level,
            urgent=min(urgent, 1.0),
            due_first=pressure.due_first and not board.flooded,
            fill=pressure.fill if pressure.fill is not None and gate is not Gate.CLOSED else 1.0,
        )


@dataclass(frozen=True)
class Answer:
    """What was said of a task, and how long it waited from then on; without an estimate `start` is None."""

    shape: int
    wait: float
    start: Start | None


def answers(load: float, asked: argparse.Namespace) -> tuple[list[Answer], float]:
    """What a load gave over all seeds, and the CPU time of an answer."""
    found, spent = list[Answer](), 0.0
    for seed in map(int, asked.seeds.split(",")):
        world = Asking(Fleet(2, 2.0, 16.0, tick_s=0.05, start_s=0.03), asked.every, asked.minutes * 60)
        world.run(arrivals(load, asked.minutes + AFTER_MIN, 4.0, seed))
        found += [Answer(one.shape, world.began[task] - at, start) for task, (one, at, start) in world.said.items()]
        spent += world.spent
    return found, spent / max(len(found), 1)


def judged(found: Iterable[Answer]) -> str:
    """How many began within the interval as `explain` says it, before it and after it."""
    known = [(one.wait, one.start) for one in found if one.start is not None]
    if not known:
        return "none"
    early = sum(wait < start.low for wait, start in known)
    late = sum(wait > start.high + PROMPT_S for wait, start in known)
    return f"{1 - (early + late) / len(known):4.0%} of {len(known):4} within, {early:3} before, {late:3} after"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--loads", default="0.75,0.85,0.95")
    parser.add_argument("--every", type=int, default=5, help="each so-manieth task that waits is asked about")
    parser.add_argument("--seeds", default="1")
    asked = parser.parse_args()
    for load in map(float, asked.loads.split(",")):
        found, spent = answers(load, asked)
        known = [(one.wait, one.start) for one in found if one.start is not None]
        width = median(start.high - start.low for _, start in known)
        off = median(abs(start.middle - wait) for wait, start in known)
        print(f"load {load}: {judged(found)}, {len(found) - len(known)} without an estimate", end="; ")
        print(f"interval {width:.1f} s, off by {off:.1f} s", end=", ")
        print(f"waits {median(wait for wait, _ in known):.1f} s; {spent * 1e3:.1f} ms each", flush=True)
        for shape, (kind, tier) in enumerate(itertools.product(KINDS, TIER_NAMES), 1):
            if some := [one for one in found if one.shape == shape]:
                print(f"    {kind:>9} {tier:>7}: {judged(some)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
