"""The results of what a task waited for, put into its order when it asked for them (`with_results`, C3).

They are read when the order goes out, not when it is planned: tasks that do not ask cost nothing, and a server that dies takes
nothing with it, for the next one reads them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headway.control.definitions import Definitions
from headway.store.database import Database
from headway.store.queries import query
from headway.wire.exchange import Dependencies, Order

MOST = 8 * 2**20  # bytes of results in one order
_RESULTS = query("edge.results")
_SIZES = query("edge.result_sizes")
_NOTHING = msgspec.Raw(b"null")


@dataclass
class Results:
    database: Database
    definitions: Definitions

    async def attach(self, orders: list[Order]) -> None:
        """Give those that asked what they asked for."""
        asking = self.definitions.with_results
        if not asking:
            return
        wanted = {order.id: order for order in orders if order.definition in asking and order.dependencies is None}
        if not wanted:
            return
        async with self.database.cold() as connection:
            sizes = dict(await connection.fetch(_SIZES, list(wanted)))
            fitting = [task for task in wanted if sizes.get(task, 0) <= MOST]
            rows = await connection.fetch(_RESULTS, fitting)
        known = await self.definitions.load({row["definition"] for row in rows})
        found = {task: Dependencies() for task in wanted}
        for row in rows:
            into = found[row["downstream"]]
            name = row["name"] if row["name"] not in into.results else str(row["upstream"])
            into.results[name] = msgspec.Raw(row["result"]) if row["result"] else _NOTHING
            if known[row["definition"]].definition.codec == "pickle":
                into.pickled.append(name)
        for task, order in wanted.items():
            if sizes.get(task, 0) > MOST:
                found[task].error = f"the results of what it waited for are {sizes[task]} bytes, more than {MOST}"
            order.dependencies = msgspec.json.encode(found[task])
