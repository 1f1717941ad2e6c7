"""When a task that is submitted now will start, from what the planner published and what waits in front of it.

Asked for every submission, so it may cost next to nothing: the plan is read once a second for all tenants, a tenant's waiting tasks are
counted every few seconds, and in between the count goes on by what was stored here and at the rate its tasks start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.control.draft import Draft
from headway.control.fleet import Fleet
from headway.control.outlook import Outlook, PlanState
from headway.domain.units import duration_text
from headway.errors import CannotPromise
from headway.policy.promise import Load, predicted_wait
from headway.store.database import Database
from headway.store.queries import query

PLAN_S = 1.0  # how long a plan counts as new
COUNT_S = 5.0  # and a count
COUNTED = 10_000  # ready tasks; behind more than these it is at least as late
_READY = query("allowance.ready")


@dataclass
class _Count:
    """Ready tasks of a tenant at a moment, with what was stored since."""

    at: float
    tasks: int

    def now(self, at: float, per_s: float) -> int:
        return max(0, self.tasks - round((at - self.at) * per_s))


@dataclass
class Promises:
    database: Database
    outlook: Outlook
    fleet: Fleet
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

    def stored(self, tenant: int, tasks: int) -> None:
        """More of a tenant's tasks are ready now."""
        if (count := self._counts.get(tenant)) is not None:
            count.tasks += tasks

    async def wait(self, tenant: int, drafts: Sequence[Draft], *, stored: bool = False) -> float | None:
        """Seconds until the last of them will start; None when its time or its dependencies decide, or nothing is known.

        `stored`: they are among the tasks that wait.
        """
        if any(draft.at_us is not None or draft.edges for draft in drafts[:1]):
            return None
        return predicted_wait(await self._load(tenant), -1 if stored else len(drafts) - 1)

    async def _load(self, tenant: int) -> Load:
        now = time.monotonic()
        if now - self._plan[0] >= PLAN_S:
            self._plan = (now, self._plan[1])  # those who come meanwhile go by the last one
            self._plan = (now, await self.outlook.read())
        plan = self._plan[1]
        count = self._counts.get(tenant)
        if count is None or now - count.at >= COUNT_S:
            count = await self._count(tenant, now)
        own = plan.tenants.get(tenant)
        rate = own.rate if own is not None and own.rate > 0 else plan.drain_per_s
        nodes = sum(not node.closed for node in self.fleet.nodes.values())
        return Load(nodes, plan.utilisation, count.now(now, rate), rate, plan.top_k)

    async def _count(self, tenant: int, now: float) -> _Count:
        async with self.database.cold() as connection:
            count = _Count(now, await connection.fetchval(_READY, tenant, COUNTED))
        if len(self._counts) > 10_000:
            self._counts.clear()
        self._counts[tenant] = count
        return count
