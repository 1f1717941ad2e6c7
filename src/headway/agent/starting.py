"""Runners that are being started: how many more may be, so that those who are slow at it are in nobody's way (H3 H11 E5).

What a tenant's packages do before a runner is ready is the tenant's business. It may take long, and it may be to sleep for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headway.domain.isolation import ISOLATED, owner_of

STARTING = 8  # at the same time, of all kinds together: a sandbox for each of a hundred tenants at once stops the node
SLOW_START_S = 5.0  # one that takes longer keeps no others from starting
SLOW = 2  # so many of one owner that take longer: no more of his are started
UNREADY = 32  # slow ones too
READY_S = 90.0  # one that is not ready by then is ended; a little later than bridge.READY_S, whose words say more


class Starting(Protocol):
    """As much of a runner as matters here."""

    @property
    def kind(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def since(self) -> float: ...  # when it was started


def room(runners: Collection[Starting], kind: str, now: float) -> int:
    """How many more of this kind may start now; none, if less than one."""
    unready, owner = _unready(runners, now), owner_of(kind)
    own = [runner for runner in unready if owner_of(runner.kind) == owner]
    if sum(is_slow(runner, now) for runner in own) >= SLOW:
        return 0  # others of his would be as slow
    young = sum(not is_slow(runner, now) for runner in unready)
    most = min(STARTING - young, UNREADY - len(unready))
    return min(most, STARTING // 2 - len(own)) if ISOLATED in kind else most


def is_awaited(runners: Collection[Starting], kind: str, now: float) -> bool:
    """Whether one of this owner starts, or others do that are in its way, which they are for a moment only."""
    owner = owner_of(kind)
    return any(not is_slow(runner, now) or owner_of(runner.kind) == owner for runner in _unready(runners, now))


def is_slow(runner: Starting, now: float) -> bool:
    return not runner.ready and now - runner.since >= SLOW_START_S


def _unready(runners: Collection[Starting], now: float) -> list[Starting]:
    """One that could not even be killed is in nobody's way."""
    return [runner for runner in runners if not runner.ready and now - runner.since < READY_S + SLOW_START_S]
