"""Whether a tree can keep its schedule: its critical path, as predicted, against its interval (C6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.domain.graph import longest_path
from headway.domain.units import duration_text
from headway.policy.prediction import Prediction


@dataclass(frozen=True)
class Path:
    """The chain that decides how long a tree takes, however many machines there are."""

    names: list[str]
    seconds: float
    low: float
    high: float
    known: int  # tasks of the chain that have run often enough to say


def critical_path(after: Mapping[str, Sequence[str]], predicted: Mapping[str, Prediction]) -> Path:
    """The longest chain. Tasks nobody knows count as nothing, so a path that is too long is too long for certain."""
    sure = {name: one for name, one in predicted.items() if one.sure != "guess"}
    names = longest_path(after, {name: sure[name].seconds if name in sure else 0.0 for name in after})
    known = [sure[name] for name in names if name in sure]
    # Quantiles do not add up; their sums bracket the true ones, which is the safe side for an interval.
    return Path(names, sum(p.seconds for p in known), sum(p.low for p in known), sum(p.high for p in known), len(known))


def too_long(path: Path, predicted: Mapping[str, Prediction], interval_s: float) -> str | None:
    """Why the tree can never keep its interval, with the chain and the numbers; None when it can."""
    if path.seconds <= interval_s:
        return None
    links = [f"{name} ({duration_text(predicted[name].seconds)})" if name in predicted else name for name in path.names]
    return (
        f"impossible: {' → '.join(links)} takes {duration_text(path.seconds)} (nine of ten times {duration_text(path.low)} to "
        f"{duration_text(path.high)}), and the interval is {duration_text(interval_s)}"
    )
