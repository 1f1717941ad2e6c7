"""Peak and off-peak (E4), and whether a queue lets tasks go now (F5).

Above 80 % of the fleet taken it is peak, until it falls below 70 %. At peak, what can wait waits while it has slack, so that room is
there when something urgent comes; but only while urgent tasks do come: idle resources never wait for nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from headway.domain.queues import OffPeak, Queue, Rules, Runs, is_open, opens_at
from headway.policy.placement import Gate

BEGINS = 0.80
ENDS = 0.70
KEEP_S = 60.0  # how long after the last urgent task room is kept for the next


def is_peak(before: bool, utilisation: float) -> bool:
    """Whether it is peak now; the way back is longer than the way up, so that it does not flutter."""
    return utilisation >= (ENDS if before else BEGINS)


@dataclass(frozen=True)
class Verdict:
    """Whether tasks may go, and why not, in the words that explain prints."""

    gate: Gate
    reason: str = ""
    until: datetime.datetime | None = None


OPEN = Verdict(Gate.OPEN)


def judge(rules: Rules, queue: Queue, *, peak: bool, keep: bool, now: datetime.datetime) -> Verdict:
    """What a task's rules and its queue say about now. `keep`: room is kept for urgent tasks, because some came lately."""
    if queue.paused:
        return Verdict(Gate.CLOSED, f"queue {queue.name} is paused")
    if not is_open(queue, now):
        return Verdict(Gate.CLOSED, f"queue {queue.name} is outside its hours", opens_at(queue, now))
    if queue.runs is Runs.PEAK and not peak:
        return Verdict(Gate.CLOSED, f"queue {queue.name} runs at peak only, and it is off-peak")
    if queue.runs is Runs.OFF_PEAK and peak:
        return Verdict(Gate.CLOSED, f"queue {queue.name} runs off-peak only, and it is peak")
    if rules.off_peak is OffPeak.ONLY and peak:
        return Verdict(Gate.CLOSED, "it asked for off-peak only, and it is peak")
    if peak and keep and rules.off_peak is OffPeak.ALLOWED and not rules.urgent and queue.runs is Runs.ALWAYS:
        return Verdict(Gate.DUE, "it is peak, room is kept for urgent tasks, and this one can wait")
    return OPEN
