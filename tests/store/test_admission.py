"""Submissions become durable rows: keys, edges, bulk, refusals (A1 A2 A4 A5 A6 A8 G4)."""

from __future__ import annotations

import asyncio
import tracemalloc

import asyncpg
import msgspec
import pytest

from headway.control import batch
from headway.control.admission import Admission
from headway.control.lanes import LANES, Lanes
from headway.domain.lifecycle import State
from headway.domain.spec import TaskSpec
from headway.domain.task import encode
from headway.errors import Conflict, CyclicGraph, HeadwayError, IdempotencyConflict, InvalidInput, UnsatisfiableResources
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.waiting import eventually


async def count(core, table: str = "task") -> int:
    async with core.database.cold() as connection:
        return await connection.fetchval(f"select count(*) from {table}")


async def test_an_acknowledged_task_is_ready_in_the_database(dsn):
    async with engine(dsn) as core:
        receipt = await submit(core, function(input={"x": 1}, name="first", labels={"team": "a"}))
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select * from task where id = $1", receipt.ids[0])
        assert (row["state"], row["name"], row["input"], row["tenant"]) == (State.READY, "first", b'{"x":1}', 1)
        assert row["start_by"] > row["eligible_at"]


async def test_tasks_of_one_definition_share_a_row(dsn):
    async with engine(dsn) as core:
        await submit(core, *[function(input=i, name=f"n{i}") for i in range(50)])
        assert await count(core) == 50
        assert await count(core, "definition") == 1
        assert await count(core, "shape") == 1


async def test_what_long_definitions_say_is_not_kept_in_memory(dsn):
    async with engine(dsn) as core:
        await submit(core, {"command": ["echo", "x" * 1_000_000], "at": 4e9})
        tracemalloc.start()
        try:
            for n in range(20):
                await submit(core, {"command": ["echo", str(n) + "x" * 1_000_000], "at": 4e9})
            assert tracemalloc.get_traced_memory()[0] < 8_000_000  # the last is still held here and there
        finally:
            tracemalloc.stop()


async def test_many_definitions_together_take_no_more_memory_than_they_may(dsn, monkeypatch):
    monkeypatch.setattr("headway.control.remembered.KEPT", 100_000)
    async with engine(dsn) as core:
        for n in range(40):
            await submit(core, {"command": ["echo", f"{n}" + "x" * 10_000], "at": 4e9}, {"command": ["echo", str(n)], "at": 4e9})
        assert sum(len(content) for _, content in core.drafts._specs) < 100_000
        assert sum(len(encode(known.definition)) for known in core.definitions._by_id.values()) < 100_000
        few, before = [{"command": ["echo", str(n)], "at": 4e9} for n in range(3)], await count(core, "definition")
        await submit(core, *few)
        await submit(core, *few)
        assert len(core.drafts._specs) >= 3
        assert await count(core, "definition") == before


async def test_a_definition_that_is_not_remembered_runs_fails_and_is_sent_again_as_others_are(dsn, tmp_path):
    async with engine(dsn, secrets_key=str(tmp_path / "key")) as core:
        await core.secrets.put(1, "token", "s3cr3t")
        agent = await ScriptedAgent(core).join()
        long = function(args=["x" * 100_000], secrets={"API": "token"}, attempts=1)
        ids = {*(await submit(core, long)).ids, *(await submit(core, long)).ids, *(await submit(core, function(attempts=1))).ids}
        assert await count(core, "definition") == 2
        orders, told, secrets = {}, {}, {}
        async with asyncio.timeout(60):
            while orders.keys() < ids:
                reply = await agent.say(wait_s=2.0, received=[(order.id, order.attempt) for order in orders.values()], heartbeat=True)
                orders |= {order.id: order for order in reply.orders}
                told, secrets = told | reply.definitions, secrets | reply.secrets
        assert {len(args) for definition in told.values() for args in definition.args} == {100_000}
        assert [*secrets.values()] == [{"API": "s3cr3t"}]
        assert core.definitions.known(orders[min(ids)].definition) is None
        for order in orders.values():
            await agent.fail(order)
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(distinct fingerprint) from dead_letter where id = any ($1)", list(ids)) == 1
        assert set(await core.actions.revive(list(ids), 1, None)) == ids
        await agent.succeed(*await agent.orders(3))


