"""What runs are expected to take."""

from __future__ import annotations

import msgspec


class PredictionView(msgspec.Struct):
    """What a run is expected to take: half of them less than `seconds`, nine of ten between `low` and `high`."""

    seconds: float
    low: float
    high: float
    runs: int  # how many earlier runs it was learned from
    law: str  # how it grows with the size: constant | log n | n | n log n | n^2
    sure: str  # guess | rough | good
    memory: int | None = None  # bytes that 95 of 100 runs did not exceed


class PathView(msgspec.Struct):
    """The chain of tasks that decides how long all of them take, however many machines there are."""

    tasks: list[str]
    seconds: float
    low: float
    high: float
    known: int  # tasks of the chain that have run often enough to say


class PredictionsView(msgspec.Struct):
    tasks: dict[str, PredictionView | None]  # by name; null: it never ran
    critical_path: PathView
