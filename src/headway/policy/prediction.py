"""How long a run will take, learned from earlier runs: quantiles, the speed of nodes, and how it grows with the size hint (K3).

The law of growth is chosen among a few by its error on runs that were held back, and growth is believed only when it beats a constant
clearly. The interval comes from the same held-back errors, so it is honest about laws that fit badly. A model says how sure it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean, median, stdev

FEW = 5  # below it a model is a guess
FOLDS = 5
SPREAD = 2.0  # the largest size by the smallest: with less, growth cannot be seen
CLEARLY = 2.0  # standard errors by which growth must beat a constant
_SHORTEST = 1e-6
_STEADY = 3  # runs on a node that its speed is half believed after
_OUTLIER = 6.0  # median deviations


class Law(Enum):
    """How time grows with the size n."""

    CONSTANT = "constant"
    LOG = "log n"
    LINEAR = "n"
    LINEARITHMIC = "n log n"
    QUADRATIC = "n^2"


@dataclass(frozen=True)
class Run:
    """One earlier run that succeeded."""

    seconds: float
    size: float | None = None
    node: int | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Prediction:
    """What a run is expected to take: half of them less than `seconds`, nine of ten between `low` and `high`."""

    seconds: float
    low: float
    high: float
    runs: int
    law: Law
    sure: str  # guess | rough | good
    memory: int | None = None  # 95 of 100 runs needed no more


@dataclass(frozen=True)
class Model:
    """What was learned about one kind of task."""

    law: Law
    base: float
    slope: float
    errors: tuple[float, ...]  # logarithms of true by predicted time, held back, in order
    runs: int
    largest: float = 0.0  # size seen; beyond it a prediction is a guess
    speeds: Mapping[int, float] = field(default_factory=dict)  # node -> its time by the usual time
    memory: int | None = None

    def predict(self, size: float | None = None, node: int | None = None) -> Prediction:
        usual = self._time(size) * self.speeds.get(node, 1.0) if node is not None else self._time(size)
        seconds, low, high = (usual * math.exp(_quantile(self.errors, share)) for share in (0.5, 0.05, 0.95))
        return Prediction(seconds, low, high, self.runs, self.law, self._sure(size), self.memory)

    def times(self, size: float | None = None, node: int | None = None) -> tuple[float, ...]:
        """How long a run may take, each as likely as the others, in order."""
        usual = self._time(size) * self.speeds.get(node or -1, 1.0)
        return tuple(usual * math.exp(error) for error in self.errors)

    def _time(self, size: float | None) -> float:
        return max(self.base + self.slope * growth(self.law, size or 0.0), _SHORTEST)

    def _sure(self, size: float | None) -> str:
        if self.runs < FEW or (self.law is not Law.CONSTANT and (size is None or size > 10 * self.largest)):
            return "guess"
        spread = _quantile(self.errors, 0.95) - _quantile(self.errors, 0.05)
        return "good" if self.runs >= 4 * FEW and spread < math.log(4) else "rough"


def learn(runs: Sequence[Run]) -> Model | None:
    """The model behind these runs; None when there are none."""
    if not runs:
        return None
    runs = [run if run.seconds > _SHORTEST else Run(_SHORTEST, run.size, run.node, run.memory) for run in runs]
    law = _choose(runs)
    base, slope = _fit(law, runs)
    speeds = _speeds(law, base, slope, runs)
    if speeds:  # what a slow node did to the times is not growth: once more without it
        runs = [Run(run.seconds / speeds.get(run.node or -1, 1.0), run.size, run.node, run.memory) for run in runs]
        law = _choose(runs)
        base, slope = _fit(law, runs)
    memories = sorted(run.memory for run in runs if run.memory is not None)
    return Model(
        law=law,
        base=base,
        slope=slope,
        errors=tuple(sorted(_held_back(law, runs))),
        runs=len(runs),
        largest=max((run.size or 0.0 for run in runs), default=0.0),
        speeds=speeds,
        memory=memories[min(len(memories) - 1, math.ceil(0.95 * len(memories)))] if memories else None,
    )


def growth(law: Law, size: float) -> float:
    """The law's shape, without its factors."""
    match law:
        case Law.CONSTANT:
            return 0.0
        case Law.LOG:
            return math.log1p(size)
        case Law.LINEAR:
            return size
        case Law.LINEARITHMIC:
            return size * math.log1p(size)
        case Law.QUADRATIC:
            return size * size


