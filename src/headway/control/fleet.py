"""The nodes as this server knows them, read from the database every few seconds, and at once when one comes, leaves or changes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from headway.control.definitions import Interned
from headway.control.sharing import SharedLook
from headway.domain import languages
from headway.domain.resources import Capacity, Resources, describe, fits, missing_labels
from headway.errors import UnsatisfiableResources
from headway.store.database import Database
from headway.store.queries import query
from headway.wire.exchange import ENDING

_ALL = query("node.all")
UP, LOST, GONE = 0, 1, 2
STATE_WORDS = {UP: "up", LOST: "lost", GONE: "gone"}
DRAINING, QUARANTINED = "draining", "quarantined"
NODE_WORDS = (*STATE_WORDS.values(), DRAINING, QUARANTINED)


class Node(msgspec.Struct, frozen=True):
    id: int
    name: str
    boot: str
    state: int
    drain: bool
    trouble: str
    capacity: Capacity
    region: str
    version: str
    seen_at: datetime.datetime
    clock_ms: int  # how far its clock is ahead of the database's

    @property
    def closed(self) -> str:
        """Why it takes no new tasks; empty when it does."""
        if self.state != UP:
            return f"is {STATE_WORDS[self.state]}"
        return "is draining" if self.drain else self.trouble

    @property
    def word(self) -> str:
        if self.state != UP:
            return STATE_WORDS[self.state]
        if self.drain or self.trouble == ENDING:
            return DRAINING
        return QUARANTINED if self.trouble else STATE_WORDS[UP]


@dataclass
class Fleet:
    database: Database
    on_change: Callable[[], None] = lambda: None  # something else than heartbeats: other servers must hear of it too
    nodes: dict[int, Node] = field(default_factory=dict)
    open: int = 0  # those of them that take new tasks
    _satisfiable: dict[int, bool] = field(default_factory=dict)  # by shape
    _capacities: dict[str, Capacity] = field(default_factory=dict)  # by their text: they seldom change

    def __post_init__(self) -> None:
        self._looking = SharedLook(lambda: self._look())

    async def refresh(self) -> None:
        """Read all nodes: what was committed before this call is known after it. Whoever looks first at a change tells of it.

        When a thousand agents come at once, after a restart of their server, there are a few looks, not a thousand.
        """
        await self._looking.fresh()

    async def _look(self) -> None:
        async with self.database.cold() as connection:
            rows = await connection.fetch(_ALL)
        before, self._capacities = self._capacities, {}
        nodes = {}
        for node, name, boot, state, drain, trouble, clock_ms, capacity, region, version, seen_at in rows:
            known = self._capacities.get(capacity) or before.get(capacity) or msgspec.json.decode(capacity, type=Capacity)
            self._capacities[capacity] = known
            nodes[node] = Node(node, name, boot, state, drain, trouble, known, region, version, seen_at, clock_ms)
        changed = nodes.keys() != self.nodes.keys() or any(map(_differ, nodes.values(), (self.nodes[node] for node in nodes)))
        self.nodes, self.open = nodes, sum(not node.closed for node in nodes.values())
        if changed:
            self._satisfiable.clear()
            self.on_change()

    def could_run(self, need: Resources) -> bool:
        """Whether some node of the fleet, empty, has room for it."""
        return any(fits(need, node.capacity) for node in self._judged())

    def could_ever_run(self, shape: int, need: Resources) -> bool:
        """The same for a shape, remembered. A fleet nobody has joined yet is not judged."""
        fine = self._satisfiable.get(shape)
        if fine is None:
            fine = self._satisfiable[shape] = self.could_run(need) or not self._judged()
        return fine

    def check_satisfiable(self, wanted: Iterable[Interned]) -> None:
        """Refuse what no node of the fleet could ever run (G4)."""
        for interned in wanted:
            if not self.could_ever_run(interned.shape, interned.definition.resources):
                need = interned.definition.resources
                raise UnsatisfiableResources(self.why_never(need), hint=self._remedy(need), field="resources")

    def why_never(self, need: Resources) -> str:
        """What to say of a task that no node could ever run."""
        fleet = self._judged()
        if nowhere := self._nowhere(need):
            return f"no node could ever run this: none of {len(fleet)} has {', '.join(nowhere)}"
        largest = max(fleet, key=lambda node: node.capacity.amounts())
        return (
            f"no node could ever run this: it asks for {describe(need)}; the largest of {len(fleet)} nodes "
            f"({largest.name}) has {largest.capacity.cpus_milli / 1000:g} cpus, {largest.capacity.memory // 2**20} MiB memory, "
            f"{largest.capacity.disk // 2**20} MiB disk"
        )

    def _remedy(self, need: Resources) -> str:
        nowhere = self._nowhere(need)
        programs = [language.program for language in languages.LANGUAGES if language.label in nowhere]
        if programs:
            return f"install {', '.join(programs)} on a node, which sees it within a minute; `headway node show NAME` lists what it has"
        return "add a node with this label" if nowhere else "ask for less, or add a node that has it"

    def _nowhere(self, need: Resources) -> list[str]:
        """Labels it asks for that no node has: then amounts are not the question."""
        lacking = [set(missing_labels(need, node.capacity.labels)) for node in self._judged()]
        return sorted(set.intersection(*lacking)) if lacking else []

    def _judged(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.state != GONE]

    def by_name(self, name: str) -> Node | None:
        return next((node for node in self.nodes.values() if node.name == name or str(node.id) == name), None)


def _differ(now: Node, before: Node) -> bool:
    """In something else than what each heartbeat brings."""
    return (
        now.capacity is not before.capacity or now.boot != before.boot or now.state != before.state or now.drain != before.drain
        or now.trouble != before.trouble
    )  # fmt: skip
