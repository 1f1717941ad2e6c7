"""Secrets: sealed in the database, opened for the agent whose task was granted them, and for nobody else (H11).

The key is a file that only servers read. AES-256-GCM seals each value with its tenant and name, so that a row copied to another name
or tenant does not open. There is no call that gives a value back to a person.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.control.definitions import Definitions
from headway.domain.content import check_secret_name
from headway.errors import ConfigError, InvalidInput, NotFound, Unavailable
from headway.logs import log
from headway.store.database import Database
from headway.store.queries import query
from headway.wire.exchange import Order

LARGEST = 64 * 1024
KEY_BYTES = 32
_PUT = query("secret.put")
_GET = query("secret.get")
_LIST = query("secret.list")
_REMOVE = query("secret.remove")
_OF = query("secret.of_definitions")


@dataclass
class Secrets:
    database: Database
    definitions: Definitions
    key_file: Path
    _key: bytes = b""

    async def put(self, tenant: int, name: str, value: str) -> None:
        check_secret_name(name)
        if not value or len(value.encode()) > LARGEST or "\0" in value:
            raise InvalidInput("value: it is empty, too long or has a NUL in it", field="value", hint=f"1 to {LARGEST} bytes")
        nonce = os.urandom(12)
        sealed = self._cipher().encrypt(nonce, value.encode(), _sealed_in(tenant, name))
        async with self.database.cold() as connection:
            await connection.execute(_PUT, tenant, name, self._key_id(), nonce, sealed)

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
        for number in {order.definition for order in orders}:
            known = self.definitions.known(number)
            if known is not None and known.definition.content.secrets:
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
        from cryptography.exceptions import InvalidTag

        if row["key_id"] != self._key_id():
            raise Unavailable(
                f"the secret {row['name']!r} was sealed with another key", hint="give every server the same secrets_key file"
            )
        try:
            value: bytes = self._cipher().decrypt(row["nonce"], row["sealed"], _sealed_in(tenant, row["name"]))
        except InvalidTag:
            raise Unavailable(f"the secret {row['name']!r} is damaged", hint="set it again") from None
        return value.decode()

    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 30 ms that a server without secrets does not spend

        return AESGCM(self._load())

    def _key_id(self) -> bytes:
        return hashlib.sha256(b"headway secrets key" + self._load()).digest()[:8]

    def _load(self) -> bytes:
        """The key; made at the first use. Two servers that make it at once end up with one."""
        if self._key:
            return self._key
        try:
            self.key_file.parent.mkdir(parents=True, exist_ok=True)
            part = self.key_file.with_name(f"{self.key_file.name}.{os.getpid()}")
            if not self.key_file.exists():
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(os.urandom(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(part, self.key_file)  # whoever comes second finds the first one's
                except FileExistsError:
                    pass
                finally:
                    part.unlink()
            key = self.key_file.read_bytes()
        except OSError as error:
            raise ConfigError(f"the secrets key {self.key_file} cannot be read: {error.strerror}", hint="set secrets_key") from None
        if len(key) != KEY_BYTES:
            raise ConfigError(f"the secrets key {self.key_file} has {len(key)} bytes", hint=f"exactly {KEY_BYTES} random bytes")
        self._key = key
        return key


def _sealed_in(tenant: int, name: str) -> bytes:
    return f"{tenant}/{name}".encode()
