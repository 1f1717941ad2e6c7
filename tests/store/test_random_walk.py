"""Everything at once, by chance: two servers that crash, three nodes that repeat, forget and restart, and people who submit, cancel, pause,
change and retry. Afterwards every acknowledged task has ended once, and the servers believe what the database says (F2 A6 C5 E5 H7 I1)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headway.config import Settings
from headway.control.core import Core
from headway.domain.lifecycle import Outcome, State
from headway.errors import HeadwayError
from headway.wire.exchange import Notice, Order, Orders
from tests.support.engine import ScriptedAgent, cut_off, done, function
from tests.support.ordering import tenant
from tests.support.waiting import eventually

STEPS = 150
TOGETHER = 4  # at the same time, at most
ENDS = (Outcome.SUCCEEDED,) * 6 + (Outcome.ERROR,) * 2 + (Outcome.NODE_LOST, Outcome.TRY_LATER, Outcome.RUNNER_CRASHED)
ANSWERS = {"pause": "paused", "resume": "resumed", "signal": "signalled"}
Ref = tuple[int, int]


class Node:
    """An agent with a bad memory: it holds attempts, and says what happened to them, sometimes twice, sometimes not at all."""

    def __init__(self, walk: Walk, name: str, cpus: float) -> None:
        self.walk, self.name, self.cpus = walk, name, cpus
        self.held: dict[Ref, Order] = {}
        self.begun: set[Ref] = set()
        self.old: list[Order] = []  # attempts it has reported, or forgot
        self.turn = asyncio.Lock()

    async def boot(self) -> None:
        self.agent = await ScriptedAgent(self.walk.core(), self.name, cpus=self.cpus).join()
        self.old += self.held.values()
        self.held.clear()
        self.begun.clear()

    async def act(self, *, calmly: bool = False) -> None:
        async with self.turn:
            await self._act(calmly)

    async def _act(self, calmly: bool) -> None:
        chance = self.walk.chance
        if not calmly and chance.random() < 0.04:
            await self.boot()
        self.agent.core = self.walk.core()
        said: dict[str, Any] = {}
        for ref, order in list(self.held.items()):
            what = 0.0 if calmly else chance.random()
            if what < 0.4:
                said.setdefault("finished", []).append(self._end(order, calmly))
                self._forget(ref)
            elif what < 0.6 and ref not in self.begun:
                said.setdefault("returned", []).append(ref)
                self._forget(ref)
            elif what < 0.8:
                self.begun.add(ref)
        if not calmly and self.old and chance.random() < 0.3:
            said.setdefault("finished", []).append(self._end(chance.choice(self.old), calmly))  # late, or once more
        if calmly or chance.random() < 0.5:
            said["held"] = list(self.held)
        await self._hear(await self._say(said))

    async def _say(self, said: dict[str, Any]) -> Orders:
        reply = await self.agent.say(heartbeat=True, **said)
        if self.walk.chance.random() < 0.2:
            self.agent.sequence -= 1  # the answer was lost: the same again, to any server
            self.agent.core = self.walk.core()
            reply = await self.agent.say(heartbeat=True, **said)
        return reply

    async def _hear(self, reply: Orders) -> None:
        if reply.lost:
            return await self.boot()
        received = [(order.id, order.attempt) for order in reply.orders]
        self.held |= zip(received, reply.orders, strict=True)
        gone = [done(self.held[ref], outcome=Outcome.CANCELLED) for c in reply.cancels if (ref := (c.id, c.attempt)) in self.held]
        for cancel in reply.cancels:
            self._forget((cancel.id, cancel.attempt))
        notices = []
        for control in reply.controls:
            here = (control.id, control.attempt) in self.held
            kind = ANSWERS.get(control.word, "refused: not here") if here else "gone"
            notices.append(Notice(control.id, control.attempt, kind, control.number))
        if received or gone or notices:
            await self._say({"received": received, "finished": gone, "notices": notices})
        return None

    def _end(self, order: Order, calmly: bool) -> Any:
        return done(order, outcome=Outcome.SUCCEEDED if calmly else self.walk.chance.choice(ENDS))

    def _forget(self, ref: Ref) -> None:
        if (order := self.held.pop(ref, None)) is not None:
            self.old.append(order)
        self.begun.discard(ref)


class Walk:
    """The state of one walk, and the things people do in it."""

    def __init__(self, seed: int, dsn: str, cores: list[Core], tenants: list[int]) -> None:
        self.chance = random.Random(seed)
        self.dsn = dsn
        self.cores, self.tenants = cores, tenants
        self.known: list[int] = []
        self.trees: list[int] = []
        self.nodes = [Node(self, f"node-{n}", cpus) for n, cpus in enumerate((2.0, 2.0, 1.0))]

    def core(self) -> Core:
        return self.chance.choice(self.cores)

    async def step(self) -> None:
        people = (
            *[self.send] * 4, self.cancel, self.pause, self.resume, self.change, self.revive, self.end_tree, self.retry_tree,
            self.pause_queue,
        )  # fmt: skip
        if self.chance.random() < 0.6:
            await self.chance.choice(self.nodes).act()
        elif self.chance.random() < 0.05:
            self.core().planner.step_down()
        else:
            with contextlib.suppress(HeadwayError):  # too late, not that state, and so on: said in words, and nothing done
                await self.chance.choice(people)()

    async def send(self) -> None:
        chance, owner = self.chance, self.chance.choice(self.tenants)
        specs = [self._spec(n) for n in range(chance.choice((1, 1, 2, 5, 20)))]
        tree = f"tree-{chance.random()}" if chance.random() < 0.2 else None
        core = self.core()
        drafts, _ = await core.drafts.read(owner, msgspec.json.encode(specs), ndjson=False, key=None)
        receipt = await core.admission.submit(owner, drafts, tree=tree, strict=tree is not None and chance.random() < 0.5)
        self.known += receipt.ids
        if receipt.tree is not None:
            self.trees.append(receipt.tree)

    def _spec(self, n: int) -> dict[str, Any]:
        chance = self.chance
        fields: dict[str, Any] = {"name": f"n{n}", "resources": {"cpus": chance.choice((0.5, 1, 2))}}
        fields |= {"attempts": chance.choice((1, 2, 3)), "retry": {"interval": chance.choice((0, 0.05))}}
        fields["delay_tolerance"] = chance.choice((0, 1, 3600))
        if n and chance.random() < 0.5:
            fields["after"] = [{"task": f"n{chance.randrange(n)}", "when": chance.choice(("succeeded", "done", "failed"))}]
        if chance.random() < 0.1:
            fields["for_each"] = list(range(chance.randrange(4)))
        if chance.random() < 0.1:
            fields["at"] = time.time() + chance.random()
        if chance.random() < 0.1:
            fields = {"name": f"n{n}", "idempotency_key": f"{chance.choice('abc')}{n}"}
        return function(**fields)

    async def crash(self) -> None:
        """A server is gone from one moment to the next; another takes its place. Nobody is in the middle of asking it something."""
        which = self.chance.randrange(len(self.cores))
        old = self.cores[which]
        await cut_off(old)
        self.cores[which] = await started(self.dsn, f"{old.holder}*")

    async def pause_queue(self) -> None:
        await self.core().queues.change(self.chance.choice(("urgent", "delayable")), paused=self.chance.random() < 0.5)

    async def cancel(self) -> None:
        await self.core().actions.cancel(self._some())

    async def pause(self) -> None:
        await self.core().steering.pause(self._some()[0], None)

    async def resume(self) -> None:
        await self.core().steering.resume(self._some()[0], None)

    async def change(self) -> None:
        edit = self.chance.choice(({"resources": {"cpus": 1.5}}, {"delay_tolerance": 5}, {"labels": {"a": "b"}}))
        await self.core().changing.change(self._some()[0], None, edit)

    async def revive(self) -> None:
        core = self.core()
        await core.actions.revive(await core.actions.dead_ids(None, ids=self._some(5), fingerprint=None, name=None), None, None)

    async def end_tree(self) -> None:
        if self.trees and self.chance.random() < 0.3:
            await self.core().trees.cancel(self.chance.choice(self.trees))

    async def retry_tree(self) -> None:
        if self.trees:
            await self.core().trees.retry(self.chance.choice(self.trees), None)

    def _some(self, most: int = 2) -> list[int]:
        return self.chance.sample(self.known, min(len(self.known), most)) or [1]

    async def calm_down(self) -> None:
        """Nobody forgets anything any more, and what people held back goes on, until all is done."""

        async def drained() -> bool:
            await asyncio.gather(*(node.act(calmly=True) for node in self.nodes))
            left = await self._left()
            for task in left:
                with contextlib.suppress(HeadwayError):
                    if left[task]["hold_at"] or left[task]["state"] == State.PAUSED:
                        await self.core().steering.resume(task, None)
            return not left

        for queue in ("urgent", "delayable"):
            await self.cores[0].queues.change(queue, paused=False)
        for node in self.nodes:
            await node.boot()
        await eventually(drained, seconds=120)

    async def _left(self) -> dict[int, Any]:
        async with self.cores[0].database.cold() as connection:
            return {row["id"]: row for row in await connection.fetch("select id, state, hold_at from task")}


@contextlib.asynccontextmanager
async def walking(dsn: str, seed: int) -> AsyncIterator[Walk]:
    one, two = await started(dsn, "one"), await started(dsn, "two")
    tenants = [1, await tenant(one, "limited", max_running=2), await tenant(one, "other")]
    await two.tenants.refresh()
    walk = Walk(seed, dsn, [one, two], tenants)
    try:
        for node in walk.nodes:
            await node.boot()
        yield walk
    finally:
        for core in walk.cores:
            await core.stop()


async def started(dsn: str, holder: str) -> Core:
    settings = Settings(database=dsn, data_dir="unused", lost_s=300.0, fence_s=120.0, duty_lease_s=1.0)
    core = Core(settings, dsn, holder)
    await core.start()
    return core


HOMES = """
select id, count(*) as homes from (
    select id from task union all select id from task_history union all select id from dead_letter
) homes group by id
"""
COUNTERS = """
select * from (
    select tree, level, total, succeeded, failed, cancelled, skipped + spared as skipped from tree_level
) said left join (
    select tree, level, count(*)::int as total, count(*) filter (where state = 6)::int as succeeded,
        count(*) filter (where state = 7)::int as failed, count(*) filter (where state = 8)::int as cancelled,
        count(*) filter (where state = 9)::int as skipped
    from task_anywhere where tree is not null group by tree, level
) there using (tree, level)
where (said.total, said.succeeded, said.failed, said.cancelled, said.skipped)
    is distinct from (there.total, there.succeeded, there.failed, there.cancelled, there.skipped)
