"""What breaks in a walk: servers die in the middle of what they do, connections to the database are cut, leaders forget."""

from __future__ import annotations

from headway.errors import HeadwayError
from tests.support.walk.programs import check
from tests.support.walk.world import World

BACKENDS = "select pid from pg_stat_activity where datname = current_database() and application_name like 'headway%' order by pid"


class Faults:
    def __init__(self, world: World) -> None:
        self.world, self.chance = world, world.chance

    async def act(self) -> None:
        what = self.chance.choice((self.kill, self.cut, self.cut, self.cut_many, self.forget, self.tidy))
        await what()

    async def kill(self) -> None:
        """A server is gone from one moment to the next; another takes its place."""
        if len(self.world.cores) > 1:
            await self.world.kill_server(self.world.core())
            await self.world.start_server()

    async def cut(self) -> None:
        await self._end_backends(1)

    async def cut_many(self) -> None:
        await self._end_backends(6)

    async def _end_backends(self, count: int) -> None:
        found = [row["pid"] for row in await self.world.rows(BACKENDS)]
        ended = self.chance.sample(found, min(count, len(found)))
        await self.world.rows("select pg_terminate_backend(pid) from unnest($1::int[]) as b (pid)", ended)

    async def forget(self) -> None:
        """A planner loses what it knew, or a leader all its duties."""
        core = self.world.core()
        if self.chance.random() < 0.5:
            core.planner.step_down()
            return
        try:
            await self.world.ask(core, core.leader.hand_on())
        except HeadwayError as error:
            check(error)

    async def tidy(self) -> None:
        """The archivist comes round, as it does every minute."""
        core = self.world.core()
        try:
            await self.world.ask(core, core.archivist.run_once())
        except HeadwayError as error:
            check(error)
