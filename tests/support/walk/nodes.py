"""Nodes with a bad memory: they repeat, forget, restart, fall silent, leave, and come back with late reports.

In two things they are as strict as a real agent: without an answered heartbeat for as long as the fence they have ended what they ran and
are somebody new; and a boot that is given an attempt again which it has had tells its end again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headway.domain.lifecycle import Outcome
from headway.errors import NotFound, Unavailable
from headway.wire.exchange import Finished, Notice, Order, Orders, Output, Progress, Started
from tests.support.engine import ScriptedAgent, done
from tests.support.walk.programs import Programs
from tests.support.walk.world import FENCE_S, LOST_S, Gone, Violation, World

ANSWERS = {"pause": "paused", "resume": "resumed", "signal": "signalled", "yield": "yielding"}
REPEATED = ("finished", "returned", "started", "received", "notices")
Ref = tuple[int, int]


class Node:
    def __init__(self, fleet: Fleet, name: str, cpus: float) -> None:
        self.fleet, self.world, self.programs = fleet, fleet.world, fleet.programs
        self.name, self.cpus = name, cpus
        self.agent: ScriptedAgent | None = None
        self.held: dict[Ref, Order] = {}
        self.begun: set[Ref] = set()
        self.frozen: set[Ref] = set()
        self.old: list[Order] = []  # attempts it has reported, or forgot
        self.seen: dict[int, int] = {}  # task -> the highest attempt that this boot had
        self.past: dict[Ref, Finished] = {}  # how attempts of this boot ended; the others were given back
        self.unsaid: dict[str, list[Any]] = {}  # reports that were not answered
        self.renewed_at = 0.0
        self.silent_until = 0.0
        self.clock_ms = self.world.chance.choice((0, -180_000, 400_000))
        self.turn = asyncio.Lock()

    def may_run(self, task: int) -> list[Ref]:
        """Attempts of this task that may run here now."""
        return [] if self._is_fenced() else [ref for ref in self.held if ref[0] == task]

    def _is_fenced(self) -> bool:
        return time.monotonic() > self.renewed_at + FENCE_S

    async def boot(self) -> None:
        """All it ran has ended with the boot before."""
        self._drop_all()
        self.unsaid, self.seen, self.past = {}, {}, {}
        self.agent = None
        core = self.world.core()
        agent = ScriptedAgent(core, self.name, cpus=self.cpus)
        sent = time.monotonic()
        await self.world.ask(core, agent.join())
        self.agent, self.renewed_at = agent, sent

    async def act(self, *, calmly: bool = False) -> None:
        async with self.turn:
            try:
                await self._act(calmly)
            except (Gone, Unavailable):
                return  # it says the same again next time
            except NotFound:
                self.agent = None  # somebody removed it

    async def _act(self, calmly: bool) -> None:
        chance = self.world.chance
        if not calmly and time.monotonic() < self.silent_until:
            return
        if self.agent is None or (not calmly and (self._is_fenced() or chance.random() < 0.03)):
            await self.boot()
        if not calmly and chance.random() < 0.03:
            self.silent_until = time.monotonic() + LOST_S * chance.choice((0.2, 0.8, 1.3))
            return
        if not calmly and chance.random() < 0.02:
            await self._leave()
            return
        said = await self._news(calmly)
        reply = await self._say(said)
        if reply.lost or (not calmly and self._is_fenced()):  # too late to begin anything
            await self.boot()
        else:
            await self._hear(reply)

    async def _leave(self) -> None:
        """It ends in order: what it has not begun goes back, what it runs has ended."""
        ended = [done(order, outcome=Outcome.PRE_EMPTED) for ref, order in self.held.items() if ref in self.begun]
        back = [ref for ref in self.held if ref not in self.begun]
        self._drop_all()
        await self._say({"finished": ended, "returned": back, "held": [], "draining": True})
        self.agent = None

    async def _news(self, calmly: bool) -> dict[str, Any]:
        """What happened to the attempts it holds."""
        chance = self.world.chance
        said: dict[str, Any] = {"now_ms": round(time.time() * 1000) + self.clock_ms}
        for ref, order in list(self.held.items()):
            what = 0.0 if calmly else chance.random()
            if ref in self.frozen and (calmly or what > 0.05):
                continue
            if what < 0.35:
                end = await self.programs.end(order, calmly=calmly)
                said.setdefault("finished", []).append(self._ended(ref, end))
            elif what < 0.5 and ref not in self.begun:
                said.setdefault("returned", []).append(ref)
                self._drop(ref)
            elif what < 0.9:
                if ref not in self.begun:
                    said.setdefault("started", []).append(Started(*ref, said["now_ms"]))
                    self.begun.add(ref)
                elif what < 0.7:
                    await self.programs.work(order)
                else:
                    self._show(said, ref)
        gone = [order for order in self.old if (order.id, order.attempt) not in self.held]
        if not calmly and gone and chance.random() < 0.3:
            late = chance.choice(gone)
            said.setdefault("finished", []).append(done(late, outcome=chance.choice((Outcome.SUCCEEDED, Outcome.ERROR))))
        if calmly or chance.random() < 0.5:
            said["held"] = list(self.held)
        return said

    def _show(self, said: dict[str, Any], ref: Ref) -> None:
        number = len(self.old)
        said.setdefault("progress", []).append(Progress(*ref, number, 100, "text"))
        said.setdefault("output", []).append(Output(*ref, number, 1, said["now_ms"], b"line\n"))

    async def _say(self, said: dict[str, Any]) -> Orders:
        """Together with what was not answered before; sometimes the answer is lost, and the same is said once more."""
        for word, items in self.unsaid.items():
            said[word] = [*items, *said.get(word, ())]
        self.unsaid = {word: said[word] for word in REPEATED if said.get(word)}
        assert self.agent is not None
        sent, reply = await self._send(said)
        if self.world.chance.random() < 0.2:
            self.agent.sequence -= 1
            sent, reply = await self._send(said)
        self.unsaid = {}
        if reply.renewed or reply.hold:
            self.renewed_at = max(self.renewed_at, sent)
        return reply

    async def _send(self, said: dict[str, Any]) -> tuple[float, Orders]:
        assert self.agent is not None
        core = self.agent.core = self.world.core()
        sent = time.monotonic()
        return sent, await self.world.ask(core, self.agent.say(heartbeat=True, **said))

    async def _hear(self, reply: Orders) -> None:
        for order in reply.orders:
            self._take(order)
        gone = [ref for cancel in reply.cancels if (ref := (cancel.id, cancel.attempt)) in self.held]
        ended = [self._ended(ref, done(self.held[ref], outcome=Outcome.CANCELLED)) for ref in gone]
        notices = [self._obey(control.word, (control.id, control.attempt), control.number, ended) for control in reply.controls]
        back = [ref for ref in self.held if reply.drain and ref not in self.begun]
        for ref in back:
            self._drop(ref)
        received = [(order.id, order.attempt) for order in reply.orders]
        if received or ended or notices or back:
            reply = await self._say({"received": received, "finished": ended, "notices": notices, "returned": back})
            if reply.lost:
                await self.boot()

    def _take(self, order: Order) -> None:
        ref = (order.id, order.attempt)
        if self.seen.get(order.id, 0) >= order.attempt:
            if ref in self.past:
                self.unsaid.setdefault("finished", []).append(self.past[ref])
            elif ref not in self.held:
                self.unsaid.setdefault("returned", []).append(ref)
            return
        for earlier in self.may_run(order.id):
            self._drop(earlier)  # it is ended before this one begins
        for node in self.fleet.nodes:
            if others := node.may_run(order.id):
                raise Violation(f"{node.name} may run {others}, and {self.name} was given {ref}")
        self.held[ref], self.seen[order.id] = order, order.attempt

    def _obey(self, word: str, ref: Ref, number: int, ended: list[Any]) -> Notice:
        if ref not in self.held:
            return Notice(*ref, "gone", number)
        if word == "yield":
            ended.append(self._ended(ref, done(self.held[ref], outcome=Outcome.PRE_EMPTED)))
        elif word == "pause":
            self.frozen.add(ref)
        elif word == "resume":
            self.frozen.discard(ref)
        return Notice(*ref, ANSWERS[word], number)

    def _ended(self, ref: Ref, end: Finished) -> Finished:
        self.past[ref] = end
        self._drop(ref)
        return end

    def _drop_all(self) -> None:
        for ref in list(self.held):
            self._drop(ref)

    def _drop(self, ref: Ref) -> None:
        if (order := self.held.pop(ref, None)) is not None:
            self.old.append(order)
        self.begun.discard(ref)
        self.frozen.discard(ref)


class Fleet:
    """The nodes of a walk."""

    def __init__(self, world: World, programs: Programs) -> None:
        self.world, self.programs = world, programs
        self.nodes = [Node(self, f"node-{n}", cpus) for n, cpus in enumerate((2.0, 2.0, 1.0))]

    async def act(self) -> None:
        await self.world.chance.choice(self.nodes).act()
