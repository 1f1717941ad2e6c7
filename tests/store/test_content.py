"""Secrets, claims and uploads at the database: what is sealed stays sealed, what is fenced stays fenced (H1 H10 H11)."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from headway.control.core import Core
from headway.control.sealing import Seal
from headway.control.secrets import Secrets
from headway.errors import ConfigError, Conflict, InvalidInput, NotFound, Unavailable, UnsatisfiableResources
from headway.wire.exchange import Order
from tests.support.engine import ScriptedAgent, engine, submit


def keyed(core: Core, path: Path) -> Secrets:
    return Secrets(core.database, core.definitions, Seal(path))


async def test_secrets_go_to_the_node_with_the_order_and_are_opened_for_nobody_else(dsn: str, tmp_path: Path) -> None:
    async with engine(dsn, secrets_key=str(tmp_path / "key")) as core:
        agent = await ScriptedAgent(core).join()
        await core.secrets.put(1, "token", "s3cr3t")
        await submit(core, {"command": ["env"], "secrets": {"API": "token"}}, {"command": ["env"]})
        reply = await agent.say(wait_s=5.0)
        while len(reply.orders) < 2:
            reply = await agent.say(wait_s=5.0)
        with_secret = {order.definition for order in reply.orders} & reply.secrets.keys()
        assert [reply.secrets[number] for number in with_secret] == [{"API": "s3cr3t"}]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


async def test_a_sealed_row_opens_under_its_own_tenant_and_name_only(dsn: str, tmp_path: Path) -> None:
    async with engine(dsn, secrets_key=str(tmp_path / "key")) as core:
        await core.secrets.put(1, "first", "value of first")
        await core.secrets.put(1, "second", "value of second")
        receipt = await submit(core, {"command": ["x"], "secrets": ["second"]})
        async with core.database.cold() as connection:
            await connection.execute(
                "update secret s set sealed = o.sealed, nonce = o.nonce from secret o where s.name = 'second' and o.name = 'first'"
            )
            number = await connection.fetchval("select definition from task where id = $1", receipt.ids[0])
            row = await connection.fetchrow("select * from secret where name = 'second'")
        with pytest.raises(Unavailable, match="is damaged"):
            core.secrets.open(1, row)
        assert await core.secrets.reveal([Order(1, 1, number, b"")]) == {number: {}}  # and the orders of others go out all the same


async def test_another_key_is_told_and_a_bad_one_too(dsn: str, tmp_path: Path) -> None:
    async with engine(dsn, secrets_key=str(tmp_path / "key")) as core:
        await core.secrets.put(1, "name", "value")
        receipt = await submit(core, {"command": ["x"], "secrets": ["name"]})
        async with core.database.cold() as connection:
            number = await connection.fetchval("select definition from task where id = $1", receipt.ids[0])
            row = await connection.fetchrow("select * from secret where name = 'name'")
        with pytest.raises(Unavailable, match="sealed with another key"):
            keyed(core, tmp_path / "other").open(1, row)
        assert await keyed(core, tmp_path / "other").reveal([Order(1, 1, number, b"")]) == {number: {}}
        (tmp_path / "short").write_bytes(b"x")
        with pytest.raises(ConfigError, match="has 1 bytes"):
            await keyed(core, tmp_path / "short").put(1, "a", "b")


async def test_a_tenant_neither_sees_nor_uses_anothers(dsn: str, tmp_path: Path) -> None:
    async with engine(dsn, secrets_key=str(tmp_path / "key")) as core:
        other, _ = await core.access.add_tenant("other")
        await core.secrets.put(1, "mine", "value")
        digest = await core.contents.keep(1, b"echo hello")
        assert await core.secrets.names(other) == []
        with pytest.raises(InvalidInput, match="there is no secret"):
            await submit(core, {"command": ["x"], "secrets": ["mine"]}, tenant=other)
        with pytest.raises(InvalidInput, match="there is no upload"):
            await submit(core, {"executable": f"upload:{digest}/a.sh"}, tenant=other)
        with pytest.raises(NotFound):
            await core.secrets.remove(other, "mine")


async def test_an_agent_gets_only_uploads_that_a_definition_names(dsn: str) -> None:
    async with engine(dsn) as core:
        named, other = await core.contents.keep(1, b"echo named"), await core.contents.keep(1, b"echo other")
        receipt = await submit(core, {"executable": f"upload:{named}/a.sh"})
        async with core.database.cold() as connection:
            number = await connection.fetchval("select definition from task where id = $1", receipt.ids[0])
        assert b"".join([piece async for piece in await core.contents.pieces(number, named)]) == b"echo named"
        with pytest.raises(NotFound):
            await core.contents.pieces(number, other)


async def test_a_url_is_pinned_by_whoever_comes_first(dsn: str) -> None:
    async with engine(dsn) as core:
        receipt = await submit(core, {"executable": "https://host/a.sh"})
        async with core.database.cold() as connection:
            number = await connection.fetchval("select definition from task where id = $1", receipt.ids[0])
        found = await asyncio.gather(*(core.contents.pin(number, "https://host/a.sh", f"{at:064x}") for at in range(1, 9)))
        assert len(set(found)) == 1


async def _running(core: Core, agent: ScriptedAgent) -> Order:
    await submit(core, {"command": ["x"], "attempts": 5, "retry": {"interval": 0}})
    return (await agent.orders())[0]


async def test_of_many_that_ask_at_once_one_may_do_it(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core, cpus=8).join()
        await submit(core, *({"command": ["x"]} for _ in range(6)))
        orders = await agent.orders(6)
        claims = await asyncio.gather(*(core.once.claim(order.id, order.attempt, "pay", again=False) for order in orders))
        assert sorted(claim.state for claim in claims) == ["taken"] * 5 + ["yours"]


async def test_an_attempt_that_was_replaced_can_neither_claim_nor_finish(dsn: str) -> None:
    """The attempt number is the fence (H10): what an old attempt says after the new one has begun changes nothing."""
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        old = await _running(core, agent)
        assert (await core.once.claim(old.id, old.attempt, "pay", again=False)).state == "yours"
        await agent.fail(old)
        new = (await agent.orders())[0]
        assert (new.id, new.attempt) == (old.id, old.attempt + 1)
        for step in (core.once.claim(old.id, old.attempt, "other", again=False), core.once.done(old.id, old.attempt, "pay", b"1")):
            with pytest.raises(Conflict, match="does not run any more"):
                await step
        assert (await core.once.claim(new.id, new.attempt, "pay", again=False)).state == "uncertain"
        assert (await core.once.claim(new.id, new.attempt, "pay", again=True)).state == "yours"
        await core.once.done(new.id, new.attempt, "pay", b"7")
        await core.once.done(new.id, new.attempt, "pay", b"8")  # said again: nothing changes
        found = await core.once.claim(new.id, new.attempt, "pay", again=True)
        assert (found.state, found.value) == ("done", b"7")


async def test_a_released_claim_is_free_again(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        order = await _running(core, agent)
        await core.once.claim(order.id, order.attempt, "pay", again=False)
        await core.once.release(order.id, order.attempt, "pay")
        assert (await core.once.claim(order.id, order.attempt, "pay", again=False)).state == "yours"
        with pytest.raises(Conflict, match="not claimed by this attempt"):
            await core.once.done(order.id, order.attempt, "never", None)


async def test_a_script_goes_to_a_node_that_has_its_language_and_is_refused_when_none_has(dsn: str) -> None:
    async with engine(dsn) as core:
        bare = await ScriptedAgent(core, "bare", cpus=16).join()
        with pytest.raises(UnsatisfiableResources, match="none of 1 has interpreter/node") as refused:
            await submit(core, {"executable": "/srv/a.js"})
        assert "install node on a node" in str(refused.value.hint)
        able = await ScriptedAgent(core, "able", labels={"interpreter/node": "20", "volume/data": "yes"}).join()
        await submit(core, {"executable": "/srv/a.js"}, {"executable": "volume:data/b.sh"})
        assert len(await able.orders(2)) == 2
        assert (await bare.say()).orders == []
        with pytest.raises(UnsatisfiableResources, match="none of 2 has interpreter/node=22"):
            await submit(core, {"executable": "/srv/a.js", "resources": {"labels": {"interpreter/node": "22"}}})
        with pytest.raises(
            UnsatisfiableResources, match=r"it asks for 16 cpus.*the largest of 2 nodes"
        ):  # one has it, another has room
            await submit(core, {"executable": "/srv/a.js", "resources": {"cpus": 16}})
