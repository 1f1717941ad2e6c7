"""What signs webhooks lies sealed in the database, as the secrets of tasks do, and signs all the same (J6 H11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headway.control.core import Core
from headway.control.webhooks import Owner, implicit_name
from headway.policy import webhook as policy
from tests.support.engine import engine, function, submit
from tests.support.receiver import Receiver, receiver
from tests.support.waiting import eventually

ME = Owner(1, admin=True)


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def keyed(path: Path) -> dict[str, Any]:
    return {"webhook_networks": "127.0.0.0/8", "secrets_key": str(path)}


async def stored(dsn: str) -> list[str]:
    """Every secret of every endpoint, as somebody reads it who has the database or a dump of it."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
    try:
        rows = await connection.fetch("select secret, old_secret from webhook order by id")
    finally:
        await connection.close()
    return [value for row in rows for value in row if value is not None]


async def told(core: Core, hook: Receiver, count: int) -> Any:
    """The newest message that arrived, after one more was asked for."""
    await core.webhooks.test(ME, "ops", "{}", f"message-{count}")
    got = await asyncio.to_thread(hook.wait, count)
    return got[-1]


async def test_a_secret_is_sealed_in_the_database_and_signs_before_and_after_a_change(
    dsn: str, hook: Receiver, tmp_path: Path
) -> None:
    async with engine(dsn, **keyed(tmp_path / "key")) as core:
        _, first = await core.webhooks.add(ME, name="ops", url=hook.url, events=[])
        assert (await told(core, hook, 1)).signed_by(first)
        _, second = await core.webhooks.rotate(ME, "ops")
        both = await told(core, hook, 2)
        assert both.signed_by(first)
        assert both.signed_by(second)
        await submit(core, function(notify=hook.url + "/own"))
        names = [row["name"] for row in await core.webhooks.all(ME)]
        assert implicit_name(hook.url + "/own") in names
        found = await stored(dsn)
        assert len(found) == 3
        assert all(text.startswith("sealed:") and policy.PREFIX not in text for text in found)


async def test_secrets_in_plain_text_sign_on_and_are_sealed_when_a_server_with_a_named_key_starts(
    dsn: str, hook: Receiver, tmp_path: Path
) -> None:
    async with engine(dsn, webhook_networks="127.0.0.0/8") as core:
        _, first = await core.webhooks.add(ME, name="ops", url=hook.url, events=[])
        _, second = await core.webhooks.rotate(ME, "ops")
        await core.webhooks.add(ME, name="everywhere", url=hook.url, events=[], everywhere=True)
        assert (await told(core, hook, 1)).signed_by(second)
    assert {first, second} < set(await stored(dsn))
    async with engine(dsn, **keyed(tmp_path / "key")) as core:
        assert all(text.startswith("sealed:") for text in await stored(dsn))
        both = await told(core, hook, 2)
        assert both.signed_by(first)
        assert both.signed_by(second)
        assert await core.webhooks.seal_old() == 0


async def test_a_server_with_another_key_sends_nothing_unsigned_and_says_why(dsn: str, hook: Receiver, tmp_path: Path) -> None:
    async with engine(dsn, **keyed(tmp_path / "key")) as core:
        _, secret = await core.webhooks.add(ME, name="ops", url=hook.url, events=[])
    async with engine(dsn, **keyed(tmp_path / "another")) as core:
        await core.webhooks.test(ME, "ops", "{}", "message-1")

        async def failed() -> str | None:
            [row] = await core.webhooks.deliveries(ME, "ops", None, None, 10)
            error: str | None = row["error"]
            return error

        assert "sealed with another key" in await eventually(failed)
        assert hook.got == []
    async with engine(dsn, **keyed(tmp_path / "key")) as core:
        assert await core.webhooks.replay(ME, "ops", messages=[], dead=True, since=None) == []  # it was not given up
        [got] = await asyncio.to_thread(hook.wait, 1)
        assert got.signed_by(secret)


async def test_a_sealed_secret_that_was_copied_to_another_endpoint_does_not_open(dsn: str, hook: Receiver, tmp_path: Path) -> None:
    async with engine(dsn, **keyed(tmp_path / "key")) as core:
        await core.webhooks.add(ME, name="theirs", url=hook.url, events=[])
        await core.webhooks.add(ME, name="ops", url=hook.url, events=[])
        connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
        try:
            await connection.execute(
                "update webhook set secret = (select secret from webhook where name = 'theirs') where name = 'ops'"
            )
        finally:
            await connection.close()
        await core.webhooks.test(ME, "ops", "{}", "message-1")

        async def damaged() -> bool:
            [row] = await core.webhooks.deliveries(ME, "ops", None, None, 10)
            return "damaged" in (row["error"] or "")

        await eventually(damaged)
        assert hook.got == []
