"""Duplicate, reordered, late and malicious exchanges, said by hand to a real server: they change nothing they should not."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import pytest_asyncio

from headway.control import reports
from headway.domain.lifecycle import Outcome, State
from headway.errors import HeadwayError
from headway.wire.exchange import Order
from tests.support.checker_agent import HandAgent, failed, succeeded
from tests.support.cluster import Cluster, cluster
from tests.support.engine import ScriptedAgent, done, engine, function, state_of, submit
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def made(tmp_path_factory):
    """One cluster for all: what a test leaves behind must not trouble the next one either. An agent by hand beats only when its test
    speaks for it, and is not lost for that."""
    async with cluster(tmp_path_factory.mktemp("exchanges"), agents=0, HEADWAY_LOST_S="300") as made:
        yield made


@pytest.fixture(autouse=True)
def only_its_own_tasks(made):
    """Each test is judged by what it submitted itself."""
    made.acknowledged.clear()


async def leased(made: Cluster, agent: HandAgent, count: int = 1, **fields: object) -> list[tuple[int, int]]:
    ids = await made.submit(*(made.function(resources=agent.only_here(), **fields) for _ in range(count)))
    got = await agent.orders(count)
    assert sorted(ref[0] for ref in got) == sorted(ids)
    return got


async def state(made: Cluster, task: int) -> State:
    return State(await made.fetchval("select state from task_anywhere where id = $1", task))


async def test_a_report_said_many_times_at_once_counts_once(made):
    agent = await HandAgent(made.servers[0]).join()
    refs = await leased(made, agent, 5)
    report = [succeeded(ref, str(n)) for n, ref in enumerate(refs)]
    answers = await asyncio.gather(*(agent.post(finished=report, sequence=10) for _ in range(20)))
    assert {answer.status for answer in answers} == {200}
    await made.assert_sound()


async def test_success_and_failure_of_one_attempt_count_as_the_first_of_them(made):
    agent = await HandAgent(made.servers[0]).join()
    (ref,) = await leased(made, agent)
    await agent.say(finished=[succeeded(ref)])
    await agent.say(finished=[failed(ref)])
    await agent.say(finished=[failed(ref), succeeded(ref)])
    assert await state(made, ref[0]) is State.SUCCEEDED
    await made.assert_sound()


async def test_a_late_report_of_an_older_attempt_changes_nothing(made):
    agent = await HandAgent(made.servers[0]).join()
    (first,) = await leased(made, agent)
    await agent.say(finished=[failed(first)])
    (second,) = await agent.orders(1)
    assert second == (first[0], first[1] + 1)
    for said in ({"finished": [succeeded(first)]}, {"finished": [failed(first)]}, {"returned": [first]}, {"started": [[*first, 1]]}):
        await agent.say(**said)
        row = (await made.fetch("select state, attempt, failures from task where id = $1", first[0]))[0]
        assert tuple(row) == (State.LEASED, second[1], 1)
    await agent.say(finished=[succeeded(second)])
    await made.assert_sound()


async def test_an_attempt_that_began_and_that_its_node_does_not_hold_is_ordered_again(made):
    """As after a failover that lost the commit of its end: the node, which has ended it, is asked and tells it once more."""
    agent = await HandAgent(made.servers[0]).join()
    (ref,) = await leased(made, agent)
    await agent.say(started=[[*ref, 1]])
    assert await state(made, ref[0]) is State.RUNNING
    agent.held.clear()
    assert await agent.orders(1) == [ref]
    await agent.say(finished=[succeeded(ref, "7")])
    assert await state(made, ref[0]) is State.SUCCEEDED
    await made.assert_sound()


async def test_exchanges_that_overtake_each_other_end_the_same(made):
    agent = await HandAgent(made.servers[0]).join()
    refs = await leased(made, agent, 3)
    await agent.say(sequence=50, finished=[succeeded(refs[0])])
    await agent.say(sequence=40, started=[[*refs[0], 1], [*refs[1], 1]])  # older, and about an attempt that has ended
    await agent.say(sequence=41, returned=[refs[0], refs[1]])  # begun: it cannot be given back any more
    await agent.say(sequence=39, heartbeat=True, held=[list(ref) for ref in refs])
    assert await state(made, refs[0][0]) is State.SUCCEEDED
    assert await state(made, refs[1][0]) is State.RUNNING
    await agent.say(finished=[succeeded(refs[1]), succeeded(refs[2])])
    await made.assert_sound()


async def test_an_attempt_given_back_twice_is_handed_out_under_a_higher_number(made):
    agent = await HandAgent(made.servers[0]).join()
    (ref,) = await leased(made, agent)
    await asyncio.gather(*(agent.say(returned=[ref]) for _ in range(5)))
    (again,) = await agent.orders(1)
    assert again == (ref[0], ref[1] + 1)
    await agent.say(returned=[ref])  # late
    await agent.say(finished=[succeeded(again)])
    await made.assert_sound()


async def test_an_old_boot_that_speaks_up_late_changes_nothing(made):
    old = await HandAgent(made.servers[0], "twice").join()
    (ref,) = await leased(made, old)
    new = await HandAgent(made.servers[0], "twice").join()
    answer = await old.say(finished=[succeeded(ref)], heartbeat=True, held=[list(ref)])
    assert answer.get("lost") is True
    (again,) = await new.orders(1)
    assert again == (ref[0], ref[1] + 1)
    assert (await old.say(wait_s=0.5)).get("lost") is True
    await new.say(finished=[succeeded(again)])
    await made.assert_sound()


async def test_orders_planned_for_an_old_boot_are_not_given_to_the_new_one(made):
    """The new boot registers while the planner is busy giving tasks to the node: what it gets must be attempts of its own."""
    agent = await HandAgent(made.servers[0], "restless").join()
    await agent.say(heartbeat=True)
    ids = await made.submit(*(made.function(resources=agent.only_here(0.01)) for _ in range(300)))
    seen: set[tuple[int, int]] = set()
    for _ in range(15):
        agent = await HandAgent(made.servers[0], "restless").join()
        answer = await agent.say(wait_s=0.3, heartbeat=True, held=[])
        refs = [(order[0], order[1]) for order in answer.get("orders", [])]
        assert not seen & set(refs), "an attempt of another boot was handed out again"
        rows = await made.fetch("select id, attempt from task where id = any ($1::bigint[])", [ref[0] for ref in refs])
        assert {tuple(row) for row in rows} == set(refs), "an attempt that nobody waits for was handed out"
        seen |= set(refs)
    while await made.fetchval("select count(*) from task where id = any ($1::bigint[])", ids):
        await agent.say(finished=[succeeded(ref) for ref in await agent.orders(1)])
    await made.assert_sound()


async def test_a_plan_that_was_written_before_a_new_boot_came_is_kept_from_it(dsn):
    async with engine(dsn) as core:
        old = await ScriptedAgent(core).join()
        await old.say(heartbeat=True)
        planned_for = dict(core.sessions.by_node)
        new = await ScriptedAgent(core).join()
        assert new.id == old.id
        await new.say(heartbeat=True)
        core.sessions.offer({new.id: [Order(1, 1, 1, b"")]}, planned_for)
        assert (await new.say(heartbeat=True, held=[])).orders == []


async def test_a_plan_written_while_a_node_said_its_first_word_reaches_it_without_waiting_for_a_heartbeat(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        await agent.say()
        task = (await submit(core, function())).ids[0]
        session = core.sessions.by_node[agent.id]

        async def planned_for_it() -> list[Order]:
            return list(session.orders)

        planned = await eventually(planned_for_it)
        # As if the session had been opened between the planner's look and its commit.
        session.orders.acknowledge((order.id, order.attempt) for order in planned)
        core.sessions.offer({agent.id: planned}, {})
        assert [order.id for order in (await agent.say(wait_s=30.0)).orders] == [task]


async def test_two_servers_hear_the_same_report_at_the_same_time(made):
    other = await made.add_server(HEADWAY_LOST_S="300")
    agent = await HandAgent(made.servers[0]).join()
    refs = await leased(made, agent, 20)
    twin = HandAgent(other)
    twin.boot, twin.id = agent.boot, agent.id
    report = [succeeded(ref) for ref in refs]
    answers = await asyncio.gather(*(who.post(finished=report) for who in (agent, twin) * 5))
    assert {answer.status for answer in answers} == {200}
    await made.assert_sound()


@pytest.mark.parametrize(
    "error",
    [None, "", "not JSON", "[]", '{"type": 1}', "\x00", '{"type": "E", "message": "a\\u0000b"}', "x" * 3_000_000],
    ids=["none", "empty", "text", "list", "types", "nul", "escaped nul", "huge"],
)
async def test_a_strange_error_text_does_not_keep_a_task_from_ending(made, error):
    agent = await HandAgent(made.servers[0]).join()
    (ref, neighbour) = await leased(made, agent, 2, attempts=1)
    answers = await asyncio.gather(agent.post(finished=[failed(ref, error)]), agent.post(finished=[succeeded(neighbour)]))
    assert [answer.status for answer in answers] == [200, 200]
    assert await state(made, ref[0]) is State.FAILED
    assert await state(made, neighbour[0]) is State.SUCCEEDED
    await made.assert_sound()


HOSTILE = {
    "an error too deep": {"outcome": Outcome.ERROR, "error": '{"type":"A","message":"b","x":' + "[" * 5_000 + "]" * 5_000 + "}"},
    "an outcome there is none of": {"outcome": 99},
    "an outcome below all": {"outcome": -1},
    "years of CPU time": {"cpu_ms": 2**62},
    "less than none": {"cpu_ms": -5, "max_memory": -(2**63), "read_bytes": -1, "written_bytes": -1},
    "more than any column takes": {"exit_code": 2**40, "max_memory": 2**64 - 1, "read_bytes": 2**64 - 1, "written_bytes": 2**64 - 1},
    "an exit code below all": {"outcome": Outcome.ERROR, "exit_code": -(2**40), "cpu_ms": 2**31, "max_memory": 2**63},
}


@pytest.mark.parametrize("said", HOSTILE.values(), ids=list(HOSTILE))
async def test_an_end_that_says_what_nobody_can_store_is_an_end_and_loses_no_other(dsn, said):
    async with engine(dsn) as core:
        one, two = await ScriptedAgent(core, "one").join(), await ScriptedAgent(core, "two").join()
        await submit(core, *[function(resources={"cpus": 1}, attempts=1) for _ in range(4)])
        (bad, good), others = await one.orders(2), await two.orders(2)
        ends = [done(bad, **{"outcome": Outcome.SUCCEEDED, **said}), done(good)]
        async with asyncio.timeout(20):
            await asyncio.gather(one.say(finished=ends), two.succeed(*others))
        assert await state_of(core, bad.id) == (State.FAILED if said.get("outcome") else State.SUCCEEDED)
        assert [await state_of(core, order.id) for order in (good, *others)] == [State.SUCCEEDED] * 3


async def test_numbers_beyond_what_is_kept_are_kept_as_the_most_there_can_be(dsn):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        [task] = (await submit(core, function())).ids
        [order] = await agent.orders()
        await agent.say(finished=[done(order, exit_code=-1, cpu_ms=2**31 + 1, max_memory=2**63, read_bytes=-1, written_bytes=5)])
        async with core.database.cold() as connection:
            row = await connection.fetchrow("select exit_code, cpu_ms, max_memory from task_history where id = $1", task)
            moved = await connection.fetchrow("select read_bytes, written_bytes from attempt_io where task = $1", task)
        assert (tuple(row), tuple(moved)) == ((-1, 2**31 - 1, 2**63 - 1), (0, 5))


DEEP = b"[" * 5_000 + b"]" * 5_000


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (b"[1,", "[1,"),
        (b'["\xff"]', '["\ufffd"]'),
        (b"\x80\x04K\x01.\x00", "\ufffd\x04K\x01.\ufffd"),
        (DEEP, DEEP.decode()),
        (b'{"a": [1, "\xc3\xa9"]}', {"a": [1, "é"]}),
        (b"", None),
        (None, None),
    ],
    ids=["malformed", "not UTF-8", "a pickle", "too deep", "good", "empty", "none"],
)
async def test_a_result_that_is_no_json_is_a_text_as_that_of_a_program_would_be(dsn, result, kept):
    async with engine(dsn) as core:
        agent = await ScriptedAgent(core).join()
        [task] = (await submit(core, function())).ids
        await agent.succeed(*await agent.orders(), result=result)
        async with core.database.cold() as connection:
            stored = await connection.fetchval("select result from task_history where id = $1", task)
        assert (msgspec.json.decode(stored) if stored else None) == kept


@pytest.mark.parametrize("where", ["sorting", "storing"])
async def test_a_report_that_fails_in_a_way_nobody_foresaw_fails_alone(dsn, monkeypatch, where):
    sort, write = reports._sort_into, reports.record

    def sorting(into, node, exchange, now_ms):
        if node == one.id and exchange.finished:
            raise RuntimeError("by the test")
        sort(into, node, exchange, now_ms)

    async def storing(connection, ends, definitions):
        if any(node == one.id for node, _ in ends.succeeded):
            raise RuntimeError("by the test")
        return await write(connection, ends, definitions)

    async with engine(dsn) as core:
        one, two, three = [await ScriptedAgent(core, name).join() for name in ("one", "two", "three")]
        await submit(core, *[function(resources={"cpus": 2}) for _ in range(3)])
        orders = [(agent, (await agent.orders())[0]) for agent in (one, two, three)]
        monkeypatch.setattr(reports, *(("_sort_into", sorting) if where == "sorting" else ("record", storing)))
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(agent.succeed(order) for agent, order in orders), return_exceptions=True)
        assert isinstance(answers[0], HeadwayError)
        assert "by the test" in str(answers[0])
        assert [await state_of(core, order.id) for _, order in orders] == [State.LEASED, State.SUCCEEDED, State.SUCCEEDED]


@pytest.mark.parametrize(
    "said",
    [
        {"finished": [[1, 1, 99, 1, 2]]},
        {"finished": [[1, 1, 0, -(2**62), 2**62]]},
        {"finished": [[2**62, 2**31, 0, 1, 2]]},
        {"finished": [[-1, -1, 1, 1, 2]]},
        {"started": [[1, 2**40, 1]]},
        {"returned": [[2**70, 1]]},
        {"output": [[1, 1, 2**40, 9, 1, "AAAA"]]},
        {"output": [[1, 1, -1, 1, 2**62, "AAAA"]]},
        {"progress": [[1, 1, 1.0, 2.0, "a\x00b" * 10_000]]},
        {"progress": [[2**62, 2**62, 1.0, 2.0, ""]]},
        {"wait_s": -5},
        {"held": [[2**62, 2**62]], "heartbeat": True},
        {"unknown_definitions": [2**62]},
        {"received": [[1]]},
        {"sequence": -(2**70)},
        {"finished": "all of them"},
    ],
    ids=lambda said: str(said)[:40],
)
async def test_a_report_with_absurd_values_is_refused_or_ignored_and_the_next_one_is_heard(made, said):
    agent = await HandAgent(made.servers[0]).join()
    answer = await asyncio.wait_for(agent.post(**said), 60)
    assert answer.status == 200 or 400 <= answer.status < 500, (answer.status, answer.body)
    (ref,) = await leased(made, agent)
    await agent.say(finished=[succeeded(ref)])
    await made.assert_sound()
