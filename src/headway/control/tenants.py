"""Every tenant's subscription and tiers, in memory on each server: the hot path asks nobody.

Read at the start, then only what changed: every few seconds, and at once when another server says so. A change made here is in
force when its call returns; elsewhere when it is told, or a few seconds later.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.control.bus import Bus
from headway.domain.isolation import EVERYTHING
from headway.domain.resources import TIERS, Resources
from headway.domain.tenant import Subscription, Terms, terms_of
from headway.errors import Conflict
from headway.store.database import Database
from headway.store.queries import query

_CHANGES = query("tenant.changes")
_TIER_CHANGES = query("tenant.tier_changes")
_EVER = datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)


@dataclass
class Tenants:
    """`get(tenant)` and `terms(tenant)` are plain look-ups; `version` rises with every change anybody made."""

    database: Database
    bus: Bus
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    version: int = 0
    _tiers: dict[int | None, dict[str, Resources]] = field(default_factory=dict)
    _terms: dict[int, Terms] = field(default_factory=dict)
    _stamps: dict[Any, datetime.datetime] = field(default_factory=dict)
    _seen: datetime.datetime = _EVER

    def get(self, tenant: int) -> Subscription:
        """What the tenant pays for; one that nobody has told us of yet has the defaults."""
        return self.subscriptions.get(tenant, _STANDARD)

    def confinement(self, tenant: int) -> tuple[str, Sequence[str]]:
        """The least isolation of its tasks, and the network they may ask for: all of it for those that need no isolation anyway."""
        found = self.get(tenant)
        return found.isolation, (EVERYTHING,) if found.isolation == "none" else found.network

    def terms(self, tenant: int) -> Terms:
        """What its subscription means for its tasks."""
        found = self._terms.get(tenant)
        if found is None:
            found = self._terms[tenant] = terms_of(self.get(tenant), self.tiers(tenant))
        return found

    def tiers(self, tenant: int | None) -> Mapping[str, Resources]:
        """The tiers a tenant may name: predefined, the operator's, its own; later ones replace earlier ones."""
        own = {} if tenant is None else self._tiers.get(tenant, {})
        return {**TIERS, **self._tiers.get(None, {}), **own}

    def own_tiers(self, tenant: int | None) -> Mapping[str, Resources]:
        """Those of one tenant, or of the operator (None)."""
        return self._tiers.get(tenant, {})

    def id_of(self, name: str) -> int | None:
        return next((tenant for tenant, there in self.names.items() if there == name), None)

    def check_there(self, tenant: int) -> None:
        """Nothing of a tenant that was removed is run again."""
        if tenant in self.removed:
            hint = "its history is only kept; submit the work as another tenant"
            raise Conflict(f"the tenant {self.names[tenant]!r} was removed: nothing of it is run again", hint=hint)

    async def known(self, tenant: int) -> Subscription:
        """Like get(), but asks the database about a tenant that is new here."""
        if tenant not in self.subscriptions:
            await self.refresh()
        return self.get(tenant)

    async def refresh(self) -> bool:
        """Read what changed; says whether anything did."""
        async with self.database.cold() as connection:
            rows = await connection.fetch(_CHANGES, self._seen)
            tiers = await connection.fetch(_TIER_CHANGES, self._seen)
        before = self.version
        for row in rows:
            if self._is_news(("tenant", row["id"]), row["changed_at"]):
                self.subscriptions[row["id"]] = msgspec.json.decode(row["subscription"], type=Subscription)
                self.names[row["id"]] = row["name"]
                if row["removed"]:
                    self.removed.add(row["id"])
        for row in tiers:
            if self._is_news(("tier", row["tenant"], row["name"]), row["changed_at"]):
                self._keep_tier(row["tenant"], row["name"], row["resources"])
        if self.version == before:
            return False
        self._terms.clear()
        self.bus.tenants()
        return True

    def _is_news(self, key: Any, stamp: datetime.datetime) -> bool:
        if self._stamps.get(key) == stamp:
            return False
        self._stamps[key] = stamp
        self._seen = max(self._seen, stamp)
        self.version += 1
        return True

    def _keep_tier(self, tenant: int | None, name: str, resources: str | None) -> None:
        own = self._tiers.setdefault(tenant, {})
        if resources is None:
            own.pop(name, None)
        else:
            own[name] = msgspec.json.decode(resources, type=Resources)


_STANDARD = Subscription()
