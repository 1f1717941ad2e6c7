"""What nodes hold, counted in the database when what the planner assumes of them may be wrong (G2).

The planner keeps the room of nodes by what it hands out and what it hears of; a count sets it absolutely. Whatever happens on a node
while it is being counted may or may not be in the count: such a node is counted again, and the count thrown away.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.control.definitions import Definitions
from headway.policy.order import Group
from headway.policy.placement import Board
from headway.store.database import Database
from headway.store.queries import query

ALL_S = 10.0  # how often every node is counted: heals what nobody noticed
RESTS = 20  # times as long as the last count took: while somebody holds a snapshot, a count reads all that ended since

_ALLOCATED = query("task.allocated")


@dataclass
class Counting:
    """Which nodes are to be counted, and the counts themselves."""

    database: Database
    definitions: Definitions
    board: Board
    due: set[int] = field(default_factory=set)
    _unknown: set[int] = field(default_factory=set)  # nodes never counted yet: they do not wait for a rest to end
    _reserved: Counter[int] = field(default_factory=Counter)  # by node: tasks on the short way, not in the database yet
    _under_way: bool = False
    _all_at: float = 0.0
    _rests_until: float = 0.0

    def joined(self, node: int) -> None:
        """A node of which nothing is known."""
        self.due.add(node)
        self._unknown.add(node)

    def happened(self, *nodes: int) -> None:
        """Attempts began or ended on these nodes: a count under way may or may not have seen it."""
        if self._under_way:
            self.due.update(nodes)

    def reserved(self, nodes: Iterable[int]) -> None:
        """These nodes will hold tasks that are not in the database yet."""
        self._reserved += Counter(nodes)

    def stored(self, nodes: set[int]) -> None:
        """What was reserved on these nodes is in the database now, or never will be."""
        self._reserved -= Counter(nodes)
        self.happened(*nodes)

    def all_soon(self) -> None:
        """At the next round every node is counted."""
        self._all_at = 0.0

    async def run_once(self) -> None:
        """Count what is due, unless the last count still rests."""
        now = time.monotonic()
        if now > self._all_at:
            self._all_at = now + ALL_S
            self.due.update(self.board.rooms)
        due = self.due if now >= self._rests_until else self.due & self._unknown
        if nodes := {node for node in due if not self._reserved[node]}:
            await self._count(nodes)
            self._rests_until = time.monotonic() + RESTS * (time.monotonic() - now)

    async def _count(self, nodes: set[int]) -> None:
        """Set the room of nodes from the database, absolutely."""
        self.due -= nodes
        self._under_way = True  # until the last of it is used: shapes are waited for too
        try:
            async with self.database.hot() as connection:
                rows = await connection.fetch(_ALLOCATED, list(nodes))
            await self.definitions.load_shapes(row["shape"] for row in rows)
        except BaseException:
            self.due |= nodes
            raise
        finally:
            self._under_way = False
        counted: dict[int, dict[Group, int]] = {node: {} for node in nodes}
        for row in rows:
            counted[row["node"]][(row["tenant"], row["shape"])] = row["count"]
        for node, counts in counted.items():
            if node in self.board.rooms and self._is_settled(node):
                self._unknown.discard(node)
                self.board.set_held(node, counts)

    def _is_settled(self, node: int) -> bool:
        """Whether nothing happened on the node while it was being counted."""
        return node not in self.due and not self._reserved[node]
