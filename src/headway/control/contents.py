"""Uploads and pinned URLs: content that tasks run, kept by its hash for its tenant (H1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from headway.control.definitions import Definitions, Interned
from headway.control.secrets import Secrets
from headway.domain.content import check_addressed, uploaded
from headway.domain.task import Definition
from headway.errors import InvalidInput, NotFound
from headway.store import blobs
from headway.store.database import Database
from headway.store.queries import query

_OWNER = query("content.owner")
_PIN = query("content.pin")
_PINNED = query("content.pinned")


@dataclass
class Contents:
    database: Database
    definitions: Definitions
    secrets: Secrets

    async def keep(self, tenant: int, content: bytes) -> str:
        """Store an upload, once; returns its SHA-256."""
        async with self.database.cold() as connection:
            return (await blobs.put(connection, tenant, content)).hex()

    async def intern(self, tenant: int, definition: Definition) -> Interned:
        """Intern a definition whose uploads and secrets are there; its uploads are kept from now on."""
        check_addressed(definition)
        digests = uploads_of(definition)
        if definition.content.secrets:
            await self.secrets.check(tenant, definition.content.secrets.values())
        await self._check_uploads(tenant, digests)
        interned = await self.definitions.intern(tenant, definition)
        if digests:
            async with self.database.cold() as connection:
                for digest in digests:
                    await blobs.hold(connection, tenant, bytes.fromhex(digest), f"definition/{interned.id}")
        return interned

    async def checked(self, definition: Definition) -> bool:
        """Check a definition that needs nothing but itself; False when it must be interned by itself."""
        if definition.content.secrets or definition.notify or uploads_of(definition):
            return False
        check_addressed(definition)
        await self.definitions.queues.check(definition)
        return True

    async def _check_uploads(self, tenant: int, digests: list[str]) -> None:
        for digest in digests:
            async with self.database.cold() as connection:
                if await blobs.size_of(connection, tenant, bytes.fromhex(digest)) is None:
                    raise InvalidInput(
                        f"executable: there is no upload {digest[:12]}...",
                        field="executable",
                        hint="POST /v1/uploads?name=NAME first",
                    )

    async def pieces(self, definition: int, digest: str) -> AsyncIterator[bytes]:
        """An upload for an agent: only one that the definition it runs names, of that definition's tenant."""
        tenant = await self._owner(definition)
        known = (await self.definitions.load([definition]))[definition]
        if digest not in uploads_of(known.definition):
            raise NotFound("that definition names no such upload")
        async with self.database.cold() as connection:
            found = await blobs.size_of(connection, tenant, bytes.fromhex(digest))
        if found is None:
            raise NotFound("the upload is gone", hint="upload it again")
        return self._pieces(tenant, bytes.fromhex(digest))

    async def _pieces(self, tenant: int, digest: bytes) -> AsyncIterator[bytes]:
        async with self.database.cold() as connection:
            async for piece in blobs.pieces(connection, tenant, digest):
                yield piece

    async def pin(self, definition: int, url: str, digest: str) -> str:
        """What the URL was when it was first fetched; what it is now, when nobody did."""
        tenant = await self._owner(definition)
        async with self.database.cold() as connection:
            await connection.execute(_PIN, tenant, url, bytes.fromhex(digest))
            pinned: bytes = await connection.fetchval(_PINNED, tenant, url)
        return pinned.hex()

    async def _owner(self, definition: int) -> int:
        async with self.database.cold() as connection:
            tenant: int | None = await connection.fetchval(_OWNER, definition)
        if tenant is None:
            raise NotFound(f"there is no definition {definition}")
        return tenant


def uploads_of(definition: Definition) -> list[str]:
    """The hashes of the uploads that a definition runs or unpacks."""
    sources = (definition.executable, *(archive.source for archive in definition.content.archives))
    return [found[0] for source in sources if (found := uploaded(source))]
