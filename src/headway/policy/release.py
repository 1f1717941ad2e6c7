"""Which edges an ended task satisfies (C5)."""

from __future__ import annotations

from headway.domain.lifecycle import State
from headway.domain.task import When


def satisfied(state: State) -> tuple[When, ...]:
    """The kinds of edges that are content when their upstream ends in `state`; the others can never come true."""
    if state is State.SUCCEEDED:
        return (When.SUCCEEDED, When.DONE)
    if state in (State.FAILED, State.EXPIRED):
        return (When.DONE, When.FAILED)
    return (When.DONE,)  # cancelled or skipped: nobody failed, nothing was done
