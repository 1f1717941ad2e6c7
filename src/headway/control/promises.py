"""When a task that is submitted now will start, from what the planner published and what waits in front of it.

Asked for every submission, so it may cost next to nothing: the plan is read once a second for all tenants, a tenant's waiting tasks are
counted every few seconds, together with those of others that submit, and in between the count goes on by what was stored here and at the
rate its tasks start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from headway.control.clock import Clock
from headway.control.definitions import Interned
from headway.control.draft import Draft
from headway.control.fleet import Fleet
from headway.control.outlook import Outlook, PlanState, TenantState
from headway.control.scenes import Scenes
from headway.domain.units import duration_text
from headway.errors import CannotPromise
from headway.policy.forecast import Held, ends_of
from headway.policy.peak import judge
from headway.policy.placement import Gate
from headway.policy.promise import FULL, Load, predicted_wait
from headway.store.database import Database
from headway.store.queries import query

PLAN_S = 1.0  # how long a plan counts as new
COUNT_S = 5.0  # and a count
EVENLY_PER_S = 10.0  # when more end in a second, their rate says when the next will
COUNTED = 10_000  # ready tasks; behind more than these it is at least as late
USED_S = 60.0  # who submitted so lately, and has few waiting, is counted together with whoever must be
FEW = 500
AT_ONCE = 200
MOST = 10_000
_READY = query("allowance.ready")
_UNKNOWN = TenantState()


@dataclass
class _Count:
    """Ready tasks of a tenant at a moment, with what was stored since."""

    at: float
    tasks: int
    used: float  # when it was last asked for
    ends: tuple[float, ...] = ()  # when its own running tasks will probably have ended, if it has as many as it may

    def now(self, at: float, per_s: float) -> int:
        return max(0, self.tasks - round((at - self.at) * per_s))


@dataclass
class Promises:
    database: Database
    outlook: Outlook
    fleet: Fleet
    scenes: Scenes
    clock: Clock
    _ends: tuple[float, ...] = ()
    _plan: tuple[float, PlanState] = (-PLAN_S, PlanState())
    _counts: dict[int, _Count] = field(default_factory=dict)

    async def check(self, tenant: int, drafts: Sequence[Draft]) -> None:
        """Before they are stored: raises CannotPromise if one of them asked to be refused and would start too late."""
        strict = [kind for kind in {draft.interned for draft in drafts} if kind.definition.patience.refuse_late]
        if not strict:
            return
        wait = await self.wait(tenant, drafts)
        tolerance_s = min(kind.tolerance_us for kind in strict) / 1_000_000
        if wait is not None and wait > tolerance_s:
            raise CannotPromise(
                f"it would start in about {duration_text(wait)}, and tolerates {duration_text(tolerance_s)}",
                retry_after=wait - tolerance_s,
                hint="raise delay_tolerance, or say `on_late: warn`; nothing was stored",
            )

    def stored(self, tenant: int, drafts: Sequence[Draft]) -> None:
        """More of a tenant's tasks wait now: those count that neither their time, nor others, nor their queue holds back."""
        if (count := self._counts.get(tenant)) is not None:
            closed = {kind for kind in {draft.interned for draft in drafts} if self._closed_for(kind) != 0.0}
            count.tasks += sum(1 for draft in drafts if draft.at_us is None and not draft.edges and draft.interned not in closed)

    async def wait(self, tenant: int, drafts: Sequence[Draft], *, stored: bool = False) -> float | None:
        """Seconds until the last of them will start; None when its time or its dependencies decide, or nothing is known.

        `stored`: they are among the tasks that wait.
        """
        if any(draft.at_us is not None or draft.edges for draft in drafts[:1]):
            return None
        load = await self._load(tenant)
        closed = self._closed_for(drafts[0].interned)
        if closed is None:
            return None
        wait = predicted_wait(load, -1 if stored else len(drafts) - 1)
        return max(wait, closed) if wait is not None else None

    def _closed_for(self, kind: Interned) -> float | None:
        """Seconds until the queue of a task lets it go; None when nobody knows."""
        definitions, now = self.scenes.definitions, self.clock.now()
        rules = kind.definition.rules
        verdict = judge(rules, definitions.queues.get(rules.queue), peak=self._plan[1].peak, keep=False, now=now)
        if verdict.gate is not Gate.CLOSED:
            return 0.0
        return (verdict.until - now).total_seconds() if verdict.until is not None else None

    async def _load(self, tenant: int) -> Load:
        now = time.monotonic()
        if now - self._plan[0] >= PLAN_S:
            self._plan = (now, self._plan[1])  # those who come meanwhile go by the last one
            self._plan = (now, await self.outlook.read())
            self._ends = await self._next_ends(self._plan[1])
        plan = self._plan[1]
        count = self._counts.get(tenant)
        if count is None or now - count.at >= COUNT_S:
            count = await self._count(tenant, now)
        count.used = now
        own = plan.tenants.get(tenant, _UNKNOWN)
        leaving = own.rate or plan.drain_per_s
        served = own.served or (plan.drain_per_s if plan.utilisation >= FULL else 0.0)  # of a fleet with room it says what came
        if count.ends:  # what others do does not matter
            return Load(self.fleet.open, 1.0, count.now(now, 0.0), 0.0, plan.top_k, count.ends)
        rivals = sum(1 for one, other in plan.tenants.items() if other.waiting and one != tenant) + 1
        return Load(self.fleet.open, plan.utilisation, count.now(now, leaving), served, plan.top_k, self._ends, rivals)

    async def _next_ends(self, plan: PlanState) -> tuple[float, ...]:
        """When what runs will probably have ended, on a full fleet where that is seldom."""
        if plan.utilisation < FULL or plan.drain_per_s > EVENLY_PER_S:
            return ()
        return ends_of(await self._held())

    async def _held(self) -> list[Held]:
        return await self.scenes.held([node.id for node in self.fleet.nodes.values() if not node.closed]) or []

    async def _own_ends(self, tenant: int) -> tuple[float, ...]:
        """When its running tasks will probably have ended, if it may have no more of them."""
        if not self._at_quota(tenant):
            return ()
        return ends_of([one for one in await self._held() if one.tenant == tenant])

    def _at_quota(self, tenant: int) -> bool:
        state = self._plan[1].tenants.get(tenant)
        return state is not None and state.at_quota

    async def _count(self, tenant: int, now: float) -> _Count:
        """Count a tenant's ready tasks, and those of others that will have to be counted soon."""
        tenants = [*self._due(now, tenant), tenant]
        async with self.database.cold() as connection:
            rows = dict(await connection.fetch(_READY, tenants, COUNTED, self._plan[1].closed))
        if len(self._counts) > MOST:
            self._counts.clear()
        for one in tenants:
            before = self._counts.pop(one, None)
            self._counts[one] = _Count(now, rows[one], before.used if before is not None else now)
        count = self._counts[tenant]
        count.ends = await self._own_ends(tenant)
        return count

    def _due(self, now: float, but: int) -> list[int]:
        """Tenants in use that were counted some time ago. Those come first: whoever is counted goes to the end."""
        due = (
            one for one, count in islice(self._counts.items(), 5 * AT_ONCE)
            if one != but and count.tasks < FEW and not self._at_quota(one) and count.used > now - USED_S and count.at < now - COUNT_S / 2
        )  # fmt: skip
        return list(islice(due, AT_ONCE))
