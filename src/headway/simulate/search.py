"""The smallest fleet on which a policy begins enough tasks in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headway.simulate.load import Arrival
from headway.simulate.outcome import Fleet, Outcome
from headway.simulate.world import World

GUESS = 1.3  # times the nodes that are taken on average: where a day with a peak is looked for first
LARGEST = 100_000


def smallest(policy: str, fleet: Fleet, load: Callable[[], Iterable[Arrival]], *, missed: float) -> Outcome:
    """Close in on it until one fleet is enough and one node less is not (of large fleets, one in a hundred).

    From what is used on average a first guess follows, and from there it goes in growing steps: runs of fleets that are far too small
    take longest, since everything waits in them.
    """

    def run(nodes: int) -> Outcome:
        return World(policy, replace(fleet, nodes=nodes)).run(load())

    low, high = 0, fleet.nodes
    best = run(high)
    while best.missed > missed and high < LARGEST:
        low, high = high, high * 2
        best = run(high)
    step, at = 1, max(min(round(GUESS * best.mean_utilisation * high), high - 1), low + 1)
    while high - low > max(1, high // 100):
        tried = run(at)
        if tried.missed <= missed:
            high, best = at, tried
            at = max(high - step, (low + high) // 2)
        else:
            low = at
            at = min(low + step, (low + high) // 2)
        step *= 2
    return best
