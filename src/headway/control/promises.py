"""When a task that is submitted now will start, from what the planner published, looked up at most once a second for each tenant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.control.draft import Draft
from headway.control.fleet import Fleet
from headway.control.outlook import Outlook
from headway.domain.units import duration_text
from headway.errors import CannotPromise
from headway.policy.promise import Load, predicted_wait
from headway.store.database import Database
from headway.store.queries import query

KEPT_S = 1.0
COUNTED = 10_000  # ready tasks; behind more than these it is at least as late
_READY = query("allowance.ready")


@dataclass
class Promises:
    database: Database
    outlook: Outlook
    fleet: Fleet
    _loads: dict[int, tuple[float, Load]] = field(default_factory=dict)

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
                hint="try again later, raise delay_tolerance, or say `on_late: warn`; nothing was stored",
            )

    async def wait(self, tenant: int, drafts: Sequence[Draft]) -> float | None:
        """Seconds until the last of them will start; None when its time or its dependencies decide, or nothing is known."""
        if any(draft.at_us is not None or draft.edges for draft in drafts[:1]):
            return None
        return predicted_wait(await self._load(tenant), len(drafts) - 1)

    async def _load(self, tenant: int) -> Load:
        kept = self._loads.get(tenant)
        if kept is not None and time.monotonic() - kept[0] < KEPT_S:
            return kept[1]
        plan = await self.outlook.read()
        async with self.database.cold() as connection:
            ahead = await connection.fetchval(_READY, tenant, COUNTED)
        own = plan.tenants.get(tenant)
        rate = own.rate if own is not None and own.rate > 0 else plan.drain_per_s
        nodes = sum(node.accepting for node in self.fleet.nodes.values())
        if len(self._loads) > 10_000:
            self._loads.clear()
        load = Load(nodes, plan.utilisation, ahead, rate, plan.top_k)
        self._loads[tenant] = (time.monotonic(), load)
        return load
