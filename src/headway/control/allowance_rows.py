"""The rows behind allowances: what many tenants ask for, or give back, in one transaction.

The rows are locked in order; then what waits is counted, since room that somebody took before us shows in the row and what it has
stored shows in the count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from headway.domain.tenant import Subscription
from headway.policy import quota, rate_limit
from headway.policy.holding import LONG, Holding, holding, noted, wish
from headway.policy.rate_limit import Bucket, Held, Leased, Limit
from headway.store.database import Connection
from headway.store.queries import query

_LOCK = query("allowance.lock")
_BEGIN = query("allowance.begin")
_KEEP = query("allowance.keep")
_WAITING = query("allowance.waiting")
NO_RATE = Limit(1.0, 0.0)  # of a tenant that has only a waiting quota
_held = msgspec.json.Decoder(dict[str, Held])


class Had(NamedTuple):
    """What a server had of a tenant's when it asked."""

    tokens: float
    slots: int
    lately: int  # used since it last asked
    owed: float


@dataclass(frozen=True)
class Ask:
    """Room for `count` tasks of a tenant, and some more in advance."""

    tenant: int
    subscription: Subscription
    had: Had
    count: int
    in_flight: Callable[[], int]  # accepted, not stored yet; only falls while it is asked

    @property
    def limit(self) -> Limit | None:
        return limit_of(self.subscription)


class Answer(NamedTuple):
    """What the server holds now. `wait`: so long until the rate allows it; `short`: so much above the waiting quota."""

    tokens: float = 0.0
    slots: int = 0
    left: float = 0.0  # in the bucket
    wait: float = 0.0
    holding: Holding = LONG
    short: int = 0
    waiting: int = 0
    counting_s: float = 0.0


def limit_of(subscription: Subscription) -> Limit | None:
    rate = subscription.rate_per_hour
    return None if rate is None else Limit(rate / 3600, float(subscription.burst_size))


async def lease(connection: Connection, asks: Sequence[Ask], *, server: str) -> dict[int, Answer]:
    """Answers by tenant; each asks once. Nothing is written for who is short of waiting room."""
    rows = await _locked(connection, asks)
    in_flight = {ask.tenant: ask.in_flight() for ask in asks}  # before the count: what is stored meanwhile counts twice, never not at all
    began = time.monotonic()
    bounded = {ask.tenant: ask.subscription.max_waiting + 1 for ask in asks if ask.subscription.max_waiting is not None}
    counted = dict(await connection.fetch(_WAITING, list(bounded), list(bounded.values()))) if bounded else {}
    counting_s = time.monotonic() - began
    answers, buckets = {}, {}
    for ask in asks:
        waiting = counted.get(ask.tenant, 0)
        answer, bucket = _answer(ask, rows[ask.tenant], server=server, waiting=waiting, in_flight=in_flight[ask.tenant])
        answers[ask.tenant] = answer._replace(waiting=waiting, counting_s=counting_s)
        if not answer.short:
            buckets[ask.tenant] = bucket
    await _keep(connection, buckets)
    return answers


async def give_back(connection: Connection, had: Mapping[int, Had], limits: Mapping[int, Limit | None], *, server: str) -> None:
    """What `server` has left of many tenants."""
    buckets = {}
    for row in await connection.fetch(_LOCK, list(had)):
        tenant = row["tenant"]
        buckets[tenant] = rate_limit.give_back(
            _bucket(row), limits[tenant] or NO_RATE, server=server, keeps=had[tenant].tokens, now=row["now"], lasts=LONG.lasts_s,
            owed=had[tenant].owed,
        )  # fmt: skip
    await _keep(connection, buckets)


async def _locked(connection: Connection, asks: Sequence[Ask]) -> dict[int, Any]:
    """The rows of all who ask; those of new tenants are made first."""
    tenants = [ask.tenant for ask in asks]
    rows = {row["tenant"]: row for row in await connection.fetch(_LOCK, tenants)}
    new = [ask for ask in asks if ask.tenant not in rows]
    if new:
        bursts = [ask.limit.burst if ask.limit is not None else 0.0 for ask in new]
        await connection.execute(_BEGIN, [ask.tenant for ask in new], bursts)
        rows = {row["tenant"]: row for row in await connection.fetch(_LOCK, tenants)}
    return rows


def _answer(ask: Ask, row: Any, *, server: str, waiting: int, in_flight: int) -> tuple[Answer, Bucket]:
    """What one tenant's row allows, and the row from now on."""
    bucket, limit, most, now, slots = _bucket(row), ask.limit, ask.subscription.max_waiting, row["now"], 0
    wishes = wish(ask.had.lately, ask.count)
    if most is not None:
        others = [there.slots for name, there in bucket.held.items() if name != server and there.until > now]
        found = quota.room(most, waiting=waiting, taken=others, in_flight=in_flight, needs=ask.count, wishes=wishes)
        if found.short:
            return Answer(short=found.short), bucket
        slots = found.slots
    if limit is None:
        leased = Leased(rate_limit.filled(bucket, NO_RATE, now=now, lasts=LONG.lasts_s), 0.0, 0.0)
    else:
        leased = rate_limit.lease(
            bucket, limit, server=server, keeps=ask.had.tokens, needs=ask.count, wishes=min(wishes, limit.burst / 4), now=now,
            lasts=LONG.lasts_s, owed=ask.had.owed,
        )  # fmt: skip
    if leased.wait > 0:
        slots = 0
    term = holding(limit, most, tokens=leased.holds, slots=slots)
    kept = noted(leased.bucket, server=server, tokens=leased.holds, slots=slots + in_flight, lasts_s=term.lasts_s)
    return Answer(leased.holds, slots, leased.bucket.tokens, leased.wait, term), kept


def _bucket(row: Any) -> Bucket:
    return Bucket(row["tokens"], row["at"], _held.decode(row["held"]))


async def _keep(connection: Connection, buckets: Mapping[int, Bucket]) -> None:
    rows = [(tenant, bucket.tokens, bucket.at, msgspec.json.encode(bucket.held).decode()) for tenant, bucket in buckets.items()]
    if rows:
        await connection.execute(_KEEP, *map(list, zip(*rows, strict=True)))
