"""What a simulation found, as a table and as plots (SVG, written by hand: two lines over time need no library)."""

from __future__ import annotations

from collections.abc import Sequence

from headway.domain.units import duration_text
from headway.simulate.load import KINDS
from headway.simulate.outcome import Outcome

WIDTH, HEIGHT, LEFT, TOP = 900, 220, 60, 30
COLOURS = ("#1f6feb", "#d1242f", "#9a6700")


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row for each policy; the header first."""
    header = (
        "POLICY", "NODES", "MISSED", *(f"{kind.upper()} P50/P99" for kind in KINDS), "URGENT MISSED", "TAKEN", "FAIRNESS", "PUT OFF",
    )  # fmt: skip
    found: list[tuple[str, ...]] = [header]
    for one in outcomes:
        waits = [f"{_short(one.waits[kind].quantile(0.5))}/{_short(one.waits[kind].quantile(0.99))}" for kind in KINDS]
        found.append(
            (one.policy, str(one.fleet.nodes), f"{one.missed:.2%}", *waits, str(one.waits["urgent"].missed),
             f"{one.mean_utilisation:.0%}", f"{one.jain:.3f}", f"{one.put_off_cpus:,.0f} cpus")
        )  # fmt: skip
    return found


def svg(outcomes: Sequence[Outcome]) -> str:
    """Utilisation and waiting tasks over the day, one line for each policy."""
    end = max((one.ended_at for one in outcomes), default=1.0)
    most = max((count for one in outcomes for _, count in one.waiting), default=1) or 1
    parts = [_frame("part of the fleet that is taken", 0, "100 %"), _frame("waiting tasks", 1, f"{most:,}")]
    for number, one in enumerate(outcomes):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_line([(at / end, part) for at, part in one.utilisation], 0, colour))
        parts.append(_line([(at / end, count / most) for at, count in one.waiting], 1, colour))
        parts.append(f'<text x="{LEFT + 150 * number}" y="{2 * (HEIGHT + TOP) + 20}" fill="{colour}">{one.policy}</text>')
    height = 2 * (HEIGHT + TOP) + 40
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" {style}>{"".join(parts)}</svg>\n'


def _frame(title: str, row: int, top: str) -> str:
    y = TOP + row * (HEIGHT + TOP)
    return (
        f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>'
        f'<text x="{LEFT}" y="{y - 6}">{title}</text><text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{top}</text>'
        f'<text x="{LEFT - 8}" y="{y + HEIGHT}" text-anchor="end">0</text>'
    )


def _line(points: Sequence[tuple[float, float]], row: int, colour: str) -> str:
    y = TOP + row * (HEIGHT + TOP) + HEIGHT
    path = " ".join(f"{LEFT + x * WIDTH:.1f},{y - min(value, 1.0) * HEIGHT:.1f}" for x, value in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _short(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 60 else duration_text(round(seconds))
