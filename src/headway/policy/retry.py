"""What happens after an attempt that did not succeed: run again, when, or give up (F3).

Failures of the task, of its resources and of its node are counted apart. Only the first two use up `attempts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headway.domain.lifecycle import BLAME, Blame, Outcome
from headway.domain.task import Retry

REQUEUE_LIMIT = 1000  # exit 75, exit 85 and pre-emption use no attempt, but not for ever


@dataclass(frozen=True)
class Counts:
    """Runs that did not succeed so far, by who is charged."""

    failures: int = 0
    resource_failures: int = 0
    node_losses: int = 0
    requeues: int = 0

    def charge(self, blame: Blame) -> Counts:
        return Counts(
            self.failures + (blame is Blame.TASK),
            self.resource_failures + (blame is Blame.RESOURCE),
            self.node_losses + (blame is Blame.NODE),
            self.requeues + (blame is Blame.NOBODY),
        )


class Step(Enum):
    AGAIN = "again"
    GIVE_UP = "give up"
    CANCEL = "cancel"


@dataclass(frozen=True)
class Verdict:
    step: Step
    counts: Counts
    delay_s: float = 0.0
    because: str = ""


def decide(outcome: Outcome, counts: Counts, *, attempts: int, retry: Retry, cancelling: bool, luck: float) -> Verdict:
    """The verdict on one ended attempt. `luck` in [0, 1) spreads retries by the jitter."""
    if cancelling or outcome is Outcome.CANCELLED:
        return Verdict(Step.CANCEL, counts)
    blame = BLAME[outcome]
    counts = counts.charge(blame)
    if blame is Blame.NODE:
        if counts.node_losses > retry.node_losses:
            return Verdict(
                Step.GIVE_UP, counts, because=f"lost with its node {counts.node_losses} times, {retry.node_losses} allowed"
            )
        return Verdict(Step.AGAIN, counts)
    if blame is Blame.NOBODY:
        if counts.requeues > REQUEUE_LIMIT:
            return Verdict(Step.GIVE_UP, counts, because=f"requeued {counts.requeues} times, {REQUEUE_LIMIT} allowed")
        return Verdict(Step.AGAIN, counts, delay_s=retry.interval_ms / 1000 if outcome is Outcome.TRY_LATER else 0.0)
    used = counts.failures + counts.resource_failures
    if used >= attempts:
        return Verdict(Step.GIVE_UP, counts, because=f"{used} of {attempts} attempts used")
    return Verdict(Step.AGAIN, counts, delay_s=backoff(used, retry, luck))


def backoff(failures: int, retry: Retry, luck: float) -> float:
    """Seconds before the next attempt: interval × backoff^(failures-1), bounded, spread by ± jitter."""
    delay = min(retry.interval_ms * retry.backoff ** min(failures - 1, 64), retry.max_ms) / 1000
    return delay * (1 + retry.jitter * (2 * luck - 1))
