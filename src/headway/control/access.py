"""Who calls: a bearer token, a role, a tenant (A7). Only hashes of tokens are stored."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field

from headway.domain.tenant import DEFAULT_TENANT
from headway.errors import Forbidden, Unauthorized, Unavailable
from headway.store.database import Database
from headway.store.queries import query
from headway.wire import task_token

KEPT_S = 5.0  # a revoked token works for at most this long
AWAY_S = 60.0  # but a known one this long while the database is away: agents must be able to hear that they shall hold on (hold_s)
ANSWER_S = 0.5  # the database is away when it says nothing for so long; an agent waits little longer
_FIND = query("token.find")
_HOLDER = query("subtask.holder")
_ADD = query("token.add")
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
class Access:
    database: Database
    _known: dict[str, tuple[float, Caller]] = field(default_factory=dict)
    _finding: dict[str, asyncio.Future[Caller]] = field(default_factory=dict)

    async def caller(self, authorization: str | None) -> Caller:
        """The caller behind an Authorization header."""
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Unauthorized("no token", hint="send `Authorization: Bearer TOKEN`; `headway up` keeps one in its data folder")
        if token.startswith(task_token.PREFIX):
            return await self._attempt(token)
        checked, known = self._known.get(token, (-AWAY_S, None))
        age = time.monotonic() - checked
        if known is not None and age < KEPT_S:
            return known
        finding = self._finding.get(token)
        if finding is not None and known is not None and age < AWAY_S:
            return known
        if finding is None:  # one question for all who come with the same token meanwhile
            finding = self._finding[token] = asyncio.ensure_future(self._find(token))
            finding.add_done_callback(lambda _: self._found(token))
        if known is None or age > AWAY_S:
            return await asyncio.shield(finding)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(finding)
        except (Unavailable, TimeoutError):
            return known

    def _found(self, token: str) -> None:
        finding = self._finding.pop(token)
        if not finding.cancelled():
            finding.exception()  # told to whoever still waits for it

    async def _find(self, token: str) -> Caller:
        async with self.database.cold() as connection:
            row = await connection.fetchrow(_FIND, hash_of(token))
        if row is None:
            self._known.pop(token, None)
            raise Unauthorized("the token is not known, or was revoked")
        caller = Caller(
            row["role"], row["tenant"] or DEFAULT_TENANT, row["tenant_name"] or "default",
            actor=f"{row['name'] or row['role']}#{row['id']}",
            everywhere=row["role"] == "admin" or (row["role"] == "reader" and row["tenant"] is None),
        )  # fmt: skip
        if len(self._known) > 10_000:
            self._known.clear()
        self._known[token] = (time.monotonic(), caller)
        return caller

    def forget(self) -> None:
        """A key was revoked here: look every one up again."""
        self._known.clear()

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

    async def add_tenant(self, name: str) -> tuple[int, bool]:
        async with self.database.cold() as connection:
            row = None
            while row is None:
                row = await connection.fetchrow(_TENANT, name)
        return row["id"], row["created"]
