"""A tenant is removed: at once for whoever calls, then whatever is left of it (A7 J5).

The row of the tenant stays, because history and audit show its name; so the name is never given to another. Other servers hear of the
removal within seconds. What they took in until then, or what was to be cancelled, a duty cancels until nothing is left.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control.access import Access
from headway.control.actions import CHUNK, Actions
from headway.control.audit import Entry
from headway.control.clock import Clock
from headway.control.leader import Leader
from headway.control.tenants import Tenants
from headway.control.webhooks import Webhooks
from headway.domain.identity import first_id_of
from headway.domain.tenant import DEFAULT_TENANT, Subscription, spec_of
from headway.errors import Conflict, NotFound
from headway.logs import log
from headway.store.database import Connection, Database
from headway.store.queries import query
from headway.wire.views.tenants import RemovedTenantView

COUNTED = 10_000  # live tasks of each kind
AT_ONCE = 100  # tenants in one turn
HEARD_S = 120.0  # by then every server has heard of a removal: twice as long as one that lost its database believes a key
ENDING_S = 2.0  # how often to look while nodes end what they run
LATER_S = 60.0  # and while only time has to pass
IDLE_S = 600.0  # with nothing to remove: a removal wakes the duty
_FIND, _LOCK, _REMOVE, _REVOKE = (query(f"tenant.{name}") for name in ("find", "lock", "remove", "revoke_keys"))
_LIVE, _OLD_DEAD, _UNSWEPT, _SWEPT = (query(f"tenant.{name}") for name in ("live", "old_dead_letters", "unswept", "swept"))
_BELONGINGS = {word: query(f"tenant.drop_{word}") for word in ("schedules", "secrets", "tiers", "pins", "samples")}


@dataclass
class Removing:
    database: Database
    leader: Leader
    clock: Clock
    tenants: Tenants
    access: Access
    actions: Actions
    webhooks: Webhooks
    retention_days: int

    async def remove(self, name: str, entry: Entry, *, cancel: bool) -> RemovedTenantView:
        """Remove it, or raise Conflict while tasks of it have not ended and are not to be cancelled."""

        async def work(connection: Connection) -> RemovedTenantView:
            tenant = await connection.fetchval(_FIND, name)
            if tenant == DEFAULT_TENANT:
                raise Conflict(f"the tenant {name!r} is the one administrators work as: it cannot be removed")
            closed = None if tenant is None else await _close(connection, tenant)
            if closed is None:
                raise NotFound(f"there is no tenant {name[:60]!r}")
            before, removed_at = closed
            live = await connection.fetch(_LIVE, tenant, COUNTED)
            if live and not cancel:
                raise _still_live(name, live)
            keys = _count(await connection.execute(_REVOKE, tenant))
            gone = await self._drop(connection, tenant)
            removed = RemovedTenantView(
                tenant, name, removed_at, len(live), keys, gone["schedules"], gone["webhooks"], gone["secrets"]
            )
            after = {**spec_of(before), "suspended": True, **msgspec.structs.asdict(removed)}
            await entry.tell(connection, name, tenant=tenant, before=spec_of(before), after=after)
            return removed

        removed = await self.database.transact(work)
        self.access.forget()
        await self.tenants.refresh()
        log("tenant.removed", tenant=name, cancelling=removed.cancelling)
        return removed

    async def run_once(self) -> float:
        """Cancel and drop what is left of tenants that were removed."""
        async with self.database.cold() as connection:
            rows = await connection.fetch(_UNSWEPT, AT_ONCE)
        return min([await self._sweep(row["id"], row["since_s"]) for row in rows], default=IDLE_S)

    async def _sweep(self, tenant: int, since_s: float) -> float:
        """One tenant; returns how soon to look again."""
        async with self.database.cold() as connection:
            live = await connection.fetch(_LIVE, tenant, CHUNK)
            dead = [row["id"] for row in await connection.fetch(_OLD_DEAD, tenant, self._oldest_kept(), CHUNK)]
        fresh = [row["id"] for row in live if not row["ending"]]
        if fresh:
            await self.actions.cancel(fresh)
        if dead:
            await self.actions.purge(dead, tenant)
        if len(fresh) >= CHUNK or len(dead) >= CHUNK:
            return 0.0
        if live:
            return ENDING_S
        await self.database.transact(lambda connection: self._drop(connection, tenant))  # what was made before its server had heard
        if since_s > HEARD_S:
            async with self.database.cold() as connection:
                await connection.execute(_SWEPT, tenant)
        return LATER_S

    async def _drop(self, connection: Connection, tenant: int) -> dict[str, int]:
        """All it has apart from its tasks; how many of each."""
        gone = {word: _count(await connection.execute(statement, tenant)) for word, statement in _BELONGINGS.items()}
        return {**gone, "webhooks": _count(await self.webhooks.remove_all(connection, tenant))}

    def _oldest_kept(self) -> int:
        """Dead letters are kept until somebody decides; of a tenant that is gone nobody will: they go with its history."""
        oldest = self.clock.now() - datetime.timedelta(days=self.retention_days)
        return first_id_of(int(oldest.timestamp() * 1000))


async def _close(connection: Connection, tenant: int) -> tuple[Subscription, datetime.datetime] | None:
    """Its subscription before, and since when it is removed; None when somebody else was faster."""
    row = await connection.fetchrow(_LOCK, tenant)
    old = msgspec.json.decode(row["subscription"], type=Subscription)
    closed = msgspec.structs.replace(old, suspended=True)
    removed_at = await connection.fetchval(_REMOVE, tenant, msgspec.json.encode(closed).decode())
    return None if removed_at is None else (old, removed_at)


def _still_live(name: str, live: list[Any]) -> Conflict:
    held = sum(row["held"] for row in live)
    counts = {"waiting": len(live) - held, "on nodes": held}
    said = " and ".join(f"{count:,}{'' if count < COUNTED else ' or more'} {word}" for word, count in counts.items() if count)
    hint = (
        f"`headway tenant rm {name} --cancel` cancels them; "
        f"`headway tenant set {name} --suspended` takes nothing new in and lets them end"
    )
    return Conflict(f"the tenant {name!r} has tasks that have not ended: {said}", hint=hint)


def _count(status: str) -> int:
    """How many rows a statement touched: `DELETE 3`."""
    return int(status.rpartition(" ")[2])
