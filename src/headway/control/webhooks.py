"""Endpoints: made, changed, given new secrets, removed; and those that tasks name in `notify` (J6)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from headway.control.sealing import PREFIX as SEALED
from headway.control.sealing import Seal
from headway.domain.addresses import Network
from headway.domain.events import kinds_of
from headway.domain.notify import Notify, check_name, check_url, is_address
from headway.errors import Conflict, InvalidInput, NotFound
from headway.logs import log
from headway.policy import webhook as policy
from headway.store.database import Connection, Database
from headway.store.queries import query

OVERLAP_S = 86_400.0  # for so long the old secret signs along after a change
MOST = 100  # endpoints that a tenant makes itself

_WAKE_UP = query("webhook.wake_up")
_ADD = query("webhook.add")
_MINE = query("webhook.mine")
_CHANGE = query("webhook.change")
_ROTATE = query("webhook.rotate")
_REMOVE = query("webhook.remove")
_ANY_OF, _REMOVE_ALL_OF = query("webhook.any_of"), query("webhook.remove_all_of")
_NAMES = query("webhook.names")
_NOTIFYING = query("webhook.notifying")
_DELIVERIES = query("webhook.deliveries")
_REPLAY = query("webhook.replay")
_KNOWN = query("webhook.known_messages")
_SEND = query("webhook.send")
_IN_PLAIN = query("webhook.in_plain_text")
_SEAL = query("webhook.seal")
CHUNK = 1000


@dataclass(frozen=True)
class Owner:
    """Whose endpoints: a tenant's, and those for all tenants when an administrator asks."""

    tenant: int
    admin: bool


