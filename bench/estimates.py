"""Are estimated starts right? `python bench/estimates.py [--minutes 90] [--loads 0.85,0.95] [--asked 400]`.

The simulator's fleet (two nodes of 2 cpus, three tenants, three categories) with policy.forecast asked about tasks that still wait a second
after they came, as `explain` asks it: from what runs and for how long, what waits, how fast tasks come. Printed is how often a task began
within the interval, and how wide it was. Seconds instead of hours, and the same answer each time; `calibrate.py` asks a real server.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from headway.policy.explain import PROMPT_S
from headway.policy.forecast import Held, Lasting, Rival, Scene, Start, foresee
from headway.policy.placement import Gate
from headway.simulate.load import Arrival
from headway.simulate.outcome import Fleet
from headway.simulate.world import World

MEAN_S = 4.0
MEAN_CPUS = 0.65
LOOK_AFTER_S = 1.0
RATE_S = 60.0


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

    def __init__(self, fleet: Fleet, every: int) -> None:
        super().__init__("headway", fleet)
        self.every = every
        self.to_ask: list[tuple[float, int]] = []
        self.said: dict[int, tuple[float, Start | None]] = {}
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
            if task in self.waiting and task % self.every == 0:
                began = time.process_time()
                self.said[task] = (self.now, foresee(self.scene(task), random.Random(task)))
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

    def scene(self, task: int) -> Scene:
        board, pressure, rooms = self.board, self.pressure, self.board.rooms
        one, _ = self.waiting[task]
        lasting = Lasting(tuple(sorted(self.times)))
        rivals = []
        for tenant in (1, 2, 3):
            waits = [other for other, _ in self.waiting.values() if other.tenant == tenant]
            count = sum(1 for other in waits if tenant != one.tenant or other.start_by < one.start_by)
            due = sum(1 for other in waits if other.start_by <= min(self.now + pressure.lead_s, one.start_by))
            rivals.append(Rival(tenant, count, self.rates.get(tenant, 0.0), board.usage.share(tenant), due))
        gate = self._gate(one.shape, pressure.peak)
        urgent = pressure.urgent_per_s / pressure.drain_per_s if pressure.drain_per_s > 0 else 0.0
        return Scene(
            need=rooms.need(one.shape),
            tenant=one.tenant,
            free=[(room.id, tuple(room.free)) for room in rooms.values()],
            capacity=tuple(rooms.capacity),
            held=[
                Held(r.node, r.one.tenant, rooms.need(r.one.shape), max(self.now - r.began, 0.0), lasting) for r in self.runs.values()
            ],
            rivals=rivals,
            slack_s=max(one.start_by - self.now - pressure.lead_s, 0.0),
            level=board.usage.level,
            urgent=min(urgent, 1.0),
            due_first=pressure.due_first and not board.flooded,
            fill=pressure.fill if pressure.fill is not None and gate is not Gate.CLOSED else 1.0,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--loads", default="0.75,0.85,0.95")
    parser.add_argument("--every", type=int, default=5, help="each so-manieth task that waits is asked about")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for load in map(float, asked.loads.split(",")):
        world = Asking(Fleet(2, 2.0, 16.0, tick_s=0.05, start_s=0.03), asked.every)
        world.run(arrivals(load, asked.minutes, 4.0, asked.seed))
        answers = [(at, start, world.began[task]) for task, (at, start) in world.said.items()]
        known = [(began - at, start) for at, start, began in answers if start is not None]
        within = sum(start.low <= wait <= start.high + PROMPT_S for wait, start in known)  # as `explain` says it
        late = sum(wait > start.high + PROMPT_S for wait, start in known)
        width = median(start.high - start.low for _, start in known)
        off = median(abs(start.middle - wait) for wait, start in known)
        print(f"load {load}: {within / len(known):.0%} of {len(known)} within, {late} later, {len(answers) - len(known)} without", end="; ")
        print(f"interval {width:.1f} s, off by {off:.1f} s, waits {median(wait for wait, _ in known):.1f} s", end="; ")
        print(f"{world.spent / len(answers) * 1e3:.1f} ms each", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
