"""What one round of planning goes by, and what comes of it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headway.policy.order import Group, Key


class Gate(Enum):
    """Whether tasks of a shape may be handed out now."""

    OPEN = "open"
    DUE = "only what is due"
    CLOSED = "closed"


class Placed(NamedTuple):
    """Tasks of a group for a node."""

    group: Group
    node: int
    keys: list[Key]


@dataclass(frozen=True)
class Round:
    """What one round of planning goes by."""

    most: int
    horizon: datetime.datetime  # a task that stands up to here is due
    gate: Callable[[int, bool], Gate] = lambda _shape, _tight: Gate.OPEN  # of a shape, while there is room up to `fill`, and beyond
    due_first: bool = False  # what is due goes before what can wait, whoever holds more
    fill: float | None = None  # what can wait may take the fleet up to here only
    windows: Mapping[int, float] = field(default_factory=dict)  # nodes that are kept for a large task -> seconds until it has room there
    early: Mapping[int, datetime.timedelta] = field(default_factory=dict)  # shapes whose rooms are rare -> how much earlier they are due
