"""Many streams of events on one server: what they read does not grow with their number, nor with what other tenants do (J6 L1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headway.control import following
from headway.control.core import Core
from tests.support.engine import engine
from tests.support.ordering import tenant
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOOK_S", 0.02)


class Follower:
    """Reads a stream in the background. It reads on when it may."""

    def __init__(self, core: Core, of: int | None = None, kinds: list[str] | None = None) -> None:
        self.stream = core.following.events(of, None, kinds)
        self.seen: list[tuple[int, str]] = []
        self.begun, self.may = asyncio.Event(), asyncio.Event()
        self.may.set()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for rows in self.stream:
            self.seen += [(row["seq"], row["kind"]) for row in rows]
            self.begun.set()
            await self.may.wait()

    @property
    def kinds(self) -> list[str]:
        return [kind for _, kind in self.seen]

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.stream.aclose()  # type: ignore[attr-defined]


async def following_with(core: Core, *asked: dict[str, Any]) -> list[Follower]:
    followers = [Follower(core, **fields) for fields in asked]
    await asyncio.gather(*(follower.begun.wait() for follower in followers))
    return followers


async def write(core: Core, kind: str, of: int = 1, count: int = 1) -> None:
    async with core.database.hot() as connection:
        await connection.execute("insert into event (tenant, kind) select $1, $2 from generate_series(1, $3)", of, kind, count)


def counting(core: Core, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The readings from now on: of all, or of one who catches up."""
    readings: list[str] = []
    look, catch_up = core.following.tail.reading.look, core.following._catch_up

    async def of_all() -> None:
        readings.append("all")
        await look()

    async def of_one(*asked: Any) -> Any:
        readings.append("one")
        return await catch_up(*asked)

    monkeypatch.setattr(core.following.tail.reading, "look", of_all)
    monkeypatch.setattr(core.following, "_catch_up", of_one)
    return readings


async def test_many_streams_are_served_by_one_reading_and_each_is_given_its_own(dsn, monkeypatch):
    async with engine(dsn) as core:
        acme, other = await tenant(core, "acme"), await tenant(core, "other")
        asked = [{"of": acme}, {"of": other}, {"of": None}, {"of": acme, "kinds": ["task.failed"]}] * 10
        followers = await following_with(core, *asked)
        monkeypatch.setattr(following, "LOOK_S", 600.0)  # from now on only when something happens
        await asyncio.gather(*(follower.begun.wait() for follower in followers))
        readings = counting(core, monkeypatch)
        for kind, of in (("task.succeeded", acme), ("task.failed", acme), ("task.succeeded", other)):
            await write(core, kind, of)
        core.bus.told()
        own = ["task.succeeded", "task.failed"]
        wanted = [own, ["task.succeeded"], [*own, "task.succeeded"], ["task.failed"]] * 10

        async def all_told() -> bool:
            core.bus.told()  # a transaction of the server itself may hide the newest for a moment
            kinds = [[kind for kind in follower.kinds if kind.startswith("task.")] for follower in followers]
            return kinds == wanted

        await eventually(all_told)
        assert "one" not in readings
        assert len(readings) < 3 * len(followers)  # and not one for each stream and wake-up
        for follower in followers:
            await follower.close()
        assert core.following.tail.start is None


async def test_a_stream_of_a_quiet_tenant_does_not_read_again_what_others_did(dsn, monkeypatch):
    async with engine(dsn) as core:
        quiet = await tenant(core, "quiet")
        [follower] = await following_with(core, {"of": quiet})
        await write(core, "loud", count=2_500)
        await eventually(lambda: len(core.following.tail._rows) >= 2_500)
        readings = counting(core, monkeypatch)
        await write(core, "mine", quiet)
        await eventually(lambda: follower.kinds == ["mine"])
        assert "one" not in readings
        await follower.close()


async def test_who_is_too_slow_for_what_is_kept_misses_nothing_and_sees_nothing_twice(dsn, monkeypatch):
    monkeypatch.setattr(following, "KEPT", 50)
    monkeypatch.setattr(following, "BATCH", 40)
    async with engine(dsn) as core:
        slow, fast = await following_with(core, {"of": None, "kinds": ["fact"]}, {"of": None, "kinds": ["fact"]})
        slow.may.clear()
        for _ in range(5):
            await write(core, "fact", count=100)
        await eventually(lambda: len(fast.seen) == 500)
        assert len(core.following.tail._rows) <= 50
        slow.may.set()
        await eventually(lambda: len(slow.seen) == 500)
        await write(core, "fact")
        await eventually(lambda: len(slow.seen) == len(fast.seen) == 501)
        assert slow.seen == fast.seen == sorted(set(slow.seen))
        await slow.close()
        await fast.close()


async def test_a_stream_that_comes_when_all_others_have_gone_begins_now(dsn):
    async with engine(dsn) as core:
        [first] = await following_with(core, {"kinds": ["fact"]})
        await write(core, "fact")
        await eventually(lambda: len(first.seen) == 1)
        await first.close()
        await write(core, "fact", count=3)
        [second] = await following_with(core, {"kinds": ["fact"]})
        await write(core, "fact")
        await eventually(lambda: second.kinds[-1:] == ["fact"])
        assert len(second.seen) <= 4  # those that were not visible yet when it began may be among them
        assert second.seen[-1][0] > first.seen[-1][0]
        await second.close()