async def test_many_new_definitions_of_one_request_are_stored_together(dsn):
    commands = [{"command": ["echo", str(n % 2500)], "name": f"n{n}"} for n in range(2600)]
    async with engine(dsn) as core, engine(dsn) as other:
        receipts = await asyncio.gather(submit(core, *commands), submit(other, *reversed(commands)))
        assert [len(receipt.ids) for receipt in receipts] == [2600, 2600]
        assert await count(core, "definition") == 2500
        async with core.database.cold() as connection:
            assert await connection.fetchval("select count(distinct xmin::text) from definition") <= 6
            ran = await connection.fetch("select t.name, d.body from task t join definition d on d.id = t.definition")
        assert all(msgspec.json.decode(row["body"])["command"] == ["echo", str(int(row["name"][1:]) % 2500)] for row in ran)


async def test_of_many_new_definitions_the_one_that_is_wrong_is_named_and_nothing_is_stored(dsn):
    async with engine(dsn) as core:
        for wrong in ({"queue": "nobody-has-it"}, {"resources": "huge-er"}, {"attempts": 0}, {"secrets": ["nothing"]}):
            commands = [{"command": ["echo", str(n)]} for n in range(50)]
            commands[30] |= wrong
            with pytest.raises(InvalidInput, match="task 30: "):
                await submit(core, *commands)
        assert await count(core) == 0


async def test_many_single_submits_are_committed_together_and_get_different_ids(dsn):
    async with engine(dsn) as core:
        await submit(core, function())  # the definition is known from here on
        receipts = await asyncio.gather(*(submit(core, function(input=i)) for i in range(300)))
        ids = [r.ids[0] for r in receipts]
        assert len(set(ids)) == 300 == await count(core) - 1
        async with core.database.cold() as connection:
            transactions = await connection.fetchval("select count(distinct xmin::text) from task")
        assert transactions < 30


async def test_the_same_key_gives_the_first_task_back(dsn):
    async with engine(dsn) as core:
        first = await submit(core, function(idempotency_key="k", input=1))
        again = await submit(core, function(idempotency_key="k", input=1))
        assert again.ids == first.ids
        assert (first.created, again.created) == ([True], [False])
        assert await count(core) == 1


async def test_the_same_payload_written_with_other_spaces_is_the_same(dsn):
    async with engine(dsn) as core:
        for body in (b'{"function": "a:b", "input": {"x": [1, " y "]}, "idempotency_key": "k"}',
                     b'{"idempotency_key":"k","input":{"x":[1," y "]},"function":"a:b"}'):  # fmt: skip
            drafts, _ = await core.drafts.read(1, body, ndjson=False, key=None)
            await core.admission.submit(1, drafts)
        assert await count(core) == 1


async def test_the_same_key_with_another_payload_is_a_conflict_and_stores_nothing(dsn):
    async with engine(dsn) as core:
        await submit(core, function(idempotency_key="k", input=1))
        with pytest.raises(IdempotencyConflict):
            await submit(core, function(idempotency_key="other"), function(idempotency_key="k", input=2))
        assert await count(core) == 1
        assert await count(core, "idempotency_key") == 1


async def test_a_key_used_by_many_at_the_same_time_makes_one_task(dsn):
    async with engine(dsn) as core, engine(dsn, holder="other") as other:
        receipts = await asyncio.gather(*(submit(c, function(idempotency_key="k")) for c in (core, other) * 20))
        assert len({r.ids[0] for r in receipts}) == 1
        assert sum(r.created[0] for r in receipts) == 1


async def keyed_tree(core, hash: bytes = b"h", **fields):
    specs = [msgspec.convert(task, TaskSpec) for task in (function(name="a", **fields), function(name="b", after=["a"]))]
    drafts = await core.drafts.many(1, specs)
    return await core.admission.submit(1, drafts, tree="t", key=("k", hash))


