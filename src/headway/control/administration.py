"""What administrators change: tenants and their subscriptions, keys, tiers (A7 E6 G1).

Each change tells the audit in its own transaction.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control.access import Access, hash_of
from headway.control.audit import Entry
from headway.control.tenants import Tenants
from headway.domain.checks import check_name
from headway.domain.define import resolve
from headway.domain.resources import TIERS, Resources, misspelt
from headway.domain.spec import ResourcesSpec
from headway.domain.tenant import Subscription, SubscriptionSpec, Terms, changed, check_tenant, spec_of
from headway.errors import Conflict, InvalidInput, NotFound
from headway.store.database import Connection, Database
from headway.store.queries import query

ROLES = ("admin", "tenant", "reader", "agent")
TIERS_EACH = 100  # a tenant may have so many of its own
_CREATE = query("tenant.create")
_LOCK = query("tenant.lock")
_SET = query("tenant.set")
_FIND = query("tenant.find")
_REMOVED_AT = query("tenant.removed_at")
_TIER_OF = query("tenant.tier_of")
_SET_TIER = query("tenant.set_tier")
_NEW_KEY = query("token.create")
_REVOKE = query("token.revoke")


@dataclass
class Administration:
    database: Database
    tenants: Tenants
    access: Access

    async def tenant_id(self, name: str) -> int:
        """A tenant by name, or an error that says so."""
        found: int | None = None
        if "\0" not in name:
            async with self.database.cold() as connection:
                found = await connection.fetchval(_FIND, name)
        if found is None:
            raise NotFound(f"there is no tenant {name[:60]!r}")
        return found

    async def create_tenant(self, name: str, spec: SubscriptionSpec, entry: Entry) -> int:
        check_tenant(name)
        new = changed(Subscription(), spec)
        self._check_tier(new, None)

        async def work(connection: Connection) -> int:
            row = await connection.fetchrow(_CREATE, name, _json(new))
            if row is None:
                raise await _taken(connection, name)
            await entry.tell(connection, name, tenant=row["id"], after=spec_of(new))
            made: int = row["id"]
            return made

        tenant = await self.database.transact(work)
        await self.tenants.refresh()
        return tenant

    async def set_subscription(self, tenant: int, spec: SubscriptionSpec, entry: Entry) -> None:
        async def work(connection: Connection) -> None:
            row = await connection.fetchrow(_LOCK, tenant)
            old = msgspec.json.decode(row["subscription"], type=Subscription)
            new = changed(old, spec)
            self._check_tier(new, tenant)
            if await connection.fetchval(_SET, tenant, _json(new)) is None:
                raise NotFound(f"the tenant {row['name']!r} was removed just now")
            await entry.tell(connection, row["name"], tenant=tenant, before=spec_of(old), after=spec_of(new))

        await self.database.transact(work)
        await self.tenants.refresh()

    def _check_tier(self, new: Subscription, tenant: int | None) -> None:
        tiers = self.tenants.tiers(tenant)
        if new.default_tier not in tiers:
            raise InvalidInput(
                f"default_tier: there is no tier {new.default_tier!r}",
                field="default_tier",
                hint=f"tiers: {', '.join(sorted(tiers))}",
            )

    async def create_key(self, role: str, tenant: int | None, name: str, expires_s: float | None, entry: Entry) -> tuple[str, Any]:
        """The token, which exists only in this answer, and the key's row."""
        if role not in ROLES:
            raise InvalidInput(f"role: {role[:20]!r} is unknown", field="role", hint=f"one of {', '.join(ROLES)}")
        if (role == "tenant" and tenant is None) or (role in ("admin", "agent") and tenant is not None):
            raise InvalidInput("tenant: needed for the role tenant, possible for reader, for no other", field="tenant")
        if name:
            check_name(name)
        if expires_s is not None and expires_s <= 0:
            raise InvalidInput("expires: a key that ends at once is of no use", field="expires", hint='above 0, for example "90d"')
        token = f"hw_{role}_{secrets.token_urlsafe(24)}"

        async def work(connection: Connection) -> Any:
            row = await connection.fetchrow(_NEW_KEY, hash_of(token), role, tenant, name, expires_s)
            after = {"role": role, "name": name, "expires_at": row["expires_at"]}
            await entry.tell(connection, f"key {row['id']}", tenant=tenant, after=after)
            return row

        return token, await self.database.transact(work)

    async def revoke_key(self, key: int, scope: int | None, entry: Entry) -> Any:
        async def work(connection: Connection) -> Any:
            row = await connection.fetchrow(_REVOKE, key, scope)
            if row is None:
                raise NotFound(f"there is no key {key}")
            await entry.tell(connection, f"key {key}", tenant=row["tenant"], after={"revoked_at": row["revoked_at"]})
            return row

        row = await self.database.transact(work)
        self.access.forget()
        return row

    async def set_tier(self, tenant: int | None, name: str, asked: ResourcesSpec | None, entry: Entry) -> None:
        """Define a tier, the operator's or a tenant's own, or take it away."""
        check_name(name, "tier")
        if near := misspelt(name):
            raise InvalidInput(f"tier: {name!r} reads like a slip of {near!r}", field="tier", hint="choose another name")
        need = None if asked is None else self._need(tenant, asked)
        if need is None:
            self._check_unused(tenant, name)
        elif len(self.tenants.own_tiers(tenant)) >= TIERS_EACH:
            raise Conflict(f"there are {TIERS_EACH} tiers already", hint="take one away first")

        async def work(connection: Connection) -> None:
            row = await connection.fetchrow(_TIER_OF, tenant, name)
            before = None if row is None or row["resources"] is None else msgspec.json.decode(row["resources"])
            if need is None and before is None:
                raise NotFound(f"there is no tier {name!r} to take away", hint="predefined tiers can be changed, not removed")
            await connection.execute(_SET_TIER, tenant, name, None if need is None else msgspec.json.encode(need).decode())
            await entry.tell(connection, f"tier {name}", tenant=tenant, before=before, after=need)

        await self.database.transact(work)
        await self.tenants.refresh()

    def _need(self, tenant: int | None, asked: ResourcesSpec) -> Resources:
        """What a tier stands for: what is left out comes from the tier it is based on. A tenant's own stays within its subscription."""
        if tenant is not None:
            return resolve(asked, self.tenants.terms(tenant))[0]
        return resolve(asked, Terms(tiers=self.tenants.tiers(None)))[0]

    def _check_unused(self, tenant: int | None, name: str) -> None:
        if name in TIERS:
            return  # what was predefined is there again
        named = [
            self.tenants.names[number]
            for number, subscription in self.tenants.subscriptions.items()
            if subscription.default_tier == name and tenant in (None, number)
        ]
        if named:
            raise Conflict(f"tier {name!r} is the default of {named[0]!r}", hint="give it another default tier first")


async def _taken(connection: Connection, name: str) -> Conflict:
    removed_at = await connection.fetchval(_REMOVED_AT, name)
    if removed_at is None:
        return Conflict(f"there is a tenant {name!r} already")
    hint = "choose another name: what history and audit say of this one is about the tenant that had it"
    return Conflict(f"there was a tenant {name!r}, removed at {removed_at:%Y-%m-%d %H:%M} UTC", hint=hint)


def _json(subscription: Subscription) -> str:
    return msgspec.json.encode(subscription).decode()
