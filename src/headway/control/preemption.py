"""Making room for urgent tasks on a full fleet, and giving it back (E9).

Runs where the planner runs, under its epoch. Who stops for whom is policy.preemption.choose. In one transaction the victims are told
to stop and the late task is leased to their node; its agent begins it as soon as they stand still. A frozen victim keeps its own
room in the planner's books, so nobody else can take it: when the late task has left, the victim goes on.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headway import telemetry
from headway.control.bus import Bus
from headway.control.clock import Clock
from headway.control.definitions import Definitions
from headway.control.leader import Leader
from headway.control.notices import tell_each
from headway.control.planner import Planner
from headway.control.settle import Effects, tell
from headway.domain.lifecycle import State
from headway.domain.resources import fits
from headway.domain.task import Category
from headway.policy.order import Group, Key
from headway.policy.preemption import (
    BREATH_S,
    LONGEST_LOAN_S,
    LOOK_S,
    MOST_LATE,
    MOST_NODES,
    PATIENCE_S,
    Candidate,
    Choice,
    Late,
    Mode,
    Space,
    choose,
    room_for_all,
)
from headway.store.database import Connection, Database
from headway.store.queries import query

VAIN_S = 2.0  # after a look that found nobody to stop; a new urgent task is looked at all the same
RELOAD_S = 10.0  # how often to look for loans nobody here remembers
GRACE_S = 5.0  # for a checkpoint
COUNT_S = 2.0  # who may stop others is counted so often, while somebody is late
MOST_CANDIDATES = 2_000

_LATE = query("preemption.late")
_CANDIDATES = query("preemption.candidates")
_LOCK = query("preemption.lock")
_NOTE = query("preemption.note")
_LEND = query("preemption.lend")
_OPEN = query("preemption.open")
_PASS_ON = query("preemption.pass_on")
_BACK = query("preemption.back")
_FORGET = query("preemption.forget")
_ASK = query("control.ask")


@dataclass(frozen=True)
class Waiting:
    """A late task as the policy sees it, and where it stands in the planner's books."""

    late: Late
    group: Group
    key: Key


