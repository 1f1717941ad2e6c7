"""What a simulation found, as a table and as plots."""

from __future__ import annotations

from collections.abc import Sequence

from headway.domain.units import duration_text
from headway.simulate.drawing import Box, Drawing, Line, Words
from headway.simulate.load import KINDS
from headway.simulate.outcome import Outcome

WIDTH, HEIGHT, LEFT, TOP = 900, 220, 90, 30
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


def drawing(outcomes: Sequence[Outcome]) -> Drawing:
    """Utilisation and waiting tasks over the day, one line for each policy."""
    end = max((one.ended_at for one in outcomes), default=1.0)
    most = max((count for one in outcomes for _, count in one.waiting), default=1) or 1
    marks = [*_frame("part of the fleet that is taken", 0, "100 %"), *_frame("waiting tasks", 1, f"{most:,}")]
    for number, one in enumerate(outcomes):
        colour = COLOURS[number % len(COLOURS)]
        marks.append(_line([(at / end, part) for at, part in one.utilisation], 0, colour))
        marks.append(_line([(at / end, count / most) for at, count in one.waiting], 1, colour))
        marks.append(Words(LEFT + 150 * number, 2 * (HEIGHT + TOP) + 20, one.policy, colour))
    return Drawing(LEFT + WIDTH + 20, 2 * (HEIGHT + TOP) + 40, marks)


def _frame(title: str, row: int, top: str) -> list[Box | Words | Line]:
    y = TOP + row * (HEIGHT + TOP)
    names = [Words(LEFT, y - 6, title), Words(LEFT - 8, y + 12, top, ends=True), Words(LEFT - 8, y + HEIGHT, "0", ends=True)]
    return [Box(LEFT, y, WIDTH, HEIGHT, "#999999"), *names]


def _line(points: Sequence[tuple[float, float]], row: int, colour: str) -> Line:
    y = TOP + row * (HEIGHT + TOP) + HEIGHT
    return Line([(LEFT + x * WIDTH, y - min(value, 1.0) * HEIGHT) for x, value in points], colour)


def _short(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 60 else duration_text(round(seconds))