@dataclass
class Webhooks:
    database: Database
    seal: Seal
    allowed: Sequence[Network] = ()
    on_change: list[Callable[[], None]] = field(default_factory=list)

    async def all(self, owner: Owner, name: str | None = None) -> list[Any]:
        async with self.database.cold() as connection:
            rows: list[Any] = await connection.fetch(_MINE, owner.tenant, owner.admin, name)
        return rows

    async def one(self, owner: Owner, name: str) -> Any:
        rows = await self.all(owner, name)
        if not rows:
            raise NotFound(f"there is no webhook {name[:60]!r}", hint="`headway webhook ls` shows them")
        return rows[0]

    async def add(
        self, owner: Owner, *, name: str, url: str, events: list[str], everywhere: bool = False, secret: str | None = None
    ) -> tuple[Any, str]:
        """A new endpoint and its secret, which is shown only now."""
        check_name(name)
        self.check_target(url)
        kinds = kinds_of(events, "events")
        secret = policy.check_secret(secret) if secret else policy.new_secret(secrets.token_bytes(32))
        tenant = None if everywhere else owner.tenant
        kept = self.seal.close_text(secret, sealed_in(tenant, name))
        if len(await self.all(owner)) >= MOST and not owner.admin:
            raise Conflict(f"there are {MOST} webhooks already", hint="remove one first")

        async def work(connection: Connection) -> int | None:
            await connection.execute(_WAKE_UP)
            added: int | None = await connection.fetchval(_ADD, tenant, name, url, list(kinds), kept, False)
            return added

        if await self.database.transact(work) is None:
            raise Conflict(f"there is a webhook {name!r} already", hint="choose another name; `headway webhook set` changes it")
        self._changed()
        return await self.one(owner, name), secret

    async def change(self, owner: Owner, name: str, *, url: str | None, events: list[str] | None, enabled: bool | None) -> Any:
        row = await self.one(owner, name)
        if url is not None:
            self.check_target(url)
        if row["implicit"] and (url is not None or events is not None):
            raise Conflict(f"{name} belongs to tasks that name it", hint="it can be disabled, or given a new secret")
        kinds = None if events is None else list(kinds_of(events, "events"))
        await self._write(_CHANGE, row["id"], url, kinds, enabled)
        self._changed()
        return await self.one(owner, name)

    async def rotate(self, owner: Owner, name: str) -> tuple[Any, str]:
        """A new secret; the old one signs along for a day, so that receivers can change over."""
        row, secret = await self.one(owner, name), policy.new_secret(secrets.token_bytes(32))
        kept = self.seal.close_text(secret, sealed_in(row["tenant"], name))
        async with self.database.cold() as connection:
            await connection.execute(_ROTATE, row["id"], kept, OVERLAP_S)
        return await self.one(owner, name), secret

    async def seal_old(self) -> int:
        """Seal what was stored in plain text, by an earlier version or before there was a key that all servers share. How many were."""
        count = 0
        while self.seal.shared:
            async with self.database.cold() as connection:
                rows = await connection.fetch(_IN_PLAIN, CHUNK)
                if not rows:
                    break
                now = [[self._sealed(row, column) for row in rows] for column in ("secret", "old_secret")]
                before = [[row[column] for row in rows] for column in ("secret", "old_secret")]
                await connection.execute(_SEAL, [row["id"] for row in rows], *before, *now)
            count += len(rows)
        if count:
            log("webhooks.sealed", count=count)
        return count

    def _sealed(self, row: Any, column: str) -> str | None:
        value: str | None = row[column]
        if value is None or value.startswith(SEALED):
            return value
        return self.seal.close_text(value, sealed_in(row["tenant"], row["name"]))

    async def remove(self, owner: Owner, name: str) -> None:
        row = await self.one(owner, name)
        await self._write(_REMOVE, row["id"])
        self._changed()

    async def remove_all(self, connection: Connection, tenant: int) -> str:
        """A tenant goes, and all its endpoints with what was to be sent to them; what PostgreSQL says of it (`DELETE 2`)."""
        if not await connection.fetchval(_ANY_OF, tenant):
            return "DELETE 0"
        await connection.execute(_WAKE_UP)
        said: str = await connection.execute(_REMOVE_ALL_OF, tenant)
        return said

    async def deliveries(self, owner: Owner, name: str, state: int | None, before: int | None, limit: int) -> list[Any]:
        row = await self.one(owner, name)
        async with self.database.cold() as connection:
            rows: list[Any] = await connection.fetch(_DELIVERIES, row["id"], state, before, limit)
        return rows

    async def replay(self, owner: Owner, name: str, *, messages: list[str], dead: bool, since: Any) -> list[int]:
        """Send messages again that were delivered or given up."""
        row = await self._enabled(owner, name)
        if not messages and not dead and since is None:
            raise InvalidInput("nothing to replay is named", field="dead", hint="give messages, dead or since")
        async with self.database.cold() as connection:
            known = {r["message"] for r in await connection.fetch(_KNOWN, row["id"], messages)}
            if unknown := [message for message in messages if message not in known]:
                hint = f"`headway webhook deliveries {name}` lists those that are kept; nothing was sent again"
                raise NotFound(f"no message {unknown[0][:60]!r} was made for {name}", hint=hint)
            again = [r["id"] for r in await connection.fetch(_REPLAY, row["id"], messages, dead, since)]
        self._changed()
        return again

    async def test(self, owner: Owner, name: str, body: str, message: str) -> None:
        """Queue a message for an endpoint alone."""
        row = await self._enabled(owner, name)
        async with self.database.cold() as connection:
            await connection.execute(_SEND, [row["id"]], [None], [message], ["webhook.test"], [body])
        self._changed()

    async def _enabled(self, owner: Owner, name: str) -> Any:
        """The endpoint, if anything would be sent to it."""
        row = await self.one(owner, name)
        if not row["enabled"]:
            raise Conflict(f"the webhook {name} is disabled: nothing is sent to it", hint=f"headway webhook set {name} --enable")
        return row

    async def _write(self, statement: str, *values: Any) -> None:
        """A change of who listens."""

        async def work(connection: Connection) -> None:
            await connection.execute(_WAKE_UP)
            await connection.execute(statement, *values)

        await self.database.transact(work)

    def check_target(self, url: str, field: str = "url") -> None:
        """An address written as numbers can be judged at once; a name is judged each time it is used."""
        check_url(url, field)
        host = urlsplit(url).hostname or ""
        numeric = ":" in host or host.replace(".", "").isdigit()
        if numeric and (why := policy.refused(host, self.allowed)) is not None:
            hint = "webhooks go to public addresses; the operator can allow others (HEADWAY_WEBHOOK_NETWORKS)"
            raise InvalidInput(f"{field}: {why}", field=field, hint=hint)

    def _changed(self) -> None:
        for tell in self.on_change:
            tell()


def implicit_name(url: str) -> str:
    """The name of the endpoint behind an address in a task's `notify`."""
    return "auto-" + hashlib.blake2b(url.encode(), digest_size=6).hexdigest()


def name_of(to: str) -> str:
    return implicit_name(to) if is_address(to) else to


def sealed_in(tenant: int | None, name: str) -> str:
    """What a secret of an endpoint is sealed with; no secret of a tenant's tasks is called so."""
    return f"webhook/{'' if tenant is None else tenant}/{name}"


async def register(connection: Connection, seal: Seal, tenant: int, definition: int, notify: Sequence[Notify]) -> None:
    """A definition that says whom to notify: its addresses become endpoints, names must be endpoints already."""
    addresses = [target.to for target in notify if is_address(target.to)]
    names = [target.to for target in notify if not is_address(target.to)]
    known = {row["name"] for row in await connection.fetch(_NAMES, tenant, names)} if names else set()
    for name in names:
        if name not in known:
            raise InvalidInput(
                f"notify: there is no webhook {name!r}", field="notify", hint="make it first: headway webhook create NAME URL"
            )
    async with connection.transaction():
        await connection.execute(_WAKE_UP)
        for url in addresses:
            secret = policy.new_secret(secrets.token_bytes(32))
            name = implicit_name(url)
            await connection.execute(_ADD, tenant, name, url, [], seal.close_text(secret, sealed_in(tenant, name)), True)
        await connection.execute(_NOTIFYING, definition, tenant)