@dataclass
class Preemption:
    database: Database
    leader: Leader
    planner: Planner
    definitions: Definitions
    bus: Bus
    clock: Clock
    wake: Callable[[], None] = lambda: None
    _resting: bool = False  # nothing waits and nothing is lent: the planner tells when that changes
    _from: int = 0  # where among the nodes to look next: only some are looked at each time
    _in_vain: int = 0  # nodes that were looked at since somebody was last stopped
    _lent: set[int] = field(default_factory=set)  # tasks that others stopped for
    _vain: tuple[float, frozenset[int]] = (0.0, frozenset())  # until when not to look again, and who is late in vain
    _over: dict[int, float] = field(default_factory=dict)  # loans that nobody needs any more, since when
    _counted: float = -math.inf  # when it was last counted who may stop others
    _epoch: int = -1
    _reloaded: float = 0.0

    def __post_init__(self) -> None:
        self.bus.on_ended.append(self._ended)
        self.planner.on_stir.append(self._stirred)

    def _ended(self, ids: list[int]) -> None:
        if self._lent and not self._lent.isdisjoint(ids):
            self.wake()

    def _stirred(self) -> None:
        if self._resting and self.planner.board.lanes:
            self._resting = False
            self.wake()

    async def run_once(self) -> float:
        """One look: give back what is no longer needed, then make room for who is late."""
        now, epoch = time.monotonic(), self.leader.epoch("planner")
        late = await self._late()
        if self._lent or self._over or epoch != self._epoch or now - self._reloaded > RELOAD_S:
            self._epoch, self._reloaded = epoch, now
            late = await self._give_back(late)
        if late and (now >= self._vain[0] or any(w.late.urgent and w.late.id not in self._vain[1] for w in late)):
            found = await self._make_room(late)
            self._vain = (0.0 if found else now + VAIN_S, frozenset(w.late.id for w in late))
        self._resting = not (self._over or self._lent or self.planner.board.lanes)
        return RELOAD_S if self._resting else BREATH_S / 3 if self._over else LOOK_S

    # Who is late

    async def _late(self) -> list[Waiting]:
        """Waiting tasks that should have begun and that no node has room for, the most overdue first."""
        before = self.clock.now() - datetime.timedelta(seconds=PATIENCE_S)
        if not self.planner.late(before, 1):
            return []
        if time.monotonic() - self._counted > COUNT_S:
            self._counted = time.monotonic()
            self.planner.conditions.divide()
        overdue = self.planner.late(before, MOST_LATE)
        async with self.database.hot() as connection:
            rows = {row["id"]: row for row in await connection.fetch(_LATE, [key[2] for _, key in overdue])}
        found = []
        for group, key in overdue:
            row, asked = rows.get(key[2]), self.definitions.shapes.get(group[1])
            if row is not None and asked is not None and row["shape"] == group[1]:
                entitled = self.planner.board.usage.may_stop_others(group[0])
                late = Late(key[2], asked, row["category"] == Category.URGENT, row["cap_ms"] / 1000, group[0], entitled)
                found.append(Waiting(late, group, key))
        return found

    # Making room

    async def _make_room(self, late: list[Waiting]) -> bool:
        """Whether somebody was stopped, or there are nodes that were not looked at."""
        wide = [waiting for waiting in late if waiting.late.id not in self._lent]
        fitting = [s for s in self.planner.spaces() if s.accepting and any(fits(w.late.asked, s.capacity) for w in wide)]
        if not fitting:
            return False
        at = self._from % len(fitting)
        spaces = (fitting[at:] + fitting[:at])[:MOST_NODES]
        self._from, self._in_vain = at + len(spaces), self._in_vain + len(spaces)
        candidates, attempts = await self._candidates(wide, spaces)
        may_stop_others = self.planner.board.usage.may_stop_others
        for waiting in wide:
            asking = replace(waiting.late, entitled=may_stop_others(waiting.late.tenant))  # it may hold more since the last one
            choice = choose(asking, spaces, candidates) if candidates else None
            if choice is not None and await self._stop(choice, waiting, attempts):
                self._in_vain = 0
                candidates = [c for c in candidates if c.node != choice.node]  # its room has changed: next round
                spaces = [s for s in spaces if s.node != choice.node]
        return self._in_vain < len(fitting)

    async def _candidates(self, late: list[Waiting], spaces: list[Space]) -> tuple[list[Candidate], dict[int, int]]:
        """Who might stop there: of tenants that stop only their own tasks, just those."""
        own = None if any(waiting.late.entitled for waiting in late) else [waiting.late.tenant for waiting in late]
        async with self.database.hot() as connection:
            rows = await connection.fetch(_CANDIDATES, [space.node for space in spaces], MOST_CANDIDATES, own)
        known = await self.definitions.load(row["definition"] for row in rows)
        found, attempts = [], {}
        for row in rows:
            definition = known[row["definition"]].definition
            if definition.rules.preemptible:
                attempts[row["id"]] = row["attempt"]
                found.append(
                    Candidate(
                        row["id"], row["node"], definition.resources.amounts(), row["cap_ms"] / 1000, row["ran_s"], row["unsaved_s"],
                        times=row["times"], away_s=row["away_s"], back_s=row["back_s"], tenant=row["tenant"],
                    )
                )  # fmt: skip
        return found, attempts

    async def _stop(self, choice: Choice, waiting: Waiting, attempts: dict[int, int]) -> bool:
        """Tell the victims to stop and lease the late task to their node; False when something has changed meanwhile."""
        victims = sorted(choice.victims)
        effects = Effects()

        async def work(connection: Connection) -> Any:
            effects.clear()
            await self.leader.fence(connection, "planner")
            rows = {row["id"]: row for row in await connection.fetch(_LOCK, sorted([*victims, choice.late]))}
            if not all(_still(rows.get(victim), choice.node, attempts[victim]) for victim in victims):
                return None
            lent = await connection.fetchrow(_LEND, choice.late, choice.node, waiting.group[1])
            if lent is None:
                return None
            modes = [choice.victims[victim] for victim in victims]
            await connection.execute(_NOTE, victims, [attempts[v] for v in victims], modes, choice.node, choice.late)
            words = ["pause" if mode is Mode.FREEZE else "yield" for mode in modes]
            graces = ["" if mode is Mode.FREEZE else str(GRACE_S) for mode in modes]
            await connection.fetch(_ASK, victims, [attempts[v] for v in victims], [choice.node] * len(victims), words, graces)
            events = [(rows[v]["tenant"], "task.preempted", v, {"mode": choice.victims[v].value}) for v in victims]
            await tell_each(connection, events, effects)
            return lent

        lent = await self.database.transact(work)
        if lent is None:
            self.planner.given(waiting.group, waiting.key, choice.node)
            return False
        self._lent.add(choice.late)
        telemetry.preempted([mode.value for mode in choice.victims.values()])
        self._told(waiting, choice.node)
        tell(self.bus, effects)
        return True

    def _told(self, waiting: Waiting, node: int) -> None:
        self.planner.dispatch_with_controls(node)
        self.planner.lent(waiting.group, node)
        self.planner.given(waiting.group, waiting.key, node)

    # Giving it back

    async def _give_back(self, late: list[Waiting]) -> list[Waiting]:
        """Victims whose room is no longer needed go on, or serve another late task first; returns who is still late."""
        async with self.database.hot() as connection:
            rows = await connection.fetch(_OPEN)
        self._lent = {row["beneficiary"] for row in rows if row["needed"]}
        over: dict[int, list[Any]] = {}
        for row in rows:
            if row["held"] and not row["needed"] and row["mode"] == Mode.FREEZE:
                over.setdefault(row["beneficiary"], []).append(row)
        now = time.monotonic()
        self._over = {beneficiary: self._over.get(beneficiary, now) for beneficiary in over}
        rooms = self.planner.rooms
        settled = [row for row in rows if _frozen_for(row) and row["node"] in rooms and room_for_all(rooms[row["node"]].free)]
        if settled:
            await self._resume(settled)
        for beneficiary, owners in over.items():
            taken = await self._pass_on(beneficiary, owners, late)
            if taken is not None:
                late = [waiting for waiting in late if waiting is not taken]
            elif now - self._over[beneficiary] < BREATH_S:
                continue
            else:
                await self._resume(owners)
            del self._over[beneficiary]
        if any(not row["held"] for row in rows):
            await self._forget()
        return late

    async def _pass_on(self, beneficiary: int, owners: list[Any], late: list[Waiting]) -> Waiting | None:
        """One pause serves late tasks one after another, for a while; each must fit where the last one was."""
        node = owners[0]["node"]
        if any(row["state"] != State.PAUSED or row["away_s"] > LONGEST_LOAN_S for row in owners):
            return None
        space = next((s for s in self.planner.spaces() if s.node == node and s.accepting), None)
        if space is None:
            return None
        await self.definitions.load_shapes(row["shape"] for row in owners)
        room = list(space.free)
        for row in owners:
            for i in (0, 3, 4):
                room[i] += self.definitions.shapes[row["shape"]].amounts()[i]
        for waiting in late:
            asked = waiting.late.asked
            fitting = all(need <= there for need, there in zip(asked.amounts(), room, strict=True))
            fitting = fitting and (waiting.late.entitled or all(row["tenant"] == waiting.late.tenant for row in owners))
            if waiting.late.urgent and fitting and fits(asked, space.capacity) and await self._lend_again(beneficiary, waiting, node):
                return waiting
        return None

    async def _lend_again(self, beneficiary: int, waiting: Waiting, node: int) -> bool:
        async def work(connection: Connection) -> Any:
            await self.leader.fence(connection, "planner")
            lent = await connection.fetchrow(_LEND, waiting.late.id, node, waiting.group[1])
            if lent is not None:
                await connection.execute(_PASS_ON, beneficiary, waiting.late.id, node)
            return lent

        lent = await self.database.transact(work)
        if lent is None:
            return False
        self._lent.add(waiting.late.id)
        self._told(waiting, node)
        return True

    async def _resume(self, owners: list[Any]) -> None:
        """They go on, unless a person paused them meanwhile: then they are that person's."""

        async def work(connection: Connection) -> list[int]:
            await self.leader.fence(connection, "planner")
            rows = await connection.fetch(_LOCK, sorted(row["task"] for row in owners))
            held = {row["task"]: row for row in owners}
            going = [r for r in rows if r["hold_at"] is None and _is(r, held[r["id"]])]
            if going:
                n = len(going)
                tasks, attempts, nodes = zip(*((r["id"], r["attempt"], r["node"]) for r in going), strict=True)
                await connection.fetch(_ASK, list(tasks), list(attempts), list(nodes), ["resume"] * n, [""] * n)
            await connection.execute(_BACK, [row["task"] for row in owners])
            return [row["node"] for row in going]

        self.bus.control(await self.database.transact(work))

    async def _forget(self) -> None:
        async def work(connection: Connection) -> None:
            await self.leader.fence(connection, "planner")
            await connection.execute(_FORGET)

        await self.database.transact(work)


def _still(row: Any, node: int, attempt: int) -> bool:
    """Whether a victim is as it was chosen."""
    return (
        row is not None
        and (row["node"], row["attempt"], row["state"]) == (node, attempt, State.RUNNING)
        and row["hold_at"] is None
        and row["cancel_at"] is None
    )


def _frozen_for(row: Any) -> bool:
    """Whether it stands still for a task that still needs the room."""
    return bool(row["held"] and row["needed"] and row["mode"] == Mode.FREEZE and row["state"] == State.PAUSED)


def _is(row: Any, owner: Any) -> bool:
    return (row["node"], row["attempt"]) == (owner["node"], owner["attempt"]) and row["cancel_at"] is None
