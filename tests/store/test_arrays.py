"""Lists that a server packs itself come to PostgreSQL as they were; what does not fit is refused and nothing else suffers (L2 F2)."""

from __future__ import annotations

import random

import pytest

from headway.domain.lifecycle import State
from headway.errors import InvalidInput
from headway.store import arrays
from headway.store.database import Database
from tests.support.engine import ScriptedAgent, done, engine, function, state_of, submit

SAME = "select $1::longs::bigint[] as longs, $2::ints::int[] as ints, $3::byte_strings::bytea[] as byte_strings"
EDGES = [
    ([], [], []),
    ([0], [0], [b""]),
    ([2**63 - 1, -(2**63)], [2**31 - 1, -(2**31)], [None, b"\x00\xff", None]),
    ([7] * 5, [7] * 5, [b"same"] * 5),
]


def at_random(seed: int) -> tuple[list[int], list[int], list[bytes | None]]:
    chance = random.Random(seed)
    strings = [chance.choice((None, chance.randbytes(chance.randrange(300)))) for _ in range(chance.randrange(1, 50))]
    return (
        [chance.randrange(-(2**63), 2**63) for _ in range(chance.randrange(50))],
        [chance.randrange(-(2**31), 2**31) for _ in range(chance.randrange(50))],
        [b"at least one", *strings],
    )


async def test_a_hot_connection_sends_what_was_said(dsn):
    database = Database(dsn)
    try:
        async with database.hot() as connection:
            for longs, ints, strings in [*EDGES, *(at_random(seed) for seed in range(50))]:
                row = await connection.fetchrow(SAME, arrays.longs(longs), arrays.ints(ints), arrays.byte_strings(strings))
                assert (row["longs"], row["ints"], row["byte_strings"]) == (longs, ints, strings)
            nulls = await connection.fetchrow(SAME, arrays.longs([]), arrays.ints([]), arrays.byte_strings([None, None]))
            assert nulls["byte_strings"] == []  # unnest fills it up
    finally:
        await database.close()


async def test_times_come_as_they_were_said(dsn):
    said = [0, 1, 946_684_800_000, 1_767_225_599_999, 253_402_300_799_999]
    database = Database(dsn)
    try:
        async with database.hot() as connection:
            for times in ([], said, said[:1] * 3):
                found = await connection.fetchval("select $1::moments::timestamptz[]", arrays.moments(times))
                assert [round(time.timestamp() * 1000) for time in found] == times
    finally:
        await database.close()


async def test_other_connections_take_lists_as_they_are(dsn):
    database = Database(dsn)
    try:
        async with database.cold() as connection:
            row = await connection.fetchrow(SAME, [1, 2], [3], [b"x", None])
            assert (row["longs"], row["ints"], row["byte_strings"]) == ([1, 2], [3], [b"x", None])
    finally:
        await database.close()


@pytest.mark.parametrize("wrong", [{"id": 2**63}, {"id": -(2**63) - 1}, {"attempt": 2**31}, {"attempt": 2**64 - 1}])
async def test_a_report_with_a_number_that_cannot_be_stored_is_refused_alone(dsn, wrong):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        task = (await submit(core, function())).ids[0]
        order = (await agent.orders())[0]
        absurd = done(order)
        for name, value in wrong.items():
            setattr(absurd, name, value)
        with pytest.raises(InvalidInput, match=str(next(iter(wrong.values())))):
            await agent.say(finished=[absurd])
        assert await state_of(core, task) == State.LEASED
        await agent.succeed(order)
        assert await state_of(core, task) == State.SUCCEEDED
