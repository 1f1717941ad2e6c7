"""Checkpoints and stages as a server keeps them: fenced, the last two, whole, gone with the task (H8)."""

from __future__ import annotations

import hashlib
import os

import pytest

from headway.control import checkpoints
from headway.control.checkpoints import Writer
from headway.errors import Conflict, Corrupt, NotFound, TooLarge
from headway.store import blobs
from headway.wire.exchange import Staged
from tests.support.engine import ScriptedAgent, engine, function, submit


@pytest.fixture
async def core(dsn):
    async with engine(dsn, max_checkpoint=4 * 2**20) as core:
        yield core


async def running(core, **fields):
    agent = await ScriptedAgent(core, cpus=0.5).join()
    await submit(core, function(attempts=3, retry={"interval": 0.01, "jitter": 0}, **fields))
    order = (await agent.orders())[0]
    return agent, order, Writer(order.id, order.attempt, agent.id)


async def save(core, writer: Writer, content: bytes) -> bytes:
    """As an agent does: announce, send the chunks, announce again."""
    digest = hashlib.sha256(content).digest()
    if not await core.checkpoints.announce(writer, digest, len(content)):
        for number in range(blobs.chunks_of(len(content))):
            piece = content[number * blobs.CHUNK : (number + 1) * blobs.CHUNK]
            await core.checkpoints.put_chunk(writer, digest, len(content), number, piece)
        assert await core.checkpoints.announce(writer, digest, len(content))
    return digest


async def fetch(core, question: str, *values):
    async with core.database.cold() as connection:
        return await connection.fetch(question, *values)


async def test_the_next_attempt_is_told_of_the_last_two_good_checkpoints_newest_first(core):
    agent, order, writer = await running(core)
    saved = [await save(core, writer, os.urandom(size)) for size in (10, blobs.CHUNK + 1, 2 * blobs.CHUNK)]
    await agent.fail(order)
    again = (await agent.orders())[0]
    assert again.resume.checkpoints == [(saved[2], 2 * blobs.CHUNK), (saved[1], blobs.CHUNK + 1)]
    assert len(await fetch(core, "select from checkpoint")) == 2
    assert len(await fetch(core, "select from blob_use")) == 2
    assert len(await fetch(core, "select from event where kind = 'task.checkpointed' and tasks = array[$1::bigint]", order.id)) == 3


async def test_a_first_attempt_and_a_task_that_saved_nothing_begin_from_nothing(core):
    agent, order, _ = await running(core)
    assert order.resume is None
    await agent.fail(order)
    assert (await agent.orders())[0].resume is None


async def test_the_same_folder_again_is_not_the_one_before(core):
    agent, order, writer = await running(core)
    first, second = await save(core, writer, b"one"), await save(core, writer, b"two")
    assert await core.checkpoints.announce(writer, second, 3)
    await agent.fail(order)
    assert [digest for digest, _ in (await agent.orders())[0].resume.checkpoints] == [second, first]


async def test_an_attempt_that_has_ended_saves_nothing_and_fetches_nothing(core):
    agent, order, writer = await running(core)
    digest = await save(core, writer, b"good")
    await agent.fail(order)
    again = (await agent.orders())[0]
    for wrong in (writer, Writer(order.id, again.attempt, agent.id + 1), Writer(order.id, 99), Writer(12345, 1, agent.id)):
        with pytest.raises(Conflict, match="has ended"):
            await core.checkpoints.announce(wrong, hashlib.sha256(b"bad").digest(), 3)
        with pytest.raises(Conflict, match="has ended"):
            await core.checkpoints.put_chunk(wrong, hashlib.sha256(b"bad").digest(), 3, 0, b"bad")
        with pytest.raises(Conflict, match="has ended"):
            await core.checkpoints.save_value(wrong, b"bad")
        with pytest.raises(Conflict, match="has ended"):
            await core.checkpoints.chunk(wrong, digest, 0)
    assert await core.checkpoints.chunk(Writer(order.id, again.attempt, agent.id), digest, 0) == b"good"


async def test_a_node_fetches_only_checkpoints_of_the_task_it_runs(core):
    _, _, writer = await running(core)
    secret = await save(core, writer, b"of another task")
    agent = await ScriptedAgent(core, "node-2").join()
    await submit(core, function(name="other"))
    order = (await agent.orders())[0]
    with pytest.raises(NotFound):
        await core.checkpoints.chunk(Writer(order.id, order.attempt, agent.id), secret, 0)


