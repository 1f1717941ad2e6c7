"""Webhooks from event to receiver: none lost, signed, tried again, given up, sent again (J6)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import asyncpg
import msgspec
import pytest

from headway.control.core import Core
from headway.control.posting import post
from headway.control.webhooks import Owner, implicit_name
from headway.domain.lifecycle import Outcome
from headway.errors import Conflict, InvalidInput, NotFound
from headway.policy import webhook as policy
from headway.store.migrate import migrate
from headway.wire.exchange import ErrorInfo, Excess
from tests.support.engine import ScriptedAgent, done, engine, function, submit
from tests.support.receiver import Got, Receiver, receiver
from tests.support.waiting import eventually

LOOPBACK = {"webhook_networks": "127.0.0.0/8"}
ME = Owner(1, admin=True)


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


async def come(hook: Receiver, count: int) -> list[Got]:
    return await asyncio.to_thread(hook.wait, count)


async def finish(core: Core, agent: ScriptedAgent, **fields: Any) -> int:
    [task] = (await submit(core, function(**fields))).ids
    [order] = await agent.orders()
    await agent.succeed(order)
    return task


async def settled(core: Core, name: str, state: int, count: int = 1) -> list[Any]:
    async def look() -> list[Any] | None:
        rows = await core.webhooks.deliveries(ME, name, state, None, 100)
        return rows if len(rows) >= count else None

    found: list[Any] = await eventually(look)
    return found


async def test_a_finished_task_is_told_signed_and_as_a_cloud_event(dsn: str, hook: Receiver) -> None:
    async with engine(dsn, **LOOPBACK) as core:
        _, secret = await core.webhooks.add(ME, name="ops", url=hook.url, events=["finished"])
        agent = await ScriptedAgent(core).join()
        task = await finish(core, agent, name="report", labels={"run": "42"})
        [got] = await come(hook, 1)
        assert got.signed_by(secret)
        assert not got.signed_by(policy.new_secret(b"another secret of 32 bytes......"))
        assert got.headers["content-type"].startswith("application/cloudevents+json")
        event = got.event
        assert (event["specversion"], event["type"], event["subject"]) == ("1.0", "headway.task.succeeded", str(task))
        assert (event["id"], event["source"]) == (got.headers["webhook-id"], "headway/tenants/default")
        assert event["data"]["task"]["name"] == "report"
        assert event["data"]["task"]["labels"] == {"run": "42"}
        [row] = await settled(core, "ops", 1)
        assert (row["status"], row["attempts"]) == (200, 1)


async def test_a_task_says_itself_whom_to_tell_and_of_what(dsn: str, hook: Receiver) -> None:
    async with engine(dsn, **LOOPBACK) as core:
        agent = await ScriptedAgent(core).join()
        await core.webhooks.add(ME, name="pager", url=hook.url + "/pager", events=[])
        quiet = await finish(core, agent, notify=[{"to": "pager", "events": ["failed"]}])
        told = await finish(core, agent, notify=hook.url + "/own")
        [got] = await come(hook, 1)
        assert (got.path, got.event["subject"]) == ("/hook/own", str(told))
        row, secret = await core.webhooks.rotate(ME, implicit_name(hook.url + "/own"))
        assert row["implicit"]
        again = await finish(core, agent, notify=hook.url + "/own")
        got = (await come(hook, 2))[1]
        assert got.event["subject"] == str(again)
        assert got.signed_by(secret)
        await submit(core, function(notify=[{"to": "pager", "events": ["failed"]}]))
        [order] = await agent.orders()
        await agent.fail(order)
        got = (await come(hook, 3))[2]
        assert (got.path, got.event["type"]) == ("/hook/pager", "headway.task.failed")
        assert got.event["data"]["task"]["error"]["message"] == "boom"
        assert str(quiet) not in {each.event["subject"] for each in hook.got}
        with pytest.raises(InvalidInput, match="no webhook 'nobody'"):
            await submit(core, function(notify="nobody"))
        with pytest.raises(InvalidInput, match=r"notify: 10\.0\.0\.7 is not a public address"):
            await submit(core, function(notify=["pager", "http://10.0.0.7/hook"]))


async def test_a_message_is_tried_again_until_it_arrives(dsn: str, hook: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "DELAYS_S", (0.05,) * 5)
    hook.answers = [(500, {}), (302, {"location": "http://127.0.0.1:1/"}), (429, {"retry-after": "1"})]
    async with engine(dsn, **LOOPBACK) as core:
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["*"])
        await finish(core, await ScriptedAgent(core).join())
        got = await come(hook, 4)
        assert len({each.headers["webhook-id"] for each in got}) == 1
        [row] = await settled(core, "ops", 1)
        assert row["attempts"] == 4


async def test_a_message_nobody_takes_dies_and_can_be_sent_again(
    dsn: str, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "DELAYS_S", (0.02,) * 2)
    hook.answers = [(500, {})] * 3
    async with engine(dsn, **LOOPBACK) as core:
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["succeeded"])
        await finish(core, await ScriptedAgent(core).join())
        [row] = await settled(core, "ops", 2)
        assert (row["attempts"], row["status"], row["error"]) == (3, 500, "HTTP 500: said so")
        with pytest.raises(NotFound, match="no message 'other'"):
            await core.webhooks.replay(ME, "ops", messages=[row["message"], "other"], dead=False, since=None)
        assert len(await core.webhooks.replay(ME, "ops", messages=[], dead=True, since=None)) == 1
        await settled(core, "ops", 1)
        assert {got.headers["webhook-id"] for got in hook.got} == {row["message"]}


async def test_what_happens_while_a_webhook_is_disabled_is_not_told_later_and_nothing_is_sent_in_vain(dsn: str, hook: Receiver) -> None:
    async with engine(dsn, **LOOPBACK) as core:
        agent = await ScriptedAgent(core).join()
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["finished"])
        before = await finish(core, agent)
        [told] = await come(hook, 1)
        await core.webhooks.change(ME, "ops", url=None, events=None, enabled=False)

        async def unheard() -> bool:
            return not core.dispatcher.busy

        await eventually(unheard)
        with pytest.raises(Conflict, match="disabled") as refused:
            await core.webhooks.test(ME, "ops", "{}", "test-1")
        assert refused.value.hint == "headway webhook set ops --enable"
        with pytest.raises(Conflict, match="disabled"):
            await core.webhooks.replay(ME, "ops", messages=[told.headers["webhook-id"]], dead=False, since=None)
        await finish(core, agent)
        await core.webhooks.change(ME, "ops", url=None, events=None, enabled=True)
        after = await finish(core, agent)
        assert [got.event["subject"] for got in await come(hook, 2)] == [str(before), str(after)]


async def test_a_receiver_that_is_gone_for_good_is_not_asked_again(dsn: str, hook: Receiver) -> None:
    hook.answers = [(410, {})]
    async with engine(dsn, **LOOPBACK) as core:
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["succeeded"])
        await finish(core, await ScriptedAgent(core).join())
        [row] = await settled(core, "ops", 2)
        assert (row["attempts"], row["status"], len(hook.got)) == (1, 410, 1)


async def test_what_happened_while_no_server_ran_is_told_by_the_next_one(dsn: str, hook: Receiver) -> None:
    async with engine(dsn, **LOOPBACK) as core:
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["finished"])
        agent = await ScriptedAgent(core).join()
        await finish(core, agent)
        [first] = await come(hook, 1)
        await settled(core, "ops", 1)
        hook.hold.clear()  # the next one arrives and is not answered while its server ends
        await finish(core, agent)
        await come(hook, 2)
    hook.hold.set()
    async with engine(dsn, holder="another", **LOOPBACK) as other:
        async with other.database.cold() as connection:
            await connection.execute("update delivery set due_at = now() where state = 0")  # the claim of the dead server is over
        other.deliveries.wake()
        got = await come(hook, 3)
        assert got[1].headers["webhook-id"] == got[2].headers["webhook-id"] != first.headers["webhook-id"]
        await settled(other, "ops", 1, 2)


async def test_a_dump_restored_into_another_postgresql_tells_once_what_was_not_told_and_goes_on(dsn: str, hook: Receiver) -> None:
    """Events are ordered by numbers of transactions. In another PostgreSQL these begin anew: nothing was told until they had caught up."""
    async with engine(dsn, **LOOPBACK) as core:
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["finished"])
        agent = await ScriptedAgent(core).join()
        told = await finish(core, agent)
        await come(hook, 1)
        await settled(core, "ops", 1)
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "headway"})
    [tenant] = await connection.fetchrow("select tenant from event where $1 = any (tasks) and kind = 'task.succeeded'", told)
    await connection.execute("insert into event (tenant, kind, tasks) values ($1, 'task.succeeded', array[$2::bigint])", tenant, told)
    for table in ("event", "dispatched", "run_sample_cursor"):
        await connection.execute(f"update {table} set xid = (xid::text::bigint + 1000000000)::text::xid8")
    assert await migrate(dsn) == []
    numbers = "select xid from event union all select xid from dispatched union all select xid from run_sample_cursor"
    assert await connection.fetchval(f"select max(xid) < pg_snapshot_xmax(pg_current_snapshot()) from ({numbers}) x")
    await connection.close()
    async with engine(dsn, **LOOPBACK) as core:
        agent = await ScriptedAgent(core).join()
        after = await finish(core, agent)
        got = await come(hook, 3)
        assert sorted(int(one.event["subject"]) for one in got) == [told, told, after]
        assert len(await settled(core, "ops", 1, 3)) == 3


async def test_two_servers_send_each_message_once(dsn: str, hook: Receiver) -> None:
    async with engine(dsn, **LOOPBACK) as core, engine(dsn, holder="another", **LOOPBACK):
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["finished"])
        agent = await ScriptedAgent(core, cpus=64.0).join()
        ids = set((await submit(core, *(function() for _ in range(60)))).ids)
        await agent.succeed(*(await agent.orders(60)))
        await settled(core, "ops", 1, 60)
        subjects = [got.event["subject"] for got in await come(hook, 60)]
        assert sorted(subjects) == sorted(str(task) for task in ids)


async def test_a_slow_receiver_does_not_hold_up_another(dsn: str, hook: Receiver) -> None:
    with receiver() as quick:
        async with engine(dsn, webhook_concurrency=6, webhook_timeout_s=600.0, **LOOPBACK) as core:
            hook.hold.clear()  # for good: what waits behind it would never come
            await core.webhooks.add(ME, name="slow", url=hook.url, events=["finished"])
            await core.webhooks.add(ME, name="quick", url=quick.url, events=["finished"])
            agent = await ScriptedAgent(core, cpus=64.0).join()
            await submit(core, *(function() for _ in range(30)))
            await agent.succeed(*(await agent.orders(30)))
            await come(quick, 30)


async def test_a_tenant_hears_only_of_its_own_tasks_and_an_administrator_of_all(dsn: str, hook: Receiver) -> None:
    async with engine(dsn, **LOOPBACK) as core:
        tenant, _ = await core.access.add_tenant("other")
        await core.tenants.refresh()
        other = Owner(tenant, admin=False)
        await core.webhooks.add(other, name="mine", url=hook.url + "/mine", events=["finished"])
        await core.webhooks.add(ME, name="every", url=hook.url + "/every", events=["finished"], everywhere=True)
        agent = await ScriptedAgent(core).join()
        await finish(core, agent)
        assert [got.path for got in await come(hook, 1)] == ["/hook/every"]
        with pytest.raises(NotFound):
            await core.webhooks.one(other, "every")
        assert [row["name"] for row in await core.webhooks.all(other)] == ["mine"]
        with pytest.raises(Conflict):
            await core.webhooks.add(other, name="mine", url=hook.url, events=[])


async def test_an_address_inside_is_not_reached_unless_the_operator_allows_it(dsn: str, hook: Receiver) -> None:
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match="not a public address"):
            await core.webhooks.add(ME, name="ops", url=hook.url, events=["finished"])
        name = hook.url.replace("127.0.0.1", "localhost")  # a name is judged when it is used
        await core.webhooks.add(ME, name="ops", url=name, events=["finished"])
        await finish(core, await ScriptedAgent(core).join())

        async def failed() -> Any:
            [row] = await settled(core, "ops", 0)
            return row["error"]

        assert "not a public address" in await eventually(failed)
        assert hook.got == []


async def test_a_name_that_changes_its_address_after_the_check_gains_nothing(
    hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is resolved once: a second look, as a client library would take, would have reached the receiver."""
    port = int(hook.url.rpartition(":")[2].partition("/")[0])
    looks: list[str] = []

    async def resolve(_: object, host: str, port: int, **__: object) -> list[Any]:
        looks.append(host)
        address = "203.0.113.9" if len(looks) == 1 else "127.0.0.1"  # documentation addresses are not public either
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", resolve, raising=False)
    posted = await post(f"http://rebind.example:{port}/", b"{}", {}, allowed=(), timeout=5.0)
    assert posted.error is not None
    assert "not a public address" in posted.error
    assert looks == ["rebind.example"]
    assert hook.got == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_receiver_that_points_elsewhere_is_not_followed(hook: Receiver, status: int) -> None:
    """It could point to an address inside."""
    with receiver() as inside:
        hook.answers.append((status, {"location": inside.url}))
        posted = await post(hook.url, b"{}", {}, allowed=policy.networks("127.0.0.0/8"), timeout=60.0)
        assert (posted.status, posted.error) == (status, f"HTTP {status}: redirects are not followed")
        assert (len(hook.got), inside.got) == (1, [])


