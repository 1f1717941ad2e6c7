"""Duplicate, reordered, late and malicious exchanges, said by hand to a real server: they change nothing they should not."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from headway.domain.lifecycle import State
from headway.wire.exchange import Order
from tests.support.checker_agent import HandAgent, failed, succeeded
from tests.support.cluster import Cluster, cluster
from tests.support.engine import ScriptedAgent, engine, function, submit
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

        async def planned_for_it() -> dict[tuple[int, int], Order]:
            return session.orders

        await eventually(planned_for_it)
        planned = list(session.orders.values())
        session.orders.clear()  # as if it had been opened between the planner's look and its commit
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
