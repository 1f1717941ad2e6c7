"""Numbers from numbers: percentiles, rates, and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all values do not exceed (nearest rank): always one that occurred."""
    if not values:
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is no percentage")
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    """How fast a count rose between two samples (seconds, count)."""
    seconds = last[0] - first[0]
    if seconds <= 0:
        raise ValueError("the samples are not in order")
    return (last[1] - first[1]) / seconds


def three_digits(value: float) -> float:
    """Rounded to what a measurement can claim: 12,345.6 -> 12,300, 2.3456 -> 2.35."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    digits = 2 - math.floor(math.log10(abs(value)))
    return round(value, digits)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text: the first column to the left, the others to the right, the last to the left again."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)
