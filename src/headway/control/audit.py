"""The audit: who did what, when, and what was before and after (J5).

A row is written before the deed, without a result, and completed after it: a crash in between leaves a row that says `begun`, never
a deed without a row. What changes tenants, keys and tiers also tells before and after in the transaction of the change.
Submissions are not audited: a task's own row says who submitted it, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headway.control.access import Caller
from headway.errors import HeadwayError
from headway.logs import log
from headway.store.database import Connection, Database
from headway.store.queries import query

_BEGIN = query("audit.begin")
_TELL = query("audit.tell")
_END = query("audit.end")


@dataclass
class Entry:
    """One deed. `tell` is for what happens inside a transaction of the deed."""

    id: int

    async def tell(self, connection: Connection, target: str, *, tenant: int | None, before: Any = None, after: Any = None) -> None:
        await connection.execute(_TELL, self.id, target, tenant, _json(before), _json(after))


@dataclass
class Audit:
    database: Database

    async def begin(self, caller: Caller, action: str, target: str) -> Entry:
        async with self.database.reads() as connection:
            return Entry(await connection.fetchval(_BEGIN, caller.role, caller.actor, caller.scope, action, target))

    async def end(self, entry: Entry, result: str) -> None:
        try:
            async with self.database.reads() as connection:
                await connection.execute(_END, entry.id, result)
        except HeadwayError as error:  # the deed is done and answered; its row still says that it was begun
            log("audit.unfinished", level="warning", audit=entry.id, result=result, error=str(error))


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
