"""Peak and off-peak (E4), and whether a queue lets tasks go now (F5).

Above 80 % of the fleet taken it is peak, until it falls below 70 %. At peak, what is due goes before what can wait, and what can wait
leaves room for the urgent tasks that are likely to come, as many as came lately: idle resources never wait for nothing.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

from headway.domain.queues import OffPeak, Queue, Rules, Runs, is_open, opens_at
from headway.policy.placement import Gate

BEGINS = 0.80
ENDS = 0.70
KEEP_S = 60.0  # how long after the last urgent task room is kept for the next
RARE = 1e-4  # how often the room that is kept may be too small


def is_peak(before: bool, utilisation: float) -> bool:
    """Whether it is peak now; the way back is longer than the way up, so that it does not flutter."""
    return utilisation >= (ENDS if before else BEGINS)


def kept(urgent_per_s: float, drain_per_s: float, part: float) -> float:
    """The part of the fleet that is kept for urgent tasks, each of which takes `part` of it.

    Urgent tasks use up what is kept, and every end gives back a place: it is a queue, and n are in it at once with the chance
    (urgent / drain) ** n. So the room does not grow with the fleet: 20 % of a small one, less than 1 % of a large one.
    """
    load = min(max(urgent_per_s / drain_per_s, 0.001), 0.9) if drain_per_s > 0 else 0.9
    return min((1.0 + math.log(RARE) / math.log(load)) * part, 1.0 - BEGINS)


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
