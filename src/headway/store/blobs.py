"""Content kept in the database by its hash: checkpoints, uploads (H8 H1).

A blob belongs to a tenant. It is stored in chunks, each of which may be sent again, and counts only once all are there and their
SHA-256 was compared. Who needs it holds it under a name (`hold`); what nobody holds is swept away an hour after it was last wanted.
Reading compares the hash again: content that rotted is an error, never an answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from headway.errors import Corrupt, InvalidInput, NotFound
from headway.store.database import Connection
from headway.store.queries import query

CHUNK = 2**20
KEPT_S = 3600.0  # between the arrival of content and the moment somebody must hold it
SWEPT = 100  # blobs in one go

_BEGIN = query("blob.begin")
_PUT = query("blob.put_chunk")
_GET = query("blob.get")
_CHUNK = query("blob.chunk")
_COUNT = query("blob.count_chunks")
_COMPLETE = query("blob.complete")
_DISCARD = query("blob.discard")
_USE = query("blob.use")
_USED = query("blob.used")
_RELEASE = query("blob.release")
_REMOVE = query("blob.remove")
_SWEEP = query("blob.sweep")


def hash_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def chunks_of(size: int) -> int:
    return -(-size // CHUNK)


async def put(connection: Connection, tenant: int, content: bytes) -> bytes:
    """Store content that is here as a whole; returns its hash."""
    digest = hash_of(content)
    if await begin(connection, tenant, digest, len(content)):
        return digest
    for number in range(chunks_of(len(content))):
        await put_chunk(connection, tenant, digest, len(content), number, content[number * CHUNK : (number + 1) * CHUNK])
    await complete(connection, tenant, digest)
    return digest


async def begin(connection: Connection, tenant: int, digest: bytes, size: int) -> bool:
    """Announce content; True when it is here already, whole, and need not be sent."""
    row = await connection.fetchrow(_BEGIN, tenant, digest, size)
    if row["size"] != size:
        raise InvalidInput(f"size: {size} bytes are announced, {row['size']} belong to this hash", field="size")
    return bool(row["complete"])


async def put_chunk(connection: Connection, tenant: int, digest: bytes, size: int, number: int, data: bytes) -> None:
    """One chunk of announced content, in any order; the same one again changes nothing."""
    expected = min(CHUNK, size - number * CHUNK) if 0 <= number < chunks_of(size) else 0
    if not expected or len(data) != expected:
        raise InvalidInput(
            f"chunk {number} has {len(data)} bytes", field="number", hint=f"chunks have {CHUNK} bytes, the last one what is left"
        )
    await connection.execute(_PUT, tenant, digest, number, data)


async def missing(connection: Connection, tenant: int, digest: bytes, size: int) -> bool:
    """Whether some chunks of announced content were not sent yet."""
    return bool(await connection.fetchval(_COUNT, tenant, digest) < chunks_of(size))


async def complete(connection: Connection, tenant: int, digest: bytes) -> None:
    """All chunks were sent: compare the hash. What is not what it says is thrown away, to be sent again."""
    row = await connection.fetchrow(_GET, tenant, digest)
    if row is None:
        raise NotFound("there is no such content", hint="announce it first")
    if row["complete"]:
        return
    try:
        async for _ in pieces(connection, tenant, digest):
            pass
    except Corrupt:
        await discard(connection, tenant, digest)
        raise
    await connection.execute(_COMPLETE, tenant, digest)


async def discard(connection: Connection, tenant: int, digest: bytes) -> None:
    """Throw content away that is not what it says; not what somebody holds."""
    await connection.execute(_DISCARD, tenant, digest)


async def size_of(connection: Connection, tenant: int, digest: bytes) -> int | None:
    """The size of whole content; None when it is not here."""
    row = await connection.fetchrow(_GET, tenant, digest)
    return row["size"] if row is not None and row["complete"] else None


async def pieces(connection: Connection, tenant: int, digest: bytes) -> AsyncIterator[bytes]:
    """The content, chunk by chunk; Corrupt at the end when it was not what its hash says."""
    row = await connection.fetchrow(_GET, tenant, digest)
    if row is None:
        raise NotFound("there is no such content")
    seen = hashlib.sha256()
    for number in range(chunks_of(row["size"])):
        data = await connection.fetchval(_CHUNK, tenant, digest, number)
        if data is None:
            raise Corrupt(f"chunk {number} of {digest.hex()} is missing")
        seen.update(data)
        yield data
    if seen.digest() != digest:
        raise Corrupt(f"the content of {digest.hex()} is damaged")


async def read(connection: Connection, tenant: int, digest: bytes) -> bytes:
    """The whole content, compared with its hash."""
    return b"".join([piece async for piece in pieces(connection, tenant, digest)])


async def chunk(connection: Connection, tenant: int, digest: bytes, number: int) -> bytes:
    """One chunk, for readers who compare the hash themselves."""
    data: bytes | None = await connection.fetchval(_CHUNK, tenant, digest, number)
    if data is None:
        raise NotFound(f"there is no chunk {number} of {digest.hex()}")
    return data


async def hold(connection: Connection, tenant: int, digest: bytes, holder: str) -> None:
    """Keep whole content for as long as `holder` needs it."""
    await connection.execute(_USE, tenant, digest, holder)
    if not await connection.fetchval(_USED, tenant, digest, holder):
        raise NotFound("there is no such content", hint="send it first")


async def release(connection: Connection, holders: list[str]) -> None:
    """These need nothing any more."""
    await connection.execute(_RELEASE, holders)


async def remove(connection: Connection, contents: list[tuple[int, bytes]]) -> None:
    """Content (tenant, hash) that was just released: gone at once if nobody else holds it, without waiting for the sweep."""
    await connection.execute(_REMOVE, [tenant for tenant, _ in contents], [digest for _, digest in contents])


async def sweep(connection: Connection, *, older_than_s: float = KEPT_S) -> int:
    """Remove some of what nobody holds; returns how many."""
    return int((await connection.execute(_SWEEP, older_than_s, SWEPT)).split()[1])
