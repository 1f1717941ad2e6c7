"""Keys in use are looked up together (A7)."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headway.control.access import AWAY_S, KEPT_S, Access, hash_of
from headway.errors import Unauthorized
from headway.store.queries import query
from tests.support.engine import engine


class Watched:
    """Access by a database that counts how often it was asked."""

    def __init__(self, core) -> None:
        self.core = core
        self.asked = 0
        self.access = Access(SimpleNamespace(cold=self._cold))

    def _cold(self):
        self.asked += 1
        return self.core.database.cold()

    def later(self, seconds: float, *, unused: float = 0.0) -> None:
        for known in self.access._known.values():
            known.checked -= seconds
            known.used -= unused


async def keys(core, count: int) -> list[str]:
    for n in range(count):
        tenant, _ = await core.access.add_tenant(f"t{n}")
        await core.access.add(f"key-{n}", "tenant", tenant=tenant)
    return [f"Bearer key-{n}" for n in range(count)]


async def names(watched: Watched, headers: list[str]) -> list[str]:
    return [(await watched.access.caller(header)).tenant_name for header in headers]


async def test_keys_in_use_are_looked_up_by_one_question(dsn):
    async with engine(dsn) as core:
        watched, headers = Watched(core), await keys(core, 20)
        first = await names(watched, headers)
        assert watched.asked == 20
        watched.later(KEPT_S + 1)
        assert await names(watched, headers) == first == [f"t{n}" for n in range(20)]
        assert watched.asked == 21


async def test_a_revoked_key_that_was_looked_up_with_others_is_refused(dsn):
    async with engine(dsn) as core:
        watched, headers = Watched(core), await keys(core, 3)
        await names(watched, headers)
        async with core.database.cold() as connection:
            await connection.execute("update token set revoked_at = clock_timestamp() where name = '' and tenant = 3")
        watched.later(KEPT_S + 1)
        assert await names(watched, [headers[0], headers[2]]) == ["t0", "t2"]
        with pytest.raises(Unauthorized):
            await watched.access.caller(headers[1])


async def test_a_key_is_refused_from_the_moment_it_expires_though_it_is_remembered(dsn):
    async with engine(dsn) as core:
        watched = Watched(core)
        async with core.database.cold() as connection:
            for token, seconds in (("old", -1.0), ("hour", 3600.0)):
                await connection.execute(query("token.create"), hash_of(token), "admin", None, "", seconds)
        with pytest.raises(Unauthorized, match="the key has expired"):
            await watched.access.caller("Bearer old")
        caller = await watched.access.caller("Bearer hour")
        assert 3000 < caller.until - time.monotonic() <= 3600
        watched.access._known["hour"].caller = replace(caller, until=time.monotonic())
        with pytest.raises(Unauthorized, match="the key has expired"):
            await watched.access.caller("Bearer hour")


async def test_keys_nobody_uses_are_forgotten(dsn):
    async with engine(dsn) as core:
        watched, headers = Watched(core), await keys(core, 3)
        await names(watched, headers)
        watched.later(KEPT_S + 1, unused=AWAY_S + 1)
        await watched.access.caller(headers[0])
        assert list(watched.access._known) == ["key-0"]


async def test_what_is_being_looked_up_while_a_key_is_revoked_is_not_kept(dsn):
    async with engine(dsn) as core:
        watched, headers = Watched(core), await keys(core, 1)

        def cold():
            watched.access.forget()  # as if the revocation came now
            return core.database.cold()

        watched.access.database = SimpleNamespace(cold=cold)
        await watched.access.caller(headers[0])
        assert not watched.access._known
