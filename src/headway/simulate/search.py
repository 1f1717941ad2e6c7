"""The smallest fleet on which a policy begins enough tasks in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headway.simulate.load import Arrival
from headway.simulate.outcome import Fleet, Outcome
from headway.simulate.world import World


def smallest(policy: str, fleet: Fleet, load: Callable[[], Iterable[Arrival]], *, missed: float) -> Outcome:
    """Halve the interval of nodes until one fleet is enough and one node less is not."""
    low, high = 0, fleet.nodes
    best = World(policy, replace(fleet, nodes=high)).run(load())
    while best.missed > missed and high < 100_000:
        low, high = high, high * 2
        best = World(policy, replace(fleet, nodes=high)).run(load())
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        tried = World(policy, replace(fleet, nodes=middle)).run(load())
        if tried.missed <= missed:
            high, best = middle, tried
        else:
            low = middle
    return best
