"""The rate limiter: one bucket for each tenant, out of which servers take tokens in advance (A3).

What servers hold still counts as being in the bucket: tokens left + tokens held never exceed the burst. So whatever happens to be
spent in any window of time was either there at its beginning (at most the burst) or flowed in since (the rate times its length),
however many servers spend, and however late they say what they spent. A server that dies takes what it held with it: that room
is only filled again at the rate.

Tokens that were taken for tasks which then turned out not to be new go back too, less what has flowed in since they were taken: the
bucket is then as full as if they had never been taken.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Limit(msgspec.Struct, frozen=True):
    """Tokens a second, and how many may be there at most."""

    per_s: float
    burst: float


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server took in advance, and until when it may spend it (seconds of the database's clock)."""

    until: float
    tokens: float = 0.0
    slots: int = 0  # of the waiting quota, see policy/quota.py


class Bucket(msgspec.Struct, frozen=True):
    """`tokens` were there at the moment `at`."""

    tokens: float
    at: float
    held: Mapping[str, Held] = {}


class Leased(msgspec.Struct, frozen=True):
    """The bucket after a lease, what the server still holds, and how long to wait (0 = its need is granted, and spent)."""

    bucket: Bucket
    holds: float
    wait: float


def filled(bucket: Bucket, limit: Limit, *, now: float, lasts: float) -> Bucket:
    """The bucket at `now`: at every moment it filled up only as far as what servers held then left room.

    What they held is gone when it runs out. (After a clock was set back nothing lasts longer than it ever could.)
    """
    tokens, at = bucket.tokens, min(bucket.at, now)
    held = {name: msgspec.structs.replace(there, until=min(there.until, now + lasts)) for name, there in bucket.held.items()}
    while True:
        first = min(held, key=lambda name: held[name].until, default=None)
        until = now if first is None else min(now, max(at, held[first].until))
        room = limit.burst - sum(there.tokens for there in held.values())
        tokens, at = max(0.0, min(tokens + (until - at) * limit.per_s, room)), until
        if first is None or held[first].until > now:
            return Bucket(tokens, now, held)
        del held[first]


def lease(
    bucket: Bucket, limit: Limit, *, server: str, keeps: float, needs: float, wishes: float, now: float, lasts: float, owed: float = 0.0
) -> Leased:
    """`server` has `keeps` unspent, spends `needs` now, and would like to keep `wishes` for later: all of its need, or nothing.

    It is owed what it took for nothing.
    """
    bucket, keeps = _told(bucket, limit, server=server, keeps=keeps, owed=owed, now=now, lasts=lasts)
    held = dict(bucket.held)
    missing = needs - keeps
    if missing > bucket.tokens:
        granted, holds, wait = 0.0, keeps, (missing - bucket.tokens) / limit.per_s
    else:
        granted = min(bucket.tokens, max(0.0, missing + wishes))
        holds, wait = max(0.0, keeps + granted - needs), 0.0
    if holds > 0:
        held[server] = Held(now + lasts, holds)
    return Leased(Bucket(bucket.tokens - granted, now, held), holds, wait)


def give_back(
    bucket: Bucket, limit: Limit, *, server: str, keeps: float, now: float, lasts: float, owed: float = 0.0
) -> Bucket:
    """`server` returns what it did not spend."""
    bucket, returned = _told(bucket, limit, server=server, keeps=keeps, owed=owed, now=now, lasts=lasts)
    return Bucket(bucket.tokens + returned, now, bucket.held)


def still_owed(owed: float, limit: Limit, passed: float) -> float:
    """What a server is owed, so many seconds later: what flowed into the bucket meanwhile is not owed any more."""
    return max(0.0, owed - passed * limit.per_s)


def _told(
    bucket: Bucket, limit: Limit, *, server: str, keeps: float, owed: float, now: float, lasts: float
) -> tuple[Bucket, float]:
    """The bucket at `now` without what `server` holds, which is the second value, and with what it is owed."""
    bucket = filled(bucket, limit, now=now, lasts=lasts)
    held = dict(bucket.held)
    before = held.pop(server, None)
    keeps = max(0.0, min(keeps, before.tokens if before is not None else 0.0))
    room = limit.burst - sum(there.tokens for there in held.values()) - keeps
    return Bucket(max(bucket.tokens, min(bucket.tokens + owed, room)), now, held), keeps
