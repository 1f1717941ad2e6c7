"""The short way for a few tasks on an idle system: stored and handed to a node in one statement, with one wait for the disk (L2).

Only when this server plans, nothing waits in front of them and all fit at once, so nobody is passed. The statement is fenced by the
planner's epoch: if another server leads by now, the tasks are stored as ready, and that one plans them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.control.batch import Batch
from headway.control.bus import Bus
from headway.control.planner import Planner
from headway.domain.lifecycle import State
from headway.store.database import Database
from headway.store.queries import query

MOST = 16  # tasks; more are cheaper by COPY
_EXPRESS = query("task.express")


@dataclass
class Express:
    database: Database
    planner: Planner
    bus: Bus

    async def store(self, batch: Batch) -> bool:
        """Store the batch and lease it; False when it must go the ordinary way."""
        if not self.planner.may_reserve or not batch.plain or batch.size > MOST:
            return False
        batch.reset()
        rows, ready = batch.values(), batch.ready()
        if sum(map(len, ready.values())) < len(rows):
            return False  # some wait for their time
        nodes = self.planner.reserve(ready)
        if nodes is None:
            return False
        sessions = self.planner.talking()
        columns = [list(column) for column in zip(*rows, strict=True)]
        try:
            async with self.database.hot() as connection:
                stored = await connection.fetch(_EXPRESS, *columns, [nodes[row[0]] for row in rows], self.planner.leading_epoch)
        except BaseException:
            self.planner.step_down()  # unknown whether they were leased
            raise
        finally:
            self.planner.stored(set(nodes.values()))
        if all(row["state"] == State.LEASED for row in stored):
            self.planner.dispatch(stored, sessions)
            for request in batch.requests:
                request.state = State.LEASED
        else:
            self.planner.recount(set(nodes.values()))
            self.bus.ready(ready)
        return True
