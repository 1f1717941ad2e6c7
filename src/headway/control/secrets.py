"""Secrets: sealed in the database, opened for the agent whose task was granted them, and for nobody else (H11).

Each value is sealed (sealing.py) with its tenant and name, so that a row copied to another name or tenant does not open. There is no
call that gives a value back to a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway.control.definitions import Definitions
from headway.control.sealing import Seal, Sealed
from headway.domain.content import check_secret_name
from headway.errors import ConfigError, InvalidInput, NotFound, Unavailable
from headway.logs import log
from headway.store.database import Database
from headway.store.queries import query
from headway.wire.exchange import Order

LARGEST = 64 * 1024
_PUT = query("secret.put")
_GET = query("secret.get")
_LIST = query("secret.list")
_REMOVE = query("secret.remove")
_OF = query("secret.of_definitions")


@dataclass
class Secrets:
    database: Database
    definitions: Definitions
    seal: Seal

    async def put(self, tenant: int, name: str, value: str) -> None:
        check_secret_name(name)
        if not value or len(value.encode()) > LARGEST or "\0" in value:
            raise InvalidInput("value: it is empty, too long or has a NUL in it", field="value", hint=f"1 to {LARGEST} bytes")
        sealed = self.seal.close(value, _sealed_in(tenant, name))
        async with self.database.cold() as connection:
            await connection.execute(_PUT, tenant, name, sealed.key_id, sealed.nonce, sealed.body)

    async def names(self, tenant: int) -> list[Any]:
        async with self.database.cold() as connection:
            found: list[Any] = await connection.fetch(_LIST, tenant)
        return found

    async def remove(self, tenant: int, name: str) -> None:
        async with self.database.cold() as connection:
            if await connection.fetchval(_REMOVE, tenant, name) is None:
                raise NotFound(f"there is no secret {name[:60]!r}", hint="see `headway secret ls`")

    async def check(self, tenant: int, names: Iterable[str]) -> None:
        """Refuse a task that names a secret its tenant does not have."""
        wanted = list(names)
        async with self.database.cold() as connection:
            there = {row["name"] for row in await connection.fetch(_GET, tenant, wanted)}
        for name in wanted:
            if name not in there:
                raise InvalidInput(
                    f"secrets: there is no secret {name!r}", field="secrets", hint=f"`headway secret set {name}` first"
                )

    async def reveal(self, orders: Iterable[Order]) -> dict[int, dict[str, str]]:
        """For each definition of these orders that names secrets: its variables with their values. One whose secrets are all gone is
        told too, with none: what a node was told before counts no more."""
        wanted: list[tuple[int, str, str]] = []
        for number, known in (await self.definitions.load(order.definition for order in orders)).items():
            if known.definition.content.secrets:
                wanted += [(number, variable, name) for variable, name in known.definition.content.secrets.items()]
        if not wanted:
            return {}
        async with self.database.cold() as connection:
            rows = await connection.fetch(_OF, [number for number, _, _ in wanted], [name for _, _, name in wanted])
        values = {(row["definition"], row["name"]): value for row in rows if (value := self._opened(row)) is not None}
        found: dict[int, dict[str, str]] = {number: {} for number, _, _ in wanted}
        for number, variable, name in wanted:
            if (number, name) in values:
                found[number][variable] = values[number, name]
        return found

    def _opened(self, row: Any) -> str | None:
        """None for one that does not open: its task is told so by its node, and the orders of others go out all the same."""
        try:
            return self.open(row["tenant"], row)
        except (Unavailable, ConfigError) as error:
            log("secret.not_opened", level="error", tenant=row["tenant"], name=row["name"], error=str(error))
            return None

    def open(self, tenant: int, row: Any) -> str:
        """The value of a sealed row."""
        sealed = Sealed(row["key_id"], row["nonce"], row["sealed"])
        return self.seal.open(sealed, _sealed_in(tenant, row["name"]), called=f"the secret {row['name']!r}")


def _sealed_in(tenant: int, name: str) -> str:
    return f"{tenant}/{name}"
