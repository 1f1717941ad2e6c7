"""Definitions and shapes, interned by content: the hot path knows them by number."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from headway.control.queues import Queues
from headway.control.remembered import Remembered
from headway.control.sealing import Seal
from headway.control.webhooks import register
from headway.domain.isolation import EVERYTHING, confine
from headway.domain.notify import is_address
from headway.domain.queues import Rules
from headway.domain.resources import Resources
from headway.domain.task import Definition, decode, encode
from headway.store.database import Database
from headway.store.queries import query

_SHAPE = query("definition.shape")
_INTERN = query("definition.intern")
_INTERN_MANY = query("definition.intern_many")
_BY_ID = query("definition.by_id")
_SHAPES = query("definition.shapes")
_EACH, _TEXT = 500, 56  # bytes that a definition takes beside its text, and each text in it


class Interned:
    """A definition and its numbers, with what the hot path needs of it at hand."""

    __slots__ = ("cap_ms", "category", "definition", "id", "limit_ms", "shape", "tolerance_us")

    def __init__(self, id: int, shape: int, definition: Definition) -> None:
        self.id = id
        self.shape = shape
        self.definition = definition
        self.cap_ms = definition.cap_ms
        self.category = int(definition.category)
        self.tolerance_us = definition.tolerance_ms * 1000
        self.limit_ms = definition.patience.limit_ms  # on waiting; 0 = none


class Definitions:
    """A cache in front of the two tables, within bounds. Rows never change, so it never goes stale."""

    def __init__(self, database: Database, queues: Queues, seal: Seal) -> None:
        self.database = database
        self.queues = queues
        self.seal = seal
        self.shapes: dict[int, Resources] = {}
        self.rules: dict[int, Rules] = {}  # by shape
        self._by_content: dict[tuple[int, bytes], Interned] = {}
        self._by_id: dict[int, Interned] = {}
        self.remembered = Remembered()
        self.remembered.on_full += [self._by_content.clear, self._by_id.clear]
        self.with_results: set[int] = set()  # those whose orders carry results
        self._shape_ids: dict[tuple[Resources, Rules], int] = {}
        # The next larger form of a task that ran out of memory, as far as its tenant and the fleet allow one (K2).
        self.larger: Callable[[int, Definition], Definition | None] = lambda tenant, definition: None
        self.check_target: Callable[[str, str], None] = lambda url, field: None  # whether an address may be told (J6)
        # What a tenant's subscription says: the least level of isolation, and the network its tasks may ask for.
        self.confinement: Callable[[int], tuple[str, Sequence[str]]] = lambda tenant: ("none", (EVERYTHING,))

    async def intern(self, tenant: int, definition: Definition) -> Interned:
        """The number of this definition for this tenant, stored when it is new."""
        definition, body, digest = self._content(tenant, definition)
        if known := self._by_content.get((tenant, digest)):
            return known
        await self.queues.check(definition)
        for target in definition.notify:
            if is_address(target.to):
                self.check_target(target.to, "notify")
        shape = await self._shape(definition.resources, definition.rules)
        async with self.database.cold() as connection:
            row = None
            while row is None:  # a concurrent insert of the same row is visible to the next statement only
                row = await connection.fetchval(_INTERN, tenant, digest, shape, definition.name, body.decode())
            if definition.notify:
                await register(connection, self.seal, tenant, row, definition.notify)
        return self._keep(Interned(row, shape, definition), body.decode(), (tenant, digest))

    async def intern_many(self, tenant: int, definitions: Sequence[Definition]) -> list[Interned]:
        """The same for many whose queues were checked and that notify nobody: one question instead of one each."""
        contents = [self._content(tenant, definition) for definition in definitions]
        found = {digest: known for _, _, digest in contents if (known := self._by_content.get((tenant, digest)))}
        new = {digest: (definition, body) for definition, body, digest in contents if digest not in found}
        shapes = {digest: await self._shape(one.resources, one.rules) for digest, (one, _) in new.items()}
        while new:
            names, bodies = [one.name for one, _ in new.values()], [body.decode() for _, body in new.values()]
            async with self.database.cold() as connection:
                rows = await connection.fetch(_INTERN_MANY, tenant, list(new), [shapes[one] for one in new], names, bodies)
            for row in rows:
                definition, body = new.pop(row["hash"])
                interned = Interned(row["id"], shapes[row["hash"]], definition)
                found[row["hash"]] = self._keep(interned, body.decode(), (tenant, row["hash"]))
        return [found[digest] for _, _, digest in contents]

    def _content(self, tenant: int, definition: Definition) -> tuple[Definition, bytes, bytes]:
        """What the tenant's subscription makes of a definition, its text, and the hash of that."""
        least, allowed = self.confinement(tenant)
        definition = confine(definition, tenant, least=least, allowed=allowed)
        body = encode(definition)
        return definition, body, hashlib.blake2b(body, digest_size=16).digest()

    def _keep(self, interned: Interned, body: str, content: tuple[int, bytes] | None = None) -> Interned:
        """Remember it, if it is not too long for that."""
        if interned.definition.with_results:
            self.with_results.add(interned.id)
        if self.remembered.add(_EACH + len(body) + _TEXT * body.count('"') // 2):
            self._by_id[interned.id] = interned
            if content is not None:
                self._by_content[content] = interned
        return interned

    async def _shape(self, resources: Resources, rules: Rules) -> int:
        if (known := self._shape_ids.get((resources, rules))) is not None:
            return known
        body = msgspec.json.encode(resources, order="deterministic")
        where = msgspec.json.encode(rules, order="deterministic")
        # Shapes with the default rules keep the number they had before there were any.
        digest = hashlib.blake2b(body if where == b"{}" else body + where, digest_size=16).digest()
        async with self.database.cold() as connection:
            shape: int | None = None
            while shape is None:
                shape = await connection.fetchval(_SHAPE, digest, body.decode(), where.decode())
        self._shape_ids[(resources, rules)] = shape
        self.rules[shape] = rules
        self.shapes[shape] = resources
        return shape

    async def load(self, ids: Iterable[int]) -> dict[int, Interned]:
        """Definitions by number."""
        wanted = set(ids)
        found = {i: self._by_id[i] for i in wanted if i in self._by_id}
        if missing := [i for i in wanted if i not in found]:
            async with self.database.cold() as connection:
                rows = await connection.fetch(_BY_ID, missing)
            for row in rows:
                found[row["id"]] = self._keep(Interned(row["id"], row["shape"], decode(row["body"])), row["body"])
        return found

    def known(self, definition: int) -> Interned | None:
        """If it is remembered."""
        return self._by_id.get(definition)

    async def load_shapes(self, ids: Iterable[int]) -> None:
        missing = [i for i in set(ids) if i not in self.shapes]
        if missing:
            async with self.database.cold() as connection:
                rows = await connection.fetch(_SHAPES, missing)
            for row in rows:
                self.shapes[row["id"]] = msgspec.json.decode(row["resources"], type=Resources)
                self.rules[row["id"]] = msgspec.json.decode(row["rules"], type=Rules)
