"""The stream of facts: whoever resumes it never misses one, though transactions commit out of order (J6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from headway.store.migrate import migrate
from tests.support.engine import ScriptedAgent, engine, function, submit

BEGINNING = ("0", 0)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams look for what nobody woke them for, here without making the tests wait."""
    monkeypatch.setattr("headway.control.following.LOOK_S", 0.02)


@asynccontextmanager
async def transaction(dsn: str) -> AsyncIterator[Any]:
    """A second connection with a transaction that has written and not ended."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
    try:
        open_one = connection.transaction()
        await open_one.start()
        await connection.execute("insert into event (tenant, kind) values (1, 'held')")
        yield open_one
    finally:
        await connection.close()


async def write(core, kind: str, tenant: int = 1) -> None:
    async with core.database.hot() as connection:
        await connection.execute("insert into event (tenant, kind) values ($1, $2)", tenant, kind)


class Reader:
    """Follows a stream from a cursor; `kinds` is everything it was shown."""

    def __init__(self, core, *, tenant: int | None = None, after: tuple[str, int] | None = BEGINNING) -> None:
        self.stream = core.following.events(tenant, after)
        self.after = after
        self.kinds: list[str] = []
        self.rows: list[Any] = []

    async def look(self) -> list[Any]:
        """One batch."""
        rows = await anext(self.stream)
        for row in rows:
            self.after = (row["xid"], row["seq"])
            self.kinds.append(row["kind"])
            self.rows.append(row)
        return rows

    async def until(self, kind: str) -> list[str]:
        async with asyncio.timeout(60):
            while kind not in self.kinds:
                await self.look()
        return self.kinds

    async def close(self) -> None:
        await self.stream.aclose()


async def test_nothing_after_an_open_transaction_is_shown_before_it_ends(dsn):
    async with engine(dsn) as core:
        await write(core, "first")
        reader = Reader(core)
        await reader.until("first")  # a server's own transaction, or the database's, may hold it up for a moment
        async with transaction(dsn) as held:
            for kind in ("second", "third"):
                await write(core, kind)
            await reader.look()
            await reader.look()
            assert reader.kinds == ["first"]
            await held.commit()
            assert await reader.until("third") == ["first", "held", "second", "third"]
        await reader.close()


async def test_what_a_transaction_that_was_rolled_back_held_up_is_shown_without_it(dsn):
    async with engine(dsn) as core:
        reader = Reader(core)
        async with transaction(dsn) as held:
            await write(core, "second")
            assert await reader.look() == []
            await held.rollback()
            assert await reader.until("second") == ["second"]
        await reader.close()


async def test_a_reader_that_resumes_at_any_event_is_shown_exactly_what_followed(dsn):
    async with engine(dsn) as core:
        for number in range(6):
            await write(core, f"fact-{number}")
        whole = Reader(core)
        await whole.until("fact-5")
        await whole.close()
        for seen, row in enumerate(whole.rows, 1):
            resumed = Reader(core, after=(row["xid"], row["seq"]))
            await resumed.look()
            assert resumed.kinds == whole.kinds[seen:]
            await resumed.close()


async def test_readers_that_come_and_go_while_transactions_overlap_miss_nothing_and_repeat_nothing(dsn):
    async with engine(dsn) as core:
        expected = {f"{writer}-{number}" for writer in range(4) for number in range(15)}

        async def writes(writer: int) -> None:
            connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
            for number in range(15):
                async with connection.transaction():
                    await connection.execute("insert into event (tenant, kind) values (1, $1)", f"{writer}-{number}")
                    await asyncio.sleep(0.003 * writer)  # long transactions among short ones
            await connection.close()

        writers = asyncio.gather(*map(writes, range(4)))
        after, kinds = BEGINNING, []
        async with asyncio.timeout(60):
            while len(kinds) < len(expected) or not writers.done():
                reader = Reader(core, after=after)
                await reader.look()
                after = reader.after
                kinds += reader.kinds
                await reader.close()
        await writers
        assert sorted(kinds) == sorted(expected)


async def test_a_reader_without_a_cursor_starts_with_what_happens_from_now_on(dsn):
    async with engine(dsn) as core:
        await write(core, "before")
        other = Reader(core)
        await other.until("before")  # a server's own transaction may be open: what committed beside it counts as from now on
        await other.close()
        reader = Reader(core, after=None)
        assert await reader.look() == []
        await write(core, "after")
        assert await reader.until("after") == ["after"]
        await reader.close()


async def test_a_reader_that_starts_while_a_transaction_is_open_is_shown_what_it_commits_later(dsn):
    async with engine(dsn) as core:
        async with transaction(dsn) as held:
            await write(core, "committed before the reader came")
            reader = Reader(core, after=None)
            assert await reader.look() == []
            await held.commit()
            assert "held" in await reader.until("held")
        await reader.close()


async def test_a_tenant_is_shown_its_own_facts_only_and_an_administrator_all(dsn):
    async with engine(dsn) as core:
        other, _ = await core.access.add_tenant("other")
        for kind, tenant in (("mine-1", 1), ("theirs", other), ("mine-2", 1)):
            await write(core, kind, tenant)
        async with core.database.hot() as connection:
            await connection.execute("insert into event (kind) values ('of nobody')")
        shown = {}
        for scope, last in ((1, "mine-2"), (other, "theirs"), (None, "of nobody")):
            reader = Reader(core, tenant=scope)
            await reader.until(last)  # a duty's transaction may still hold back what came after it
            shown[scope] = reader.kinds
            await reader.close()
        everything = ["mine-1", "theirs", "mine-2", "of nobody"]
        assert shown == {1: ["mine-1", "mine-2"], other: ["theirs"], None: everything}


async def test_every_end_of_a_task_is_told_once_with_its_tenant(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        receipt = await submit(
            core, function(name="a"), function(name="b"), function(name="c", after=["b"]), function(name="d", after=["a"])
        )
        orders = {order.id: order for order in await agent.orders(2)}
        await agent.succeed(orders[receipt.ids[0]])
        await agent.succeed(orders[receipt.ids[0]])  # a repeat is no fact
        await agent.fail(orders[receipt.ids[1]])
        await core.actions.cancel([receipt.ids[3]])
        await agent.say(wait_s=0.01)
        reader = Reader(core)
        await reader.until("task.skipped")
        told = [
            (row["kind"], task, row["tenant"]) for row in reader.rows for task in row["tasks"] if row["kind"] != "task.cancelled"
        ]
        a, b, c, _ = receipt.ids
        assert sorted(told) == [("task.failed", b, "default"), ("task.skipped", c, "default"), ("task.succeeded", a, "default")]
        await reader.close()


async def test_a_stream_wakes_up_when_a_task_ends(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.following.LOOK_S", 3600.0)  # only a wake-up helps
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        reader = Reader(core, after=None)
        await reader.look()
        reading = asyncio.create_task(reader.until("task.succeeded"))
        while not reading.done():  # an end that another transaction holds up is shown with the next
            await submit(core, function())
            await agent.succeed(*await agent.orders())
            await asyncio.wait([reading], timeout=1.0)
        assert "task.succeeded" in await reading
        await reader.close()


async def test_streams_end_when_the_server_does(dsn):
    async with engine(dsn) as core:
        reader = Reader(core)
        await reader.look()
        core.begin_stop()
        async with asyncio.timeout(60):
            assert [row async for row in reader.stream] == []


async def test_who_resumes_after_the_database_came_as_a_dump_from_another_postgresql_misses_nothing(dsn):
    """The id of its last event names a transaction that this PostgreSQL has not begun: it would have waited for it."""
    async with engine(dsn) as core:
        for kind in ("first", "second"):
            await write(core, kind)
        async with core.database.cold() as connection:
            await connection.execute("update event set xid = (xid::text::bigint + 1000000000)::text::xid8")
            last = await connection.fetchrow("select xid::text as xid, seq from event where kind = 'first'")
        await migrate(dsn)
        reader = Reader(core, after=(last["xid"], last["seq"]))
        assert await reader.until("second") == ["second"]
        await write(core, "third")
        assert await reader.until("third") == ["second", "third"]
