"""What waits in every queue, bounded in cost: groups by a loose scan of the ready index, each counted up to a limit (E2 F5)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from headway.control.clock import Clock
from headway.control.definitions import Definitions
from headway.control.outlook import Outlook, PlanState
from headway.control.queues import Queues
from headway.domain.lifecycle import State
from headway.domain.queues import PREDEFINED, Rules, hours_text
from headway.policy.peak import judge
from headway.policy.placement import Gate
from headway.store.database import Database
from headway.store.queries import query
from headway.wire.views.fleet import QueueView

COUNTED = 100_000  # depths above this are shown as this: counting must not cost more than the work
MOST_GROUPS = 2_000
_DEPTHS = query("queue.depths")
_NOT_READY = query("queue.not_ready")
_HELD = query("queue.held")


@dataclass
class QueueViews:
    database: Database
    clock: Clock
    definitions: Definitions
    queues: Queues
    outlook: Outlook
    _kept: dict[int | None, tuple[float, list[QueueView], dict[str, int]]] = field(default_factory=dict)

    async def look(self, tenant: int | None) -> tuple[list[QueueView], dict[str, int]]:
        """Every queue, and the totals by state, of a tenant or of all; looked up at most once a second."""
        kept = self._kept.get(tenant)
        if kept is not None and time.monotonic() - kept[0] < 1.0:
            return kept[1], dict(kept[2])
        state, now = await self.outlook.read(), self.clock.now()
        async with self.database.hot() as connection:
            horizon = self.clock.later(state.lead_s)
            ready = await connection.fetch(_DEPTHS, tenant, MOST_GROUPS, COUNTED, horizon, [*state.early], [*state.early.values()])
            not_ready = await connection.fetch(_NOT_READY, tenant, COUNTED)
            held = await connection.fetch(_HELD, tenant)
        await self.definitions.load_shapes(row["shape"] for rows in (ready, not_ready, held) for row in rows)
        views = {name: self._view(name, state, now, tenant) for name in (*PREDEFINED, *sorted(self.queues.by_name))}
        for row in ready:
            self._count_ready(views, row)
        for row in not_ready:
            view = self._of(views, row["shape"])
            if row["state"] == State.SCHEDULED:
                view.scheduled += row["count"]
            else:
                view.blocked += row["count"]
        states = dict.fromkeys((state.word for state in State if not state.final), 0)
        for row in held:
            self._of(views, row["shape"]).running += row["on_nodes"]
            states[State(row["state"]).word] += row["count"]
        found = list(views.values())
        for word in ("blocked", "scheduled", "ready"):
            states[word] = sum(getattr(view, word) for view in found)
        if len(self._kept) > 1_000:
            self._kept.clear()
        self._kept[tenant] = (time.monotonic(), found, states)
        return found, dict(states)

    def forget(self) -> None:
        """A queue was changed: what was counted shows its old rules."""
        self._kept.clear()

    def _count_ready(self, views: dict[str, QueueView], row: Any) -> None:
        view = self._of(views, row["shape"])
        due = row["ready"] if view.name == "urgent" else row["due"]
        served = views["urgent"] if view.name in ("delayable", "periodic") else view  # what is due is shown where it is served
        view.ready += row["ready"] - due
        served.ready += due
        served.due += due
        for one, count in ((served, due), (view, row["ready"] - due)):
            if count and row["age"] is not None:  # of the first in the order, which is due if any is
                one.oldest_ready_s = max(one.oldest_ready_s or 0.0, row["age"])

    def _of(self, views: dict[str, QueueView], shape: int) -> QueueView:
        name = self.definitions.rules[shape].queue
        return views.get(name) or views.setdefault(name, QueueView(name, 0, 0, 0, 0, None))

    def _view(self, name: str, state: PlanState, now: Any, tenant: int | None) -> QueueView:
        queue = self.queues.get(name)
        verdict = judge(_PLAIN, queue, peak=state.peak, keep=False, now=now)
        word = "paused" if queue.paused else "closed" if verdict.gate is Gate.CLOSED else "open"
        return QueueView(
            name, 0, 0, 0, 0, None,
            missed=state.missed.get(name, 0) if tenant is None else None,
            state=word,
            reason="" if queue.paused else verdict.reason,
            runs=queue.runs.value,
            hours=[hours_text(hours) for hours in queue.hours],
            timezone=queue.timezone,
        )  # fmt: skip


_PLAIN = Rules(urgent=True)
