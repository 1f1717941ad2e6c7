"""Ends tasks that have become impossible: no node of the fleet could ever run them any more (G4). Runs where the planner runs.

A node that has left may only be restarted, or its successor not be there yet, so a task is ended only when it has been impossible for a
while. Lost nodes count, they may come back; and without any node nothing is judged, as at submission. What waits for its time or for others
is judged once it is ready.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headway.control.bus import Bus
from headway.control.definitions import Definitions
from headway.control.fleet import Fleet
from headway.control.leader import Leader
from headway.control.planner import Planner
from headway.control.record import fail_waiting
from headway.control.settle import Effects, settle, tell
from headway.domain.units import duration_text
from headway.logs import log
from headway.policy.order import Group
from headway.store.database import Connection, Database
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo

LOOK_S = 5.0
CHUNK = 100
PART_S = 0.05  # between parts: also behind a million of them the others get their turn at the database
_LOCK = query("task.lock_ready")


@dataclass
class Impossible:
    database: Database
    leader: Leader
    bus: Bus
    fleet: Fleet
    planner: Planner
    definitions: Definitions
    after_s: float
    _since: dict[int, float] = field(default_factory=dict)  # shape -> when it was first found that no node could run it

    async def run_once(self) -> float:
        now, waiting = time.monotonic(), self.planner.waiting()
        await self.definitions.load_shapes(shape for _, shape in waiting)  # another server may have told of one that is new here
        groups = [group for group in waiting if not self._could_run(group[1])]
        self._since = {shape: self._since.get(shape, now) for _, shape in groups}
        due = [group for group in groups if now - self._since[group[1]] >= self.after_s]
        ended = [await self._end(group) for group in due]
        return PART_S if CHUNK in ended else min(LOOK_S, self.after_s)

    def _could_run(self, shape: int) -> bool:
        return self.fleet.could_ever_run(shape, self.planner.board.shapes[shape])

    async def _end(self, group: Group) -> int:
        effects = Effects()

        async def work(connection: Connection) -> int:
            effects.clear()
            await self.leader.fence(connection, "planner")
            rows = await connection.fetch(_LOCK, *group, CHUNK)
            known = await self.definitions.load({row["definition"] for row in rows})
            waited_for = []
            for row in rows:
                what = known[row["definition"]]
                error = ErrorInfo("UnsatisfiableResources", self._reason(group[1]))
                waited_for += await fail_waiting(connection, row["id"], what, error, effects)
            await settle(connection, waited_for, effects)
            return len(rows)

        count = await self.database.transact(work)
        self.planner.read_again(group)
        if count:
            log("planner.impossible", level="warning", tenant=group[0], tasks=count, reason=self._reason(group[1]))
            tell(self.bus, effects)
        return count

    def _reason(self, shape: int) -> str:
        return f"{self.fleet.why_never(self.planner.board.shapes[shape])}, and that for {duration_text(self.after_s)}"
