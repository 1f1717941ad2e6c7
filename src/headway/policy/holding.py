"""How long a server may hold what it took in advance of a tenant's tokens and waiting room (A3 E6).

What is held is missing elsewhere, and lost if the server dies. So much of it is given back soon; what is next to nothing beside the
burst and the quota may stay for a minute or two, since a tenant that comes every few seconds would else cost a transaction each time.
"""

from __future__ import annotations

import msgspec

from headway.policy.rate_limit import Bucket, Held, Limit

SMALL = 64  # a 64th of the burst and of the quota is next to nothing
AHEAD = 8  # requests of the same size that shall not have to ask


class Holding(msgspec.Struct, frozen=True):
    """`spent_s` is counted by the server from before it asked; the rest of `lasts_s`, by the row's clock, covers commits under way."""

    spent_s: float
    lasts_s: float
    idle_s: float  # what was not used for so long goes back


BRIEF = Holding(spent_s=5.0, lasts_s=10.0, idle_s=3.0)
LONG = Holding(spent_s=120.0, lasts_s=125.0, idle_s=60.0)


def wish(lately: int, needs: int) -> int:
    """How much to take for later: twice what was used since the last question, so that a tenant asks ever less often."""
    return max(2 * lately, AHEAD * needs)


def holding(limit: Limit | None, quota: int | None, *, tokens: float, slots: int) -> Holding:
    """For how long a server may hold so much."""
    small = (limit is None or tokens <= limit.burst / SMALL) and (quota is None or slots <= quota / SMALL)
    return LONG if small else BRIEF


def noted(bucket: Bucket, *, server: str, tokens: float, slots: int, lasts_s: float) -> Bucket:
    """The bucket, with what `server` holds from now on."""
    return Bucket(bucket.tokens, bucket.at, {**bucket.held, server: Held(bucket.at + lasts_s, tokens, slots)})
