"""Many nodes at one server: what they ask of the database does not grow with the square of their number (I1 L1)."""

from __future__ import annotations

import asyncio

import pytest

from headway.control.core import Core
from tests.support.engine import ScriptedAgent, engine

MANY = 60


def counting(core: Core, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes each look saw that is taken from now on."""
    looks: list[int] = []
    look = core.fleet._look

    async def counted() -> None:
        await look()
        looks.append(len(core.fleet.nodes))

    monkeypatch.setattr(core.fleet, "_look", counted)
    return looks


async def test_all_who_want_to_know_the_nodes_at_once_share_a_look(dsn, monkeypatch):
    async with engine(dsn, duty_lease_s=60.0) as core:
        await ScriptedAgent(core).join()
        looks = counting(core, monkeypatch)
        await asyncio.gather(*(core.fleet.refresh() for _ in range(MANY)))
        assert len(looks) <= 2  # the server's own may be one of them
        assert set(looks) == {1}


async def test_a_look_under_way_is_not_taken_for_one_that_saw_what_came_after_it(dsn, monkeypatch):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        begun, go_on = asyncio.Event(), asyncio.Event()
        look = core.fleet._look

        async def slow() -> None:
            await look()
            if not begun.is_set():
                begun.set()
                await go_on.wait()

        monkeypatch.setattr(core.fleet, "_look", slow)
        early = asyncio.create_task(core.fleet.refresh())
        await begun.wait()
        async with core.database.cold() as connection:
            await connection.execute("update node set drain = true")
        late = [asyncio.create_task(core.fleet.refresh()) for _ in range(3)]
        late[0].cancel()  # who gives up does not end it for the others
        go_on.set()
        await asyncio.gather(early, *late[1:])
        assert core.fleet.nodes[agent.id].drain


async def test_a_server_that_begins_welcomes_a_whole_fleet_with_a_few_looks(dsn, monkeypatch):
    async with engine(dsn, holder="one") as one:
        agents = [await ScriptedAgent(one, f"node-{number}").join() for number in range(MANY)]
        async with engine(dsn, holder="two", duty_lease_s=60.0) as two:
            looks = counting(two, monkeypatch)
            for agent in agents:
                agent.core = two
            answers = await asyncio.gather(*(agent.say(heartbeat=True, held=[]) for agent in agents))
            assert all(answer.renewed and not answer.lost for answer in answers)
            assert 1 <= len(looks) < MANY / 4


async def test_heartbeats_that_come_together_are_stored_together_and_each_boot_is_answered_for_itself(dsn, monkeypatch):
    async with engine(dsn) as core:
        old = await ScriptedAgent(core, "node-x").join()
        agents = [await ScriptedAgent(core, f"node-{number}").join() for number in range(MANY)]
        assert (await old.say(heartbeat=True)).renewed
        new = await ScriptedAgent(core, "node-x").join()
        commits: list[int] = []
        commit = core.heartbeats._commit

        async def counted(waiting):
            commits.append(len(waiting))
            await commit(waiting)

        monkeypatch.setattr(core.heartbeats, "_commit", counted)
        beats = (core.heartbeats.beat(agent.id, agent.boot, "", 0) for agent in (old, new, *agents))
        told = await asyncio.gather(*beats)
        assert told == [None, False] + [False] * MANY
        assert len(commits) <= 3
        assert sum(commits) == MANY + 2
