"""What each tenant may still submit, at hand on every server: tokens of the rate limiter and room in the waiting quota (A3 E6).

The fast way is one look-up in a dictionary and a subtraction; tenants without limits do not even have an entry. When what is at
hand does not suffice, one transaction takes more from the rows of all tenants that ask at the same time, as much as was used lately;
what is not used goes back. A refusal is remembered, so that a tenant that floods a server does not flood the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headway.control import allowance_rows
from headway.control.allowance_rows import Answer, Ask, Had, limit_of
from headway.control.tenants import Tenants
from headway.domain.tenant import Subscription
from headway.domain.units import duration_text
from headway.errors import Forbidden, HeadwayError, LimitExceeded, TooLarge, Unavailable
from headway.logs import log
from headway.policy import rate_limit
from headway.policy.holding import BRIEF, Holding
from headway.policy.rate_limit import Limit
from headway.store.database import Database

LOOK_S = 1.0
AT_ONCE = 200  # tenants of one transaction
MANY_WAIT = 10_000  # who has more waiting tasks asks alone: counting them would hold up the others
REMEMBERED_S = 1.0  # how long a refusal is believed
FULL_RETRY_S = 5.0  # when to come again after the waiting quota refused


class Allowance:
    """One tenant's, on this server."""

    __slots__ = (
        "asking", "counted_until", "full_until", "holding", "in_flight", "owed", "owed_at", "seen", "slots", "subscription", "tokens",
        "until", "used", "used_at", "waiting",
    )  # fmt: skip

    def __init__(self, subscription: Subscription) -> None:
        self.asking = asyncio.Lock()
        self.subscription = subscription
        self.tokens = 0.0
        self.slots = 0
        self.until = 0.0  # monotonic: when what is at hand runs out
        self.counted_until = 0.0  # and when the tenant's row forgets it
        self.holding: Holding = BRIEF
        self.waiting = 0  # tasks, when they were last counted
        self.used = 0  # since more was taken
        self.used_at = 0.0
        self.in_flight = 0  # accepted, not stored yet
        self.owed, self.owed_at = 0.0, 0.0  # tokens taken for nothing, and when
        self.forget()

    def forget(self) -> None:
        """Ask again: the limits are others now."""
        self.seen = (math.inf, 0.0, 0.0)  # the database had so many tokens at a moment between these two
        self.full_until = (0.0, 0)  # until then the quota has no room for so many

    @property
    def limit(self) -> Limit | None:
        return limit_of(self.subscription)

    def suffices(self, count: int, now: float) -> bool:
        subscription = self.subscription
        return (
            now < self.until
            and not subscription.suspended
            and (subscription.rate_per_hour is None or self.tokens >= count)
            and (subscription.max_waiting is None or self.slots >= count)
        )

    def spend(self, count: int, now: float) -> None:
        if self.subscription.rate_per_hour is not None:
            self.tokens -= count
        if self.subscription.max_waiting is not None:
            self.slots -= count
        self.count(count, now)

    def count(self, count: int, now: float) -> None:
        self.used += count
        self.used_at = now
        self.in_flight += count

    def stored(self, count: int) -> None:
        """Tasks that were taken room for are in the database now, or never will be."""
        self.in_flight -= count

    def took_for_nothing(self, count: int, taken_at: float, now: float) -> None:
        """So many of the tasks that tokens were taken for were not new: a repeat of a request costs nothing (A6)."""
        if (limit := self.limit) is not None and count > 0:
            self.owed = self.owes(now) + rate_limit.still_owed(count, limit, now - taken_at)
            self.owed_at = now

    def owes(self, now: float) -> float:
        limit = self.limit
        return rate_limit.still_owed(self.owed, limit, now - self.owed_at) if limit is not None and self.owed else 0.0

    def is_idle(self, now: float) -> bool:
        """Whether what is at hand goes back: nobody used it for a while, or it runs out before the next look."""
        return not self.in_flight and (now - self.used_at > self.holding.idle_s or now > self.until - 2 * LOOK_S)

    def take_away(self, now: float) -> Had:
        """What is at hand, so that nobody spends it while the database is asked."""
        lately = self.used if now - self.used_at < self.holding.idle_s else 0
        owed = self.owes(now)
        had = Had(self.tokens, self.slots, lately, owed) if now < self.until else Had(0.0, 0, lately, owed)
        self.tokens, self.slots, self.owed = 0.0, 0, 0.0
        return had

    def left(self, now: float, *, at_least: bool = False) -> float:
        """How many tokens there are at most, or at least, as far as this server knows."""
        tokens, asked, answered = self.seen
        limit = self.limit
        if limit is None or tokens == math.inf:
            return 0.0 if limit is None else limit.burst
        flowed = (now - (answered if at_least else asked)) * limit.per_s
        return min(limit.burst, tokens + flowed + self.owes(now) + (self.tokens if now < self.until else 0.0))