async def test_the_key_of_a_tree_gives_the_first_tree_back_also_when_tasks_of_it_have_ended(dsn):
    async with engine(dsn) as core:
        first = await keyed_tree(core)
        agent = await ScriptedAgent(core).join()
        (order,) = await agent.orders(1)
        await agent.succeed(order)
        again = await keyed_tree(core)
        assert (again.tree, again.ids, again.created) == (first.tree, first.ids, [False, False])
        assert await count(core, "tree") == 1
        assert await count(core, "tree_level") == 2
        with pytest.raises(IdempotencyConflict):
            await keyed_tree(core, b"another")
        assert await count(core, "tree") == 1


async def test_the_key_of_a_tree_used_by_many_at_the_same_time_makes_one_tree(dsn):
    async with engine(dsn) as core, engine(dsn, holder="other") as other:
        receipts = await asyncio.gather(*(keyed_tree(c) for c in (core, other) * 10))
        assert len({(r.tree, *r.ids) for r in receipts}) == 1
        assert sum(True in r.created for r in receipts) == 1
        assert await count(core) == 2


async def test_a_tree_that_is_refused_leaves_no_key_behind(dsn):
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match="there is no task 77"):
            await keyed_tree(core, after=[77])
        assert (await count(core, "idempotency_key"), await count(core, "tree")) == (0, 0)
        assert (await keyed_tree(core)).created == [True, True]


async def test_keys_of_two_tenants_do_not_meet(dsn):
    async with engine(dsn) as core:
        tenant, _ = await core.access.add_tenant("second")
        a = await submit(core, function(idempotency_key="k", input=1))
        b = await submit(core, function(idempotency_key="k", input=2), tenant=tenant)
        assert a.ids != b.ids


async def test_a_bulk_with_one_bad_task_stores_nothing_and_says_which(dsn):
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match="task 1: attempts: 0 is out of range"):
            await submit(core, function(), function(attempts=0))
        assert await count(core) == 0


async def test_a_task_waits_for_tasks_of_the_same_request_by_name(dsn):
    async with engine(dsn) as core:
        receipt = await submit(core, function(name="a"), function(name="b", after=["a"]), function(name="c", after=["a", "b"]))
        a, b, c = receipt.ids
        async with core.database.cold() as connection:
            blocked = dict(await connection.fetch("select id, blocked_on from task"))
            edges = {(r["upstream"], r["downstream"]) for r in await connection.fetch("select * from edge")}
        assert blocked == {a: 0, b: 1, c: 2}
        assert edges == {(a, b), (a, c), (b, c)}


async def test_a_cycle_is_refused_and_printed(dsn):
    async with engine(dsn) as core:
        with pytest.raises(CyclicGraph) as error:
            await submit(core, function(name="a", after=["b"]), function(name="b", after=["a"]))
        assert set(error.value.extra["cycle"]) == {"a", "b"}
        assert await count(core) == 0


async def test_waiting_for_an_unknown_task_is_refused(dsn):
    async with engine(dsn) as core:
        with pytest.raises(InvalidInput, match="there is no task 12345"):
            await submit(core, function(after=["12345"]))


async def test_waiting_for_another_tenants_task_is_refused(dsn):
    async with engine(dsn) as core:
        tenant, _ = await core.access.add_tenant("second")
        foreign = (await submit(core, function())).ids[0]
        with pytest.raises(InvalidInput, match="there is no task"):
            await submit(core, function(after=[str(foreign)]), tenant=tenant)