def _choose(runs: Sequence[Run]) -> Law:
    sizes = [run.size for run in runs if run.size is not None and run.size > 0]
    if len(sizes) < len(runs) or len(runs) < 2 * FEW or max(sizes) < SPREAD * min(sizes):
        return Law.CONSTANT
    losses = {law: _losses(law, runs) for law in Law}
    best = min((law for law in Law if law is not Law.CONSTANT), key=lambda law: fmean(losses[law]))
    gains = [flat - grown for flat, grown in zip(losses[Law.CONSTANT], losses[best], strict=True)]
    clear = fmean(gains) > CLEARLY * stdev(gains) / math.sqrt(len(gains))
    return best if clear else Law.CONSTANT


def _losses(law: Law, runs: Sequence[Run]) -> list[float]:
    """Squared held-back errors; a run far off counts no more than a run that is off."""
    errors = _held_back(law, runs)
    return [min(error * error, 9.0) for error in errors]


def _held_back(law: Law, runs: Sequence[Run]) -> list[float]:
    """For each run the logarithm of its time by what the others would have predicted."""
    if len(runs) < 2:
        return [0.0] * len(runs)
    found = [0.0] * len(runs)
    folds = min(FOLDS, len(runs))
    for fold in range(folds):
        base, slope = _fit(law, [run for at, run in enumerate(runs) if at % folds != fold])
        for at in range(fold, len(runs), folds):
            found[at] = _error(law, base, slope, runs[at])
    return found


def _error(law: Law, base: float, slope: float, run: Run) -> float:
    return math.log(run.seconds / max(base + slope * growth(law, run.size or 0.0), _SHORTEST))


def _fit(law: Law, runs: Sequence[Run]) -> tuple[float, float]:
    """base + slope * growth, neither below zero, by relative least squares, without outliers; half of the runs take longer."""
    if law is Law.CONSTANT:
        return median(run.seconds for run in runs), 0.0
    points = [(growth(law, run.size or 0.0), run.seconds) for run in runs]
    base, slope = _least_squares(points, [1.0 / (seconds * seconds) for _, seconds in points])
    for _ in range(3):  # weights of the predicted time, not of the noisy one
        expected = [max(base + slope * shape, _SHORTEST) for shape, _ in points]
        errors = [math.log(seconds / usual) for (_, seconds), usual in zip(points, expected, strict=True)]
        middle = median(errors)
        width = median(abs(error - middle) for error in errors) or 1.0
        kept = [abs(error - middle) <= _OUTLIER * width for error in errors]
        weights = [keep / (usual * usual) for keep, usual in zip(kept, expected, strict=True)]
        base, slope = _least_squares(points, weights)
    errors = [math.log(seconds / max(base + slope * shape, _SHORTEST)) for shape, seconds in points]
    shift = math.exp(median(errors))
    return base * shift, slope * shift


def _least_squares(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    total = fxx = fx = fxy = fy = 0.0
    for (shape, seconds), weight in zip(points, weights, strict=True):
        total += weight
        fx += weight * shape
        fxx += weight * shape * shape
        fy += weight * seconds
        fxy += weight * shape * seconds
    scale = total * fxx - fx * fx
    if scale <= 1e-12 * total * fxx:
        return fy / total, 0.0
    slope = (total * fxy - fx * fy) / scale
    base = (fy - slope * fx) / total
    if slope < 0:
        return fy / total, 0.0
    return (base, slope) if base >= 0 else (0.0, fxy / fxx)


def _speeds(law: Law, base: float, slope: float, runs: Sequence[Run]) -> dict[int, float]:
    """How each node's time compares with the usual; believed by the number of runs it was seen for. Of one node nothing can be said."""
    errors: dict[int, list[float]] = {}
    for run in runs:
        if run.node is not None:
            errors.setdefault(run.node, []).append(_error(law, base, slope, run))
    if len(errors) < 2:
        return {}
    return {node: math.exp(median(own) * len(own) / (len(own) + _STEADY)) for node, own in errors.items()}


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Of held-back errors, a little outside for few of them: the next run is one more draw."""
    count = len(ordered)
    if count < 2:
        return 0.0 if share == 0.5 else math.copysign(math.log(3), share - 0.5)
    if share == 0.5:
        return median(ordered)
    position = share * (count + 1) - 1
    if position < 0 or position > count - 1:  # beyond what was seen
        edge = ordered[0] if position < 0 else ordered[-1]
        missing = -position if position < 0 else position - (count - 1)
        return edge + math.copysign(missing * (ordered[-1] - ordered[0]) / (count - 1), share - 0.5)
    low = math.floor(position)
    high = min(low + 1, count - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
