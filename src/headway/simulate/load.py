"""The load of a simulated day: who submits what, when, how long it takes and how long it may wait; or a recorded history.

The rate follows a sine with its highest point four times its lowest. A few tenants submit most: sizes follow Zipf's law. The same seed
gives the same load, so that policies and fleets are compared on equal terms.
"""

from __future__ import annotations

import bisect
import datetime
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.domain.queues import Rules
from headway.domain.resources import TIERS, Resources
from headway.errors import InvalidInput

DAY_S = 86_400.0
KINDS = ("urgent", "delayable", "periodic")
TIER_NAMES = ("basic", "regular", "premium")
_TIER_PARTS = (0.6, 0.9, 1.0)  # cumulative


class Arrival(NamedTuple):
    """One task: when it can run, until when it should have begun, for how long it runs."""

    at: float
    start_by: float
    seconds: float
    tenant: int
    shape: int


@dataclass(frozen=True)
class Load:
    """What is generated."""

    tasks: int = 100_000
    tenants: int = 1_000
    hours: float = 24.0
    swing: float = 4.0  # highest rate over lowest
    mean_s: float = 60.0  # of a task's run time
    urgent: float = 0.2  # parts of all tasks
    periodic: float = 0.2
    tolerance_s: float = 4 * 3600.0  # longest of the delayable ones
    urgent_tolerance_s: float = 5.0
    seed: int = 1


def shapes() -> tuple[dict[int, Resources], dict[int, Rules]]:
    """Three tiers, each in three kinds."""
    resources: dict[int, Resources] = {}
    rules: dict[int, Rules] = {}
    for number, (kind, tier) in enumerate(itertools.product(KINDS, TIER_NAMES), 1):
        resources[number] = TIERS[tier]
        rules[number] = Rules(queue=kind, preemptible=kind != "urgent", urgent=kind == "urgent")
    return resources, rules


def generate(load: Load) -> Iterator[Arrival]:
    """Tasks in the order of their arrival."""
    luck = random.Random(load.seed)
    choose = _tenants(load.tenants, luck)
    sigma = 1.0
    mu = math.log(load.mean_s) - sigma * sigma / 2
    seconds = load.hours * 3600.0
    # Thinning: candidates come at the highest rate and stay with the chance of the moment.
    low, high = 1.0, load.swing
    mean = (low + high) / 2
    rate = load.tasks / seconds * high / mean
    at = 0.0
    for _ in range(load.tasks):
        while True:
            at += luck.expovariate(rate)
            now = (mean - (high - low) / 2 * math.cos(2 * math.pi * at / DAY_S)) / high
            if luck.random() < now:
                break
        kind = _kind(load, luck.random())
        tier = bisect.bisect(_TIER_PARTS, luck.random())
        tolerance = (load.urgent_tolerance_s, luck.random() * load.tolerance_s, 60.0 + luck.random() * 600.0)[kind]
        yield Arrival(at, at + tolerance, min(luck.lognormvariate(mu, sigma), 3600.0), choose(), 1 + kind * 3 + min(tier, 2))


def recorded(lines: Iterable[str]) -> list[Arrival]:
    """A history: what `headway ls --json` prints, or one such task a line."""
    text = "\n".join(lines).strip()
    found: list[Any] = []
    try:
        for document in [json.loads(text)] if text[:1] in "[{" and "\n{" not in text else map(json.loads, text.splitlines()):
            found += document if isinstance(document, list) else document.get("tasks", [document])
    except ValueError as error:
        raise InvalidInput(f"the history is not JSON: {error}", hint="headway ls --state succeeded --json > history.json") from None
    tasks = [task for task in found if task.get("started_at") and task.get("ended_at")]
    if not tasks:
        raise InvalidInput("the history has no task that ran", hint="headway ls --state succeeded --json > history.json")
    tenants: dict[str, int] = {}
    began = min(_moment(task["eligible_at"]) for task in tasks)
    arrivals = []
    for task in tasks:
        eligible, kind = _moment(task["eligible_at"]), KINDS.index(task.get("category", "delayable"))
        tier = (task.get("resources") or {}).get("tier") or "basic"
        arrivals.append(
            Arrival(
                eligible - began,
                max(_moment(task["start_by"]), eligible) - began,
                max(_moment(task["ended_at"]) - _moment(task["started_at"]), 0.0),
                tenants.setdefault(str(task.get("tenant")), len(tenants) + 1),
                1 + kind * 3 + (TIER_NAMES.index(tier) if tier in TIER_NAMES else 0),
            )
        )
    return sorted(arrivals)


def _moment(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def _kind(load: Load, chance: float) -> int:
    if chance < load.urgent:
        return 0
    return 2 if chance < load.urgent + load.periodic else 1


def _tenants(count: int, luck: random.Random) -> Any:
    """A chooser of tenants: the n-th submits 1/n as much as the first."""
    sums = list(itertools.accumulate(1.0 / n for n in range(1, count + 1)))
    return lambda: 1 + bisect.bisect(sums, luck.random() * sums[-1])
