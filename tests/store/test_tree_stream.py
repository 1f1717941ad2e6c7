"""Trees that come as a stream: checked whole, stored whole, in memory that a small tree would need too (A2 C3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from headway.api.tree_views import tree_view
from headway.control.core import Core
from headway.control.streaming import AT_ONCE
from headway.errors import CyclicGraph, HeadwayError, InvalidInput
from tests.store.test_tree_levels import agrees
from tests.support.engine import ScriptedAgent, engine, function, submit
from tests.support.waiting import eventually


async def body(specs: Iterable[Any], *, piece: int = 1000) -> AsyncIterator[bytes]:
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in specs).encode()
    for at in range(0, len(text), piece):
        yield text[at : at + piece]


async def stored(core: Core) -> int:
    async with core.database.cold() as connection:
        count: int = await connection.fetchval("select (select count(*) from task) + (select count(*) from tree)")
    return count


async def test_a_streamed_tree_runs_like_any_other(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=64).join()
        specs = [function(name="root", after=[f"leaf {n}" for n in range(40)])]
        specs += [function(name=f"leaf {n}", input=n) for n in range(40)]
        tree, count = await core.streams.submit(1, "wide", False, body(specs, piece=37))
        assert count == 41
        view = await tree_view(core, tree, None)
        assert [(one.total, one.left) for one in view.levels] == [(40, 40), (1, 1)]
        orders = await agent.orders(40)
        assert sorted(int(order.input or b"0") for order in orders) == list(range(40))
        await agent.succeed(*orders)
        await agent.succeed(*await agent.orders())
        assert (await tree_view(core, tree, None)).state == "succeeded"
        assert await agrees(core, tree)


async def test_a_long_chain_has_a_level_for_each_task_and_runs_in_order(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        specs = [function(name=str(n), after=[str(n - 1)] if n else []) for n in range(3000)]
        tree, _ = await core.streams.submit(1, "chain", True, body(specs))
        view = await tree_view(core, tree, None)
        assert (view.height, view.total, len(view.levels)) == (3000, 3000, 500)
        for _ in range(5):
            await agent.succeed(*await agent.orders())
        async with core.database.cold() as connection:
            rows = await connection.fetch("select level from task_history where tree = $1 order by ended_at, level", tree)
        assert [row["level"] for row in rows] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("specs", "error", "words"),
    [
        ([function(name="a"), "{nonsense"], InvalidInput, "line 2"),
        ([function(name="a"), function(name="b", atempts=3)], InvalidInput, "line 2: atempts: there is no field `atempts`"),
        ([function(name="a", after=["b"]), function(name="b", after=["a"])], CyclicGraph, "cycle: a → b → a|cycle: b → a → b"),
        ([function(name="a", after=["nobody"])], InvalidInput, "not in this tree"),
        ([function(name="a", after=["b", "b"]), function(name="b")], InvalidInput, "names each task once"),
        ([function(name="a", for_each=[1])], InvalidInput, "for_each cannot be part of a stream"),
        ([function(name="a", on_late="refuse")], InvalidInput, "on_late: refuse cannot be part of a stream"),
        ([], InvalidInput, "empty"),
    ],
)
async def test_a_bad_stream_is_refused_with_its_line_and_leaves_nothing(dsn, specs, error, words):
    async with engine(dsn) as core:
        with pytest.raises(error, match=words):
            await core.streams.submit(1, "t", False, body(specs))
        assert await stored(core) == 0


async def test_a_stream_that_breaks_off_leaves_nothing(dsn):
    async with engine(dsn) as core:

        async def broken() -> AsyncIterator[bytes]:
            yield json.dumps(function(name="a")).encode() + b"\n"
            raise ConnectionResetError("the client is gone")

        with pytest.raises(ConnectionResetError):
            await core.streams.submit(1, "t", False, broken())
        assert await stored(core) == 0


async def test_a_full_disk_is_said_and_leaves_nothing(dsn, monkeypatch):
    import headway.control.streaming as streaming

    async with engine(dsn) as core:
        monkeypatch.setattr(streaming.tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
        with pytest.raises(HeadwayError, match="no room for the stream"):
            await core.streams.submit(1, "t", False, body([function(name="a")]))
        assert await stored(core) == 0


async def test_other_kinds_of_edges_go_through_a_stream(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        specs = [function(name="a"), function(name="b", after=[{"task": "a", "when": "failed"}])]
        tree, _ = await core.streams.submit(1, "t", False, body(specs))
        await agent.fail((await agent.orders())[0])
        [order] = await agent.orders()
        await agent.succeed(order)
        assert (await tree_view(core, tree, None)).levels[1].succeeded == 1


@asynccontextmanager
async def no_tree_is_stored(dsn: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Every stream stops at its first statement. Yields how many do."""
    connection, watch = await asyncpg.connect(dsn), await asyncpg.connect(dsn)

    async def waiting() -> int:
        # Streams, and not autovacuum or the archivist, which may want something of that table in this moment too.
        of_streams = "relation = 'tree'::regclass and query like 'insert into tree %'"
        return await watch.fetchval(f"select count(*) from pg_locks join pg_stat_activity using (pid) where not granted and {of_streams}")

    async with connection.transaction():
        await connection.execute("lock table tree in share mode")
        yield waiting
    await connection.close()
    await watch.close()


async def test_many_streams_at_once_leave_connections_to_everybody_else(dsn, monkeypatch):
    monkeypatch.setattr("headway.store.database.LOAN_S", 0.5)
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        numbers = [1, *[(await core.access.add_tenant(f"t{n}"))[0] for n in range(8)]]
        await core.tenants.refresh()
        async with no_tree_is_stored(dsn) as waiting:
            streams = [asyncio.ensure_future(core.streams.submit(n, "t", False, body([function(name="a")]))) for n in numbers]
            await eventually(lambda: waiting())
            assert (await agent.say(heartbeat=True)).renewed
            (task,) = (await submit(core, function())).ids
            assert [order.id for order in await agent.orders()] == [task]
            assert await waiting() == AT_ONCE
        assert len({tree for tree, _ in await asyncio.gather(*streams)}) == 9


async def test_a_tenant_with_many_streams_keeps_those_of_others_waiting_for_one_at_most(dsn):
    async with engine(dsn) as core:
        other, _ = await core.access.add_tenant("other")
        await core.tenants.refresh()
        async with no_tree_is_stored(dsn) as waiting:
            many = [asyncio.ensure_future(core.streams.submit(1, "t", False, body([function(name="a")]))) for _ in range(4)]
            await eventually(lambda: waiting())
            one = asyncio.ensure_future(core.streams.submit(other, "t", False, body([function(name="a")])))
            await eventually(lambda: is_so(waiting, 2))
        trees = sorted([tree for tree, _ in await asyncio.gather(*many, one)])
        assert one.result()[0] in trees[:2]


async def test_others_are_served_while_a_stream_is_read_that_has_come_already(dsn):
    async with engine(dsn) as core:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def read() -> AsyncIterator[bytes]:
            seen = []
            async for piece in body(function(input=n) for n in range(500)):
                yield piece
                seen.append(turns)
            assert seen[-1] - seen[2] >= len(seen) - 3 > 10
            beside.cancel()

        beside = asyncio.ensure_future(others())
        await core.streams.submit(1, "t", False, read())


async def is_so(count: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await count() == wanted
