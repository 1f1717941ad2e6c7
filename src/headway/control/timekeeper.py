"""The timekeeper duty: tasks whose time has come become ready; large releases go on."""

from __future__ import annotations

from dataclasses import dataclass

from headway.control.bus import Bus, by_group
from headway.control.expanding import Expander
from headway.control.leader import Leader
from headway.control.settle import Effects, settle_deferred, tell
from headway.control.taken import Taken
from headway.store.database import Connection, Database
from headway.store.queries import query

BATCH = 2_000
LOOK_S = 5.0  # how often to look by oneself: what is stored here or elsewhere is told by bus and NOTIFY
_COME_DUE = query("task.come_due")
_LOOK = query("task.next_due")


@dataclass
class Timekeeper:
    database: Database
    leader: Leader
    bus: Bus
    expander: Expander

    async def run_once(self) -> float:
        async with self.database.hot() as connection:
            look = await connection.fetchrow(_LOOK)
        next_due: float | None = look["next_due"]
        came = next_due is not None and next_due <= 0 and await self._come_due()
        if look["deferred"] and await self._release_deferred():  # last: whatever fails here, the time of others has come
            return 0.0
        if came:
            return 0.0
        longest = min(LOOK_S, self.expander.next_look_s())
        return longest if next_due is None or next_due <= 0 else min(max(next_due, 0.001), longest)

    async def _come_due(self) -> bool:
        async with self.database.hot() as connection:
            due = await connection.fetch(_COME_DUE, self.leader.epoch("timekeeper"), BATCH)
        self.bus.ready(by_group((r["tenant"], r["shape"], (r["start_by"], r["cap_ms"], r["id"])) for r in due))
        return bool(due)

    async def _release_deferred(self) -> bool:
        async def work(connection: Connection) -> Effects | None:
            taken.anew()
            await self.leader.fence(connection, "timekeeper")
            return await settle_deferred(connection) or await self.expander.next(connection, taken)

        with Taken(self.expander.allowances) as taken:
            effects = await self.database.transact(work)
        if effects is not None:
            tell(self.bus, effects)
        return effects is not None