async def test_a_folder_that_is_not_what_it_says_is_not_saved_and_can_be_sent_again(core):
    agent, order, writer = await running(core)
    digest = hashlib.sha256(b"right").digest()
    assert not await core.checkpoints.announce(writer, digest, 5)
    await core.checkpoints.put_chunk(writer, digest, 5, 0, b"wrong")
    with pytest.raises(Corrupt):
        await core.checkpoints.announce(writer, digest, 5)
    await agent.fail(order)
    again = (await agent.orders())[0]
    assert again.resume is None
    assert await save(core, Writer(order.id, again.attempt, agent.id), b"right") == digest


async def test_a_checkpoint_above_the_limit_is_refused_before_anything_is_sent(core):
    _, _, writer = await running(core)
    with pytest.raises(TooLarge, match="max_checkpoint"):
        await core.checkpoints.announce(writer, bytes(32), 4 * 2**20 + 1)
    assert await fetch(core, "select from blob") == []


async def test_a_value_that_rotted_is_passed_over_for_the_one_before(core):
    _, _, writer = await running(core)
    own = Writer(writer.task, writer.attempt)
    for content in (b"one", b"two", b"three"):
        await core.checkpoints.save_value(own, content)
    assert await core.checkpoints.last_value(own.task) == b"three"
    await fetch(core, "update blob_chunk set data = 'thrEe' where hash = $1", hashlib.sha256(b"three").digest())
    assert await core.checkpoints.last_value(own.task) == b"two"
    await core.checkpoints.save_value(own, b"four")
    assert await core.checkpoints.last_value(own.task) == b"four"


async def test_a_folder_that_an_agent_found_damaged_is_forgotten_only_if_it_is(core):
    agent, order, writer = await running(core)
    good, bad = await save(core, writer, b"good"), await save(core, writer, b"bad!")
    await core.checkpoints.reject(writer, good)
    await fetch(core, "update blob_chunk set data = 'BAD!' where hash = $1", bad)
    await core.checkpoints.reject(writer, bad)
    await agent.fail(order)
    assert [digest for digest, _ in (await agent.orders())[0].resume.checkpoints] == [good]


async def test_checkpoints_go_with_the_task_but_stay_with_a_dead_letter(core):
    agent, order, writer = await running(core)
    await save(core, writer, b"precious")
    for _ in range(2):
        await agent.fail(order)
        order = (await agent.orders())[0]
    await agent.fail(order)
    async with core.database.cold() as connection:
        await checkpoints.forget(connection)
        assert await connection.fetchval("select count(*) from checkpoint") == 1
    await core.actions.revive([order.id], 1, None)
    again = (await agent.orders())[0]
    assert again.resume.checkpoints == [(hashlib.sha256(b"precious").digest(), 8)]
    await agent.succeed(again)
    async with core.database.cold() as connection:
        await checkpoints.forget(connection)
        assert await connection.fetchval("select count(*) from checkpoint") == 0
        assert await connection.fetchval("select count(*) from blob_use") == 0
        await connection.execute("update blob set touched_at = now() - interval '2 hours'")
        await blobs.sweep(connection)
        assert await connection.fetchval("select count(*) from blob") == 0


async def test_what_is_dropped_for_a_newer_one_takes_no_room_any_more(core):
    _, _, writer = await running(core)
    for content in (b"one", b"two"):
        await save(core, writer, content)
    await fetch(core, "update blob set touched_at = now() - interval '10 seconds'")
    await save(core, writer, b"three")
    left = [row["hash"] for row in await fetch(core, "select hash from blob")]
    assert sorted(left) == sorted(hashlib.sha256(content).digest() for content in (b"two", b"three"))
    assert len(await fetch(core, "select from blob_chunk")) == 2


async def test_stages_that_ended_are_counted_once_and_only_for_the_attempt_that_runs(core):
    agent, order, _ = await running(core)
    await agent.say(stages=[Staged(order.id, order.attempt, 0), Staged(order.id, order.attempt, 1)])
    await agent.say(stages=[Staged(order.id, order.attempt, 1)])
    await agent.fail(order)
    await agent.say(stages=[Staged(order.id, order.attempt, 2)])  # late: the attempt is over
    again = (await agent.orders())[0]
    assert again.resume.stage == 2