"""


@pytest.mark.parametrize("seed", range(3))
async def test_after_any_walk_all_has_ended_once_and_servers_believe_what_is_stored(dsn: str, seed: int) -> None:
    async with walking(dsn, seed) as walk:
        for _ in range(STEPS):
            await asyncio.gather(*(walk.step() for _ in range(walk.chance.randrange(1, TOGETHER + 1))))
            if walk.chance.random() < 0.02:
                await walk.crash()
        await walk.calm_down()
        async with walk.cores[0].database.cold() as connection:
            homes = {row["id"]: row["homes"] for row in await connection.fetch(HOMES)}
            wrong = [dict(row) for row in await connection.fetch(COUNTERS)]
        assert {task: homes.get(task, 0) for task in walk.known} == dict.fromkeys(walk.known, 1)
        assert wrong == []
        for core in walk.cores:
            await eventually(lambda core=core: believes_nothing_is_left(core))


def believes_nothing_is_left(core: Core) -> bool:
    """Nothing is held, nothing waits, nothing is owed to a node: as the database says."""
    planner = core.planner
    if planner.leading_epoch < 0:
        return True
    empty = all(room.held == 0 and room.free == list(room.capacity.amounts()) for room in planner.rooms.values())
    idle = not any(held.count for held in planner.board.usage.tenants.values())
    return empty and idle and not any(len(head) for head in planner.board.heads.values())
