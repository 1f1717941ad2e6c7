"""Who calls: a bearer token, a role, a tenant (A7). Only hashes of tokens are stored."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from headway.domain.tenant import DEFAULT_TENANT
from headway.errors import Forbidden, Unauthorized, Unavailable
from headway.store.database import Database
from headway.store.queries import query
from headway.wire import task_token

KEPT_S = 5.0  # a revoked token works for at most this long
AWAY_S = 60.0  # but a known one this long while the database is away: agents must be able to hear that they shall hold on (hold_s)
AT_ONCE = 200  # tokens in use that are looked up together with one that must be
MOST = 10_000
ANSWER_S = 0.5  # the database is away when it says nothing for so long; an agent waits little longer
_FIND = query("token.find")
_HOLDER = query("subtask.holder")
_ADD = query("token.add")
_HAS_ADMIN = query("token.has_admin")
_TENANT = query("token.add_tenant")


@dataclass(frozen=True)
class Caller:
    role: str  # admin | tenant | reader | agent | task
    tenant: int  # where its submissions go
    tenant_name: str
    task: int = 0  # of the role task: the attempt that calls
    attempt: int = 0
    definition: int = 0
    actor: str = ""  # its key, for the audit
    everywhere: bool = False  # sees the rows of all tenants
    until: float = math.inf  # when its key expires, by the monotonic clock

    @property
    def scope(self) -> int | None:
        """The tenant whose rows it may see; None = all."""
        return None if self.everywhere else self.tenant

    def need(self, *roles: str, reads: bool = False) -> None:
        """`reads`: the call changes nothing, so a reader may make it like the people whose rows it sees."""
        if reads and self.role == "reader" and ("tenant" in roles or (self.everywhere and "admin" in roles)):
            return
        if self.role not in roles:
            raise Forbidden(f"this needs the role {' or '.join(roles)}, the token has {self.role}")


def hash_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass
class _Known:
    """Who is behind a token, when that was looked up, and when the token was last used."""

    caller: Caller
    checked: float
    used: float


@dataclass
class Access:
    database: Database
    _known: dict[str, _Known] = field(default_factory=dict)
    _finding: dict[str, asyncio.Future[Caller]] = field(default_factory=dict)

    async def caller(self, authorization: str | None) -> Caller:
        """The caller behind an Authorization header."""
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            hint = "send `Authorization: Bearer TOKEN`, or set HEADWAY_TOKEN; `headway up` keeps one in its data folder"
            raise Unauthorized("no token", hint=hint)
        if token.startswith(task_token.PREFIX):
            return await self._attempt(token)
        now = time.monotonic()
        known = self._known.get(token)
        if known is not None:
            known.used = now
            _check_expiry(known.caller, now)
            if now - known.checked < KEPT_S:
                return known.caller
        late = known is None or now - known.checked > AWAY_S
        finding = self._finding.get(token)
        if finding is not None and known is not None and not late:
            return known.caller
        if finding is None:  # one question for all who come with the same token meanwhile
            finding = self._finding[token] = asyncio.ensure_future(self._find(token))
            finding.add_done_callback(lambda _: self._found(token))
        if known is None or late:
            return await asyncio.shield(finding)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(finding)
        except (Unavailable, TimeoutError):
            return known.caller

    def _found(self, token: str) -> None:
        finding = self._finding.pop(token)
        if not finding.cancelled():
            finding.exception()  # told to whoever still waits for it

    async def _find(self, token: str) -> Caller:
        """Look a token up, and with it others in use that will have to be looked up soon."""
        known, now = self._known, time.monotonic()
        tokens = {hash_of(one): one for one in (*self._due(now), token)}
        async with self.database.cold() as connection:
            rows = await connection.fetch(_FIND, list(tokens))
        found = {tokens[row["hash"]]: _caller(row, now) for row in rows}
        if len(known) > MOST:
            known.clear()
        for one in tokens.values():
            before = known.pop(one, None)
            if one in found:
                known[one] = _Known(found[one], now, before.used if before is not None else now)
        if token not in found:
            raise Unauthorized("the token is not known, or was revoked")
        _check_expiry(found[token], now)
        return found[token]

    def _due(self, now: float) -> list[str]:
        """Tokens in use that were last looked up some time ago. Those come first: whoever is looked up goes to the end."""
        oldest = list(islice(self._known.items(), 5 * AT_ONCE))
        for one, there in oldest:
            if there.used < now - AWAY_S:
                del self._known[one]
        due = (one for one, there in oldest if there.used >= now - AWAY_S and there.checked < now - KEPT_S / 2)
        return list(islice(due, AT_ONCE))

    def forget(self) -> None:
        """A key was revoked here: look every one up again. What is being looked up now is not kept."""
        self._known = {}

    async def _attempt(self, token: str) -> Caller:
        """A running task, by the token of its attempt. Looked up each time: it dies with the attempt."""
        said = task_token.parse(token)
        row = None
        if said is not None:
            async with self.database.cold() as connection:
                row = await connection.fetchrow(_HOLDER, *said)
        if said is None or row is None or row["task_key"] is None or not task_token.is_of(token, row["task_key"], *said):
            raise Unauthorized("the attempt that this token belongs to has ended, or never was")
        return Caller("task", row["tenant"], row["tenant_name"], task=said[0], attempt=said[1], definition=row["definition"])

    async def add(self, token: str, role: str, *, tenant: int | None = None, name: str = "") -> None:
        """Make a token known; knowing it already is fine."""
        async with self.database.cold() as connection:
            await connection.execute(_ADD, hash_of(token), role, tenant, name)

    async def has_admin(self) -> bool:
        async with self.database.cold() as connection:
            return bool(await connection.fetchval(_HAS_ADMIN))

    async def add_tenant(self, name: str) -> tuple[int, bool]:
        async with self.database.cold() as connection:
            row = None
            while row is None:
                row = await connection.fetchrow(_TENANT, name)
        return row["id"], row["created"]


def _check_expiry(caller: Caller, now: float) -> None:
    if caller.until <= now:
        raise Unauthorized("the key has expired", hint="ask for a new one: headway key create")


def _caller(row: Any, now: float) -> Caller:
    return Caller(
        row["role"], row["tenant"] or DEFAULT_TENANT, row["tenant_name"] or "default",
        actor=f"{row['name'] or row['role']}#{row['id']}",
        everywhere=row["role"] == "admin" or (row["role"] == "reader" and row["tenant"] is None),
        until=math.inf if row["left_s"] is None else now + row["left_s"],
    )  # fmt: skip