async def test_without_an_endpoint_events_are_not_even_read(dsn: str) -> None:
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await finish(core, agent)
        await core.dispatcher.run_once()
        assert not core.dispatcher.busy
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(*) from delivery") == 0


async def test_the_kill_of_a_task_is_told_with_what_was_used_and_allowed(dsn: str, hook: Receiver) -> None:
    async with engine(dsn, **LOOPBACK) as core:
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["killed"])
        agent = await ScriptedAgent(core).join()
        await submit(core, function(execution_cap=3))
        [order] = await agent.orders()
        await agent.fail(order, Outcome.CAP_EXCEEDED)
        [got] = await come(hook, 1)
        assert got.event["type"] == "headway.task.killed"
        assert got.event["data"]["allowed"] == {"execution_cap_s": 3.0}
        assert "wall_s" in got.event["data"]["used"]


async def test_the_failure_of_a_task_for_a_limit_is_told_with_what_it_used_and_was_allowed(dsn: str, hook: Receiver) -> None:
    """As numbers: nobody should have to read them out of a sentence."""
    async with engine(dsn, **LOOPBACK) as core:
        await core.webhooks.add(ME, name="ops", url=hook.url, events=["failed"])
        agent = await ScriptedAgent(core).join()
        await submit(core, function())
        [order] = await agent.orders()
        error = msgspec.json.encode(ErrorInfo("DiskFull", "wrote too much", excess=Excess("disk", 71, 64))).decode()
        await agent.say(finished=[done(order, outcome=Outcome.DISK_FULL, error=error, exit_code=137)])
        [got] = await come(hook, 1)
        task = got.event["data"]["task"]
        assert (task["outcome"], task["error"]["excess"]) == ("disk_full", {"what": "disk", "used": 71, "allowed": 64})