async def test_waiting_for_a_task_that_succeeded_already_starts_at_once(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        first = (await submit(core, function())).ids[0]
        await agent.succeed(*await agent.orders())
        second = (await submit(core, function(after=[first]))).ids[0]
        assert await state_of(core, second) in (State.READY, State.LEASED)


async def test_waiting_for_a_task_that_failed_is_refused_unless_it_wants_that(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        first = (await submit(core, function())).ids[0]
        await agent.fail((await agent.orders())[0])
        with pytest.raises(Conflict, match="has failed"):
            await submit(core, function(after=[first]))
        cleanup = (await submit(core, function(after=[{"task": first, "when": "failed"}]))).ids[0]
        assert await state_of(core, cleanup) in (State.READY, State.LEASED)


async def test_what_no_node_could_ever_run_is_refused(dsn):
    async with engine(dsn) as core:
        await submit(core, function(resources={"cpus": 64}))  # nobody has joined yet: not judged
        await ScriptedAgent(core, cpus=2).join()
        with pytest.raises(UnsatisfiableResources, match="64 cpus"):
            await submit(core, function(resources={"cpus": 64}))
        with pytest.raises(UnsatisfiableResources, match="gpu=a100"):
            await submit(core, function(resources={"labels": {"gpu": "a100"}}))


async def test_a_later_time_makes_it_scheduled(dsn):
    async with engine(dsn) as core:
        later = (await submit(core, function(at="2099-01-01T00:00:00Z"))).ids[0]
        assert await state_of(core, later) == State.SCHEDULED


async def test_ids_rise_and_are_never_given_twice_though_a_server_is_replaced(dsn):
    seen: list[int] = []
    for _ in range(4):
        async with engine(dsn) as core:
            seen += (await submit(core, *[function()] * 50)).ids
    assert seen == sorted(set(seen))


async def test_a_request_that_the_database_refuses_does_not_fail_those_it_is_stored_with(dsn):
    async with engine(dsn) as core, core.database.cold() as connection:
        await connection.execute("alter table task add check (name is distinct from 'poison')")
        waiting = core.admission.lanes

        async def ask(name: str) -> asyncio.Task[object]:
            return asyncio.create_task(submit(core, function(name=name)))

        async with connection.transaction():
            await connection.execute("lock table task in share mode")
            asked = {}
            for n in range(LANES):  # each keeps one way to the database busy
                before, asked[f"before-{n}"] = core.admission._bytes, await ask(f"before-{n}")
                await eventually(lambda before=before: core.admission._bytes > before and not waiting._waiting, seconds=60)
            for name in ("one", "poison", "another"):
                asked[name] = await ask(name)
            await eventually(lambda: len(waiting._waiting) == 3, seconds=60, what="they wait to be stored together")
        await asyncio.wait(asked.values())
        assert [name for name, task in asked.items() if task.exception() is not None] == ["poison"]
        assert isinstance(asked["poison"].exception(), HeadwayError)
        assert await connection.fetchval("select count(*) from task") == LANES + 2


async def test_a_request_that_fails_in_a_way_nobody_foresaw_does_not_fail_those_it_is_stored_with(dsn, monkeypatch):
    stored, poisoned = Admission._store, []

    async def failing(admission, requests):
        if any(draft.name == b"poison" for request in requests for draft in request.drafts):
            poisoned.append(len(requests))
            raise RuntimeError("by the test")
        return await stored(admission, requests)

    monkeypatch.setattr(Admission, "_store", failing)
    names = ["one", "poison", "another"]
    async with engine(dsn) as core, asyncio.timeout(30):
        lanes, add, together = core.admission.lanes, core.admission.lanes.add, []
        monkeypatch.setattr(lanes, "add", together.append)
        asking = asyncio.gather(*(submit(core, function(name=name)) for name in names), return_exceptions=True)
        await eventually(lambda: len(together) == 3, what="they wait to be stored together")
        monkeypatch.setattr(lanes, "add", add)
        for request in together:
            add(request)
        answers = zip(names, await asking, strict=True)
        assert [name for name, answer in answers if isinstance(answer, HeadwayError)] == ["poison"]
        assert poisoned == [3, 1]
        assert await count(core) == 2
        await submit(core, function(name="after"))


async def test_what_was_stored_before_something_unforeseen_is_not_stored_again(dsn, monkeypatch):
    ordinarily = Admission._store_ordinarily

    async def failing(admission, batch):
        await ordinarily(admission, batch)
        raise RuntimeError("by the test")

    monkeypatch.setattr(Admission, "_store_ordinarily", failing)
    async with engine(dsn) as core, asyncio.timeout(30):
        receipts = await asyncio.gather(*(submit(core, function()) for _ in range(3)))
        assert len({receipt.ids[0] for receipt in receipts}) == await count(core) == 3


async def test_a_commit_that_fails_ends_neither_its_lane_nor_the_other():
    done: list[str] = []
    began = {"poison": asyncio.Event(), "slow": asyncio.Event()}
    failed = asyncio.Event()

    async def commit(batch: list[str]) -> None:
        if (word := batch[0]) in began:
            began[word].set()
        if word == "poison":
            await began["slow"].wait()
            failed.set()
            raise RuntimeError("by the test")
        if word == "slow":
            await failed.wait()
            await asyncio.sleep(0.05)  # a lane that is cancelled is so by now
        done.append(word)

    lanes = Lanes(commit, lambda _: 1, 1)
    running = asyncio.create_task(lanes.run())
    async with asyncio.timeout(20):
        for word in began:
            lanes.add(word)
            await began[word].wait()
        for word in ("one", "two"):
            lanes.add(word)
        await eventually(lambda: sorted(done) == ["one", "slow", "two"], seconds=15)
    running.cancel()
    await asyncio.wait([running])


async def test_what_waits_for_a_task_that_is_there_already_waits_for_that_one(dsn):
    async with engine(dsn) as core:
        [there] = (await submit(core, function(name="a", idempotency_key="k"))).ids
        late = await submit(core, function(name="a", idempotency_key="k"), function(name="b", after=["a"]))
        assert late.ids[0] == there
        agent = await ScriptedAgent(core).join()
        [order] = await agent.orders()
        assert order.id == there
        await agent.succeed(order)
        [order] = await agent.orders()
        assert order.id == late.ids[1]


async def test_what_waits_for_a_task_that_has_ended_already_does_not_wait(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        first = function(name="a", idempotency_key="k")
        await submit(core, first)
        await agent.succeed(*await agent.orders())
        later = (await submit(core, first, function(name="b", after=["a"]))).ids[1]
        [order] = await agent.orders()
        assert order.id == later
        with pytest.raises(Conflict, match="failed"):
            await submit(core, first, function(name="c", after=[{"task": "a", "when": "failed"}]))


async def test_a_list_sent_again_with_one_more_task_keeps_the_edges_it_had(dsn):
    async with engine(dsn) as core:
        parts = [function(name="a", idempotency_key="a"), function(name="b", idempotency_key="b", after=["a"])]
        before = await submit(core, *parts)
        again = await submit(core, *parts, function(name="c", after=["a", "b"]))
        assert again.ids[:2] == before.ids
        agent = await ScriptedAgent(core).join()
        for task in again.ids:
            [order] = await agent.orders()
            assert order.id == task
            await agent.succeed(order)


async def test_a_task_that_is_named_by_its_id_and_by_its_name_is_waited_for_once(dsn):
    async with engine(dsn) as core:
        first = function(name="a", idempotency_key="k")
        [there] = (await submit(core, first)).ids
        with pytest.raises(InvalidInput, match="one and the same"):
            await submit(core, first, function(after=["a", {"task": str(there), "when": "failed"}]))
        later = (await submit(core, first, function(after=["a", str(there)]))).ids[1]
        agent = await ScriptedAgent(core).join()
        await agent.succeed(*await agent.orders())
        [order] = await agent.orders()
        assert order.id == later


async def test_a_list_of_which_a_part_is_there_is_stored_rightly_when_postgresql_wants_it_again(dsn, monkeypatch):
    async with engine(dsn) as core:
        first = function(name="a", idempotency_key="k")
        [there] = (await submit(core, first)).ids
        tries, stored = [], batch.copy_edges

        async def deadlocked_once(connection, rows):
            tries.append(len(rows))
            await stored(connection, rows)
            if len(tries) == 1:
                raise asyncpg.DeadlockDetectedError("by the test")

        monkeypatch.setattr(batch, "copy_edges", deadlocked_once)
        again = await submit(core, first, function(name="b", after=["a"]), function(name="c", after=["b"]))
        assert (tries, again.ids[0]) == ([2, 2], there)
        agent = await ScriptedAgent(core).join()
        for task in again.ids:
            [order] = await agent.orders()
            assert order.id == task
            await agent.succeed(order)


async def test_requests_that_are_stored_together_may_wait_for_each_other_by_a_key(dsn):
    async with engine(dsn) as core:
        both = [submit(core, function(name="a", idempotency_key="k"), function(name=name, after=["a"])) for name in "bc" * 5]
        ids = [receipt.ids for receipt in await asyncio.gather(*both)]
        assert len({each[0] for each in ids}) == 1
        agent = await ScriptedAgent(core, cpus=20).join()
        await agent.succeed(*await agent.orders())
        assert {order.id for order in await agent.orders(10)} == {each[1] for each in ids}
