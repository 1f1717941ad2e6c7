"""A walk: everything at once for a while, then nobody forgets anything any more, and all there is comes to its end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from headway.domain.lifecycle import State
from headway.domain.tenant import SubscriptionSpec
from headway.errors import HeadwayError
from tests.support.waiting import eventually
from tests.support.walk import invariants
from tests.support.walk.faults import Faults
from tests.support.walk.listener import Listener
from tests.support.walk.nodes import Fleet
from tests.support.walk.people import People
from tests.support.walk.programs import Programs
from tests.support.walk.world import World

TOGETHER = 5  # at the same time, at most
UNBOUND = SubscriptionSpec(max_running=None, max_waiting=None, rate_per_hour=None, burst=None, suspended=False, max_cpus=None)
LIVE = "select id, tenant, state, hold_at, node, attempt, blocked_on, cancel_at, requeues, name, tree from task order by id"


class Walk:
    def __init__(self, world: World) -> None:
        self.world, self.chance = world, world.chance
        self.programs = Programs(world)
        self.fleet = Fleet(world, self.programs)
        self.people, self.faults, self.listener = People(world), Faults(world), Listener(world)

    async def go(self, steps: int) -> None:
        for node in self.fleet.nodes:
            await node.act(calmly=True)
        for _ in range(steps):
            await asyncio.gather(*(self._step() for _ in range(self.chance.randrange(1, TOGETHER + 1))))

    async def _step(self) -> None:
        what = self.chance.random()
        if what < 0.55:
            await self.fleet.act()
        elif what < 0.93:
            await self.people.act()
        elif what < 0.97:
            await self.listener.act()
        else:
            await self.faults.act()

    async def calm_down(self) -> None:
        """What people held back goes on, until all is done."""
        await self._set_free()
        for node in self.fleet.nodes:
            node.agent = None
        try:
            await eventually(self._is_over, seconds=120)
        except AssertionError as error:
            left = [dict(row) for row in await self.world.rows(LIVE)]
            raise AssertionError(f"seed {self.world.seed}: {len(left)} tasks did not end: {left[:20]}") from error

    async def _set_free(self) -> None:
        core = self.world.cores[0]
        for queue in ("urgent", "delayable", "periodic"):
            await core.queues.change(queue, paused=False)
        await core.tenants.refresh()
        for row in await self.world.rows("select tenant, name from schedule"):
            await core.schedules.delete(row["tenant"], row["name"])
        for tenant in self.world.tenants[1:]:
            if tenant not in core.tenants.removed:
                await core.administration.set_subscription(tenant, UNBOUND, await self.people._entry(core))
        await self.world.rows("update node set drain = false")

    async def _is_over(self) -> bool:
        await asyncio.gather(*(node.act(calmly=True) for node in self.fleet.nodes))
        left = await self.world.rows(LIVE)
        for row in left:
            if row["hold_at"] is not None or row["state"] == State.PAUSED:
                with contextlib.suppress(HeadwayError):  # one that made room goes on by itself
                    await self.world.core().steering.resume(row["id"], None)
        return not left

    async def check(self) -> None:
        """Nothing is lost, twice, wrongly counted or left over, and everybody was told."""
        world = self.world
        self._nothing("homes of tasks", await invariants.homeless(world))
        self._nothing("counters of levels", await invariants.wrong_counters(world))
        await eventually(self.listener.has_heard_all, what=f"seed {world.seed}: the listener hears all")
        self._nothing("events", await self.listener.wrong())
        last: dict[str, Any] = {}

        async def nothing_is_left() -> bool:
            await invariants.tidy(world)
            last["database"] = await invariants.left_over(world)
            last["memory"] = [said for core in world.cores if (said := invariants.believes_nothing_is_left(core))]
            return not last["database"] and not last["memory"]

        try:
            await eventually(nothing_is_left, seconds=30)
        except AssertionError as error:
            raise AssertionError(f"seed {world.seed}: left over: {last}") from error
        self._nothing("failures that servers have logged", world.defects)

    def _nothing(self, what: str, wrong: Any) -> None:
        if wrong:
            raise AssertionError(f"seed {self.world.seed}: {what}: {wrong}")
