"""Bounded waiting (E7): when to warn, when to end a task that waited too long, when to look again.

Waiting counts from the moment the task could first have run: its time, or the end of what it depends on. A retry after a failure
waits anew, since the failure was not the queue's; being put back without an attempt used (exit 75, exit 85, pre-emption) does not.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from headway.domain.lifecycle import HELD, State

WARNED_AT = 0.8  # of the limit
AGAIN_S = (5.0, 60.0)  # how soon a task that runs is looked at again, in case it comes back: a tenth of its limit, between these


class Step(Enum):
    LOOK_AGAIN = auto()
    WARN = auto()
    EXPIRE = auto()
    FORGET = auto()  # it ended, or waits on beyond its limit as it asked


class Waiter(msgspec.Struct, frozen=True):
    """A task with a limit, in seconds of the database's clock; `state` is None when it has ended."""

    state: State | None
    eligible_at: float
    since: float | None  # when it could first have run, if that is known
    requeues: int
    limit_s: float
    keep: bool
    warned: bool


class Verdict(msgspec.Struct, frozen=True):
    step: Step
    since: float | None = None
    next_at: float = 0.0  # when to look again


def judge(waiter: Waiter, now: float) -> Verdict:
    """What to do about it now."""
    if waiter.state is None:
        return Verdict(Step.FORGET)
    if waiter.state is State.BLOCKED:  # it cannot have waited longer than from now
        return Verdict(Step.LOOK_AGAIN, None, now + waiter.limit_s * WARNED_AT)
    if waiter.state in HELD:
        since = waiter.eligible_at if waiter.since is None else waiter.since
        return Verdict(Step.LOOK_AGAIN, since, now + min(max(waiter.limit_s / 10, AGAIN_S[0]), AGAIN_S[1]))
    since = waits_since(waiter)
    limit_at = since + waiter.limit_s
    if now >= limit_at:
        return Verdict(Step.FORGET if waiter.keep and waiter.warned else Step.WARN if waiter.keep else Step.EXPIRE, since, limit_at)
    if now >= since + waiter.limit_s * WARNED_AT:
        return Verdict(Step.LOOK_AGAIN if waiter.warned else Step.WARN, since, limit_at)
    return Verdict(Step.LOOK_AGAIN, since, since + waiter.limit_s * WARNED_AT)


def waits_since(waiter: Waiter) -> float:
    """From when on a task that waits for its time or for room counts as waiting."""
    return waiter.since if waiter.requeues and waiter.since is not None else waiter.eligible_at