@dataclass(frozen=True)
class _Waiting:
    """Somebody who asks, until the next transaction."""

    ask: Ask
    answer: asyncio.Future[Answer]


@dataclass
class Allowances:
    database: Database
    tenants: Tenants
    server: str
    monotonic: Callable[[], float] = time.monotonic
    limited: dict[int, Allowance] = field(default_factory=dict)
    _taken: asyncio.Event = field(default_factory=asyncio.Event)  # something is at hand that may have to go back
    _waiting: list[_Waiting] = field(default_factory=list)
    _asking: asyncio.Task[None] | None = None
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)  # who asks alone, or gives back

    def __post_init__(self) -> None:
        self.tenants.bus.on_tenants.append(self._subscriptions_changed)

    def _subscriptions_changed(self) -> None:
        for tenant, subscription in self.tenants.subscriptions.items():
            bound = subscription.rate_per_hour is not None or subscription.max_waiting is not None or subscription.suspended
            there = self.limited.get(tenant)
            if not bound:
                self.limited.pop(tenant, None)
            elif there is None:
                self.limited[tenant] = Allowance(subscription)
            elif there.subscription != subscription:
                there.subscription, there.until = subscription, 0.0
                there.forget()

    async def take(self, tenant: int, count: int) -> Allowance | None:
        """Take room for `count` tasks, all or nothing, or raise LimitExceeded. The caller says stored() when they are stored."""
        allowance = self.limited.get(tenant)
        if allowance is None:
            return None
        now = self.monotonic()
        if not allowance.suffices(count, now):
            async with allowance.asking:  # one question at a time: those who waited may find enough
                now = self.monotonic()
                if not allowance.suffices(count, now):
                    await self._ask(tenant, allowance, count, now)
                    allowance.count(count, now)
                    return allowance
        allowance.spend(count, now)
        return allowance

    def never(self, tenant: int, count: int) -> TooLarge | None:
        """Why the tenant's subscription can never allow so many tasks at once, or None."""
        return _never(self.tenants.get(tenant), count)

    async def _ask(self, tenant: int, allowance: Allowance, count: int, now: float) -> None:
        _refuse_at_once(allowance, count, now)
        had = allowance.take_away(now)
        try:
            ask = Ask(tenant, allowance.subscription, had, count, lambda: allowance.in_flight)
            answer = await self._answer(ask, allowance.waiting)
        except BaseException:
            allowance.until = 0.0  # nobody knows whether it was written: what we held is lost, never doubled
            raise
        allowance.waiting = answer.waiting
        if answer.short:
            allowance.tokens, allowance.slots = had.tokens, had.slots
            allowance.owed, allowance.owed_at = had.owed, now
            pause = max(REMEMBERED_S, 20 * answer.counting_s)  # counting takes at most a twentieth of the time
            allowance.full_until = (now + pause, count)
            raise _too_many(allowance, count)
        allowance.tokens, allowance.slots = answer.tokens, max(0, answer.slots - count)
        allowance.seen = (answer.left, now, self.monotonic())
        until = now + answer.holding.spent_s
        if answer.wait > 0:
            allowance.until = min(allowance.until, until)
            raise _too_fast(allowance, count, answer.wait)
        allowance.until, allowance.used, allowance.holding = until, 0, answer.holding
        allowance.counted_until = self.monotonic() + answer.holding.lasts_s
        self._taken.set()

    async def _answer(self, ask: Ask, waiting: int) -> Answer:
        """From a transaction of all who ask while another one is under way."""
        if waiting > MANY_WAIT:
            async with self._alone:
                return (await self._lease([ask]))[ask.tenant]
        mine = _Waiting(ask, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask_together())
        return await mine.answer

    async def _ask_together(self) -> None:
        """Transaction after transaction until nobody waits. Who gave up waiting is left out: its tenant may ask again."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                await self._settle([one for one in batch if not one.answer.done()])
        finally:
            self._asking = None

    async def _settle(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            answers = await self._lease([one.ask for one in batch])
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, Unavailable):  # one of them may be to blame
                for one in batch:
                    await self._settle([one])
                return
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one in batch:
            if not one.answer.done():
                one.answer.set_result(answers[one.ask.tenant])

    async def _lease(self, asks: list[Ask]) -> dict[int, Answer]:
        return await self.database.transact_aside(lambda connection: allowance_rows.lease(connection, asks, server=self.server))

    def rate_of(self, tenant: int) -> tuple[int, int, float] | None:
        """For the headers: tasks an hour, how many are left as far as this server knows, seconds until the burst is whole again."""
        allowance = self.limited.get(tenant)
        limit = allowance.limit if allowance is not None else None
        if allowance is None or limit is None:
            return None
        left = allowance.left(self.monotonic())
        return round(limit.per_s * 3600), int(left), (limit.burst - left) / limit.per_s

    async def run(self) -> None:
        """Give back what is not used, until cancelled."""
        while True:
            await self._taken.wait()
            await asyncio.sleep(LOOK_S)
            if all(self.monotonic() >= allowance.counted_until for allowance in self.limited.values()):
                self._taken.clear()
                continue
            try:
                await self.run_once()
            except HeadwayError as error:
                log("allowances.wait", level="warning", error=str(error))

    async def run_once(self) -> int:
        """How many tenants' leftovers went back: of many in one transaction, since each costs a commit."""
        returned = 0
        for low in range(0, len(self.limited), AT_ONCE):
            returned += await self._give_back(list(self.limited)[low : low + AT_ONCE])
        return returned

    async def _give_back(self, tenants: list[int]) -> int:
        """Of those that are idle. Nobody asks for more of them meanwhile: a lease would be taken for what was given back."""
        now = self.monotonic()
        idle = {
            tenant: allowance for tenant in tenants
            if (allowance := self.limited.get(tenant)) is not None
            and now < allowance.counted_until and allowance.is_idle(now) and not allowance.asking.locked()
        }  # fmt: skip
        if not idle:
            return 0
        async with contextlib.AsyncExitStack() as turns:
            for allowance in idle.values():
                await turns.enter_async_context(allowance.asking)  # nobody has it: this does not wait
            await self._return(idle, {tenant: allowance.take_away(now) for tenant, allowance in idle.items()})
        return len(idle)

    async def _return(self, idle: dict[int, Allowance], had: dict[int, Had]) -> None:
        for allowance in idle.values():
            allowance.until = allowance.counted_until = 0.0
        limits = {tenant: allowance.limit for tenant, allowance in idle.items()}
        async with self._alone:
            await self.database.transact_aside(
                lambda connection: allowance_rows.give_back(connection, had, limits, server=self.server)
            )
        for allowance in idle.values():
            allowance.forget()


