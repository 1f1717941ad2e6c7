"""The quota of waiting tasks (E6): servers take room in advance, so that a submission asks nobody.

What was counted as waiting, plus what servers may still add, never exceeds the quota. Whatever a server has taken and already
stored is counted twice until it asks again, which errs on the side of the quota.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.policy.holding import SMALL


class Room(msgspec.Struct, frozen=True):
    """How many tasks a server may add from now on; `short` says by how many its need exceeds the room there is."""

    slots: int
    short: int


def room(quota: int, *, waiting: int, taken: Iterable[int], in_flight: int, needs: int, wishes: int) -> Room:
    """`taken` is what other servers may still add, `in_flight` what this one has accepted and not stored yet.

    A server takes what it wishes for besides its need, or next to nothing of what is free if that is more; but at most a quarter of it,
    so that the others find room too.
    """
    free = quota - waiting - sum(taken) - in_flight
    if needs > free:
        return Room(0, needs - max(free, 0))
    return Room(max(needs, min(free // 4, max(needs + wishes, free // SMALL))), 0)
