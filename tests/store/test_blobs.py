"""Content kept by its hash: whole or not at all, a tenant's own, swept away when nobody needs it (H8)."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from headway.errors import Corrupt, InvalidInput, NotFound
from headway.store import blobs
from headway.store.database import Database


@pytest.fixture
async def connection(dsn):
    database = Database(dsn)
    await database.open()
    async with database.cold() as connection:
        await connection.execute("insert into tenant (id, name) values (7, 'other')")
        yield connection
    await database.close()


async def test_content_of_any_size_comes_back_as_it_was(connection):
    for size in (0, 1, blobs.CHUNK - 1, blobs.CHUNK, blobs.CHUNK + 1, 3 * blobs.CHUNK):
        content = os.urandom(size)
        digest = await blobs.put(connection, 1, content)
        assert digest == hashlib.sha256(content).digest()
        assert await blobs.size_of(connection, 1, digest) == size
        assert await blobs.read(connection, 1, digest) == content


async def test_the_same_content_is_stored_once_and_need_not_be_sent_again(connection):
    content = os.urandom(3000)
    digest = await blobs.put(connection, 1, content)
    assert await blobs.begin(connection, 1, digest, len(content))
    assert await blobs.put(connection, 1, content) == digest
    assert await connection.fetchval("select count(*) from blob_chunk") == 1


async def test_a_tenant_cannot_find_out_that_another_has_the_same_content(connection):
    content = b"known to both"
    digest = await blobs.put(connection, 1, content)
    assert await blobs.size_of(connection, 7, digest) is None
    with pytest.raises(NotFound):
        await blobs.read(connection, 7, digest)
    assert not await blobs.begin(connection, 7, digest, len(content))
    with pytest.raises(NotFound):
        await blobs.hold(connection, 7, digest, "upload/1")


async def test_content_that_is_not_what_it_says_is_thrown_away_and_can_be_sent_again(connection):
    content = os.urandom(blobs.CHUNK + 5)
    digest = hashlib.sha256(content).digest()
    await blobs.begin(connection, 1, digest, len(content))
    await blobs.put_chunk(connection, 1, digest, len(content), 0, bytes(blobs.CHUNK))
    await blobs.put_chunk(connection, 1, digest, len(content), 1, content[blobs.CHUNK :])
    with pytest.raises(Corrupt):
        await blobs.complete(connection, 1, digest)
    assert await blobs.size_of(connection, 1, digest) is None
    await blobs.put(connection, 1, content)
    assert await blobs.read(connection, 1, digest) == content


async def test_content_with_a_chunk_missing_is_not_there(connection):
    content = os.urandom(2 * blobs.CHUNK)
    digest = hashlib.sha256(content).digest()
    await blobs.begin(connection, 1, digest, len(content))
    await blobs.put_chunk(connection, 1, digest, len(content), 1, content[blobs.CHUNK :])
    assert await blobs.size_of(connection, 1, digest) is None
    with pytest.raises(NotFound):
        await blobs.hold(connection, 1, digest, "upload/1")
    with pytest.raises(Corrupt, match="missing"):
        await blobs.complete(connection, 1, digest)


@pytest.mark.parametrize(("number", "size"), [(0, 10), (1, 5), (-1, 5), (2, 0)])
async def test_a_chunk_of_the_wrong_length_or_number_is_refused(connection, number, size):
    digest = bytes(32)
    await blobs.begin(connection, 1, digest, blobs.CHUNK + 4)
    with pytest.raises(InvalidInput, match="chunk"):
        await blobs.put_chunk(connection, 1, digest, blobs.CHUNK + 4, number, bytes(size))
    with pytest.raises(InvalidInput, match="belong to this hash"):
        await blobs.begin(connection, 1, digest, 3)


async def test_content_that_rotted_in_the_database_is_an_error_and_not_an_answer(connection):
    digest = await blobs.put(connection, 1, b"the truth")
    await connection.execute("update blob_chunk set data = 'a falsehood'")
    with pytest.raises(Corrupt, match="damaged"):
        await blobs.read(connection, 1, digest)


async def test_what_nobody_holds_is_swept_away_and_what_somebody_holds_is_not(connection):
    held, free, fresh = [await blobs.put(connection, 1, text) for text in (b"held", b"free", b"fresh")]
    await blobs.hold(connection, 1, held, "checkpoint/1/1")
    await blobs.hold(connection, 1, held, "checkpoint/1/1")
    await connection.execute("update blob set touched_at = now() - interval '2 hours' where hash <> $1", fresh)
    assert await blobs.sweep(connection) == 1
    assert [await blobs.size_of(connection, 1, digest) for digest in (held, free, fresh)] == [4, None, 5]
    await blobs.release(connection, ["checkpoint/1/1"])
    assert await blobs.sweep(connection) == 1
    assert await blobs.size_of(connection, 1, held) is None


async def test_two_who_send_the_same_content_at_once_both_succeed(dsn):
    database = Database(dsn)
    await database.open()
    content = os.urandom(3 * blobs.CHUNK)

    async def send() -> bytes:
        async with database.cold() as connection:
            return await blobs.put(connection, 1, content)

    try:
        first, second = await asyncio.gather(send(), send())
        assert first == second
        async with database.cold() as connection:
            assert await blobs.read(connection, 1, first) == content
    finally:
        await database.close()