def _refuse_at_once(allowance: Allowance, count: int, now: float) -> None:
    """What the database is known to refuse is not asked again."""
    limit, most = allowance.limit, allowance.subscription.max_waiting
    if allowance.subscription.suspended:
        raise Forbidden("the tenant is suspended: nothing new is accepted", hint="ask the operator")
    if (why := _never(allowance.subscription, count)) is not None:
        raise why
    if limit is not None and count > allowance.left(now) and now - allowance.seen[1] < REMEMBERED_S:
        raise _too_fast(allowance, count, (count - allowance.left(now, at_least=True)) / limit.per_s)
    until, need = allowance.full_until
    if most is not None and now < until and count >= need:
        raise _too_many(allowance, count)


def _never(subscription: Subscription, count: int) -> TooLarge | None:
    """What no waiting helps: whoever is told to try again later would do so for ever."""
    burst, most = subscription.burst_size, subscription.max_waiting
    if subscription.rate_per_hour is not None and count > burst:
        refill = duration_text(math.ceil(burst / subscription.rate_per_hour * 3600))
        return TooLarge(
            f"{count} tasks are more than the burst of {burst} of your subscription: they can never be accepted at once",
            hint=f"send at most {burst} together, and the next after {refill}, or ask the operator for a larger burst", most=burst,
        )  # fmt: skip
    if most is not None and count > most:
        return TooLarge(
            f"{count} tasks are more than the {most} that may wait in your subscription: they can never be accepted at once",
            hint=f"send at most {most} together, and more when some have run, or ask the operator for a larger quota", most=most,
        )  # fmt: skip
    return None


def _too_fast(allowance: Allowance, count: int, wait: float) -> LimitExceeded:
    rate = allowance.subscription.rate_per_hour or 0.0
    what = "a task is" if count == 1 else f"{count} tasks are"
    return LimitExceeded(
        f"{what} more than your subscription allows now: {rate:g} an hour, {allowance.subscription.burst_size} at once",
        retry_after=wait, hint="nothing was stored", limit=round(rate), remaining=0,
    )  # fmt: skip


def _too_many(allowance: Allowance, count: int) -> LimitExceeded:
    most = allowance.subscription.max_waiting
    return LimitExceeded(
        f"{count} more waiting tasks are above the quota of {most}", retry_after=FULL_RETRY_S,
        hint="wait until some have run, or cancel some; nothing was stored",
    )  # fmt: skip
