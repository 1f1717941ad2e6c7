"""An agent that is killed, frozen or gone while its tasks run: each task ends once, and never runs twice at the same time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from headway.agent import tree
from headway.control.access import KEPT_S
from tests.support.cluster import Agent, Cluster, Server, cluster
from tests.support.waiting import eventually


def functions_and_programs(made: Cluster) -> list[dict[str, object]]:
    """Their first attempts go on until they are let go: one that nobody ended would meet the next one."""
    return [task(0.5, held=made.held) for task in (made.function, made.program) * 2]


async def run_on(made: Cluster, agent: Agent) -> list[int]:
    """Tasks that have all begun on this agent."""
    ids = await made.submit(*functions_and_programs(made))
    for task in ids:
        assert await made.until_running(task) == 1
    return ids


async def attempts(made: Cluster) -> list[int]:
    return [row["attempt"] for row in await made.fetch("select attempt from task_history order by id")]


# For those that wait for no loss: a busy machine that stood still for three seconds would be a second one.
PATIENT = {"HEADWAY_FENCE_S": "20", "HEADWAY_LOST_S": "25"}


async def assert_lost_with_their_nodes(made: Cluster, ids: list[int]) -> None:
    """Each was lost with its node, and nothing else happened to it. A machine that stood still may have lost it again."""
    rows = await made.fetch("select attempt, node_losses, failures, requeues from task_history order by id")
    assert len(rows) == len(ids)
    assert all(row["node_losses"] >= 1 for row in rows), rows
    assert {(row["attempt"] - row["node_losses"], row["failures"], row["requeues"]) for row in rows} == {(1, 0, 0)}, rows


async def until_second_runs(made: Cluster, ids: list[int]) -> None:
    async def all_began_again() -> bool:
        return all(len(made.runs_of(task)) > 1 for task in ids)

    await eventually(all_began_again, what="the tasks begin again")


async def until_one_runs_again(made: Cluster, ids: list[int]) -> None:
    async def one_began_again() -> bool:
        return any(len(made.runs_of(task)) > 1 for task in ids)

    await eventually(one_began_again, what="a task begins again")


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_tasks_go_on_while_the_database_is_away_for_longer_than_their_lease(tmp_path, how):
    async with cluster(tmp_path, agents=1, HEADWAY_FENCE_S="5", HEADWAY_LOST_S="8") as made:
        ids = await run_on(made, made.agents[0])
        if how == "killed":
            made.postgres.kill()
        frozen = [made.postgres.child, *tree.children(made.postgres.child)] if how == "frozen" else []
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        # Time is what is tested: what the server knows of the agent's token runs out, and then the lease.
        await asyncio.sleep(KEPT_S + 5 + 2)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        made.postgres.start()
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        assert await attempts(made) == [1] * len(ids), "the server told the agent to hold on"


async def test_tasks_go_on_when_the_exchange_side_is_killed(tmp_path):
    # A new exchange side is a new interpreter: on a busy machine it needs more than a second to take over.
    async with cluster(tmp_path, agents=1, HEADWAY_FENCE_S="20", HEADWAY_LOST_S="25") as made:
        ids = await run_on(made, made.agents[0])
        made.agents[0].kill()

        async def adopted() -> bool:
            return bool(made.agents[0].processes()["exchange"])

        await eventually(adopted, what="the supervisor starts another exchange side")
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        assert await attempts(made) == [1] * len(ids), "the supervisor kept them"


@pytest.mark.parametrize("part", ["supervisor", "runner", "task"])
async def test_tasks_run_again_when_what_ran_them_is_killed(tmp_path, part):
    async with cluster(tmp_path, agents=1, **PATIENT) as made:
        ids = await run_on(made, made.agents[0])
        for pid in made.agents[0].processes()[part]:
            os.kill(pid, signal.SIGKILL)
        await until_one_runs_again(made, ids)
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        assert sorted(await attempts(made))[-1] == 2


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_nothing_runs_on_when_both_sides_of_an_agent_are_gone_at_once(tmp_path, how):
    async with cluster(tmp_path, agents=1) as made:
        gone = made.agents[0]
        ids = await run_on(made, gone)
        found = gone.processes()
        await made.add_agent()
        for pid in found["supervisor"] + found["exchange"]:
            os.kill(pid, signal.SIGSTOP)
        for pid in found["supervisor"] + found["exchange"] if how == "killed" else []:
            os.kill(pid, signal.SIGKILL)
        await until_second_runs(made, ids)
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        await assert_lost_with_their_nodes(made, ids)
        if how == "frozen":
            thaw(*found["exchange"])
            await made.until_node(gone.name, "up")
        gone.kill_everything()


@pytest.mark.parametrize("part", ["exchange", "supervisor"])
async def test_tasks_of_a_frozen_agent_run_once_elsewhere(tmp_path, part):
    async with cluster(tmp_path, agents=1) as made:
        frozen = made.agents[0]
        ids = await run_on(made, frozen)
        (pid,) = frozen.processes()[part]
        os.kill(pid, signal.SIGSTOP)
        await made.add_agent()
        await until_second_runs(made, ids)
        thaw(pid)
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        await made.until_node(frozen.name, "up")
        await assert_lost_with_their_nodes(made, ids)


async def test_tasks_of_an_agent_that_never_comes_back_run_elsewhere(tmp_path):
    async with cluster(tmp_path, agents=1) as made:
        gone = made.agents[0]
        ids = await run_on(made, gone)
        await made.add_agent()
        gone.kill_everything()
        await made.until_node(gone.name, "lost")
        await until_second_runs(made, ids)
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        await assert_lost_with_their_nodes(made, ids)
        rows = await made.fetch("select distinct task from attempt")
        assert {row["task"] for row in rows} == set(ids), "the lost attempts are on record"


async def test_a_task_lost_more_often_than_allowed_is_a_dead_letter(tmp_path):
    async with cluster(tmp_path, agents=1) as made:
        (task,) = await made.submit(made.program(300, retry={"node_losses": 1}))
        for lost in range(1, 3):
            await eventually(_runs(made, task, lost), what=f"run {lost}")
            made.agents[0].kill_everything()
            made.agents[0].start()
        await made.until_final()
        await made.assert_sound()
        assert await made.fetchval("select node_losses from dead_letter where id = $1", task) == 2


def _runs(made: Cluster, task: int, count: int) -> Callable[[], object]:
    async def check() -> bool:
        return len(made.runs_of(task)) >= count

    return check


FEW = 6  # leases: some are under way when a node changes its mind, and what is given back is tried again after a rest


async def leases(made: Cluster, task: int) -> int:
    """How often the task was handed to a node."""
    return int(await made.fetchval("select attempt from task_anywhere where id = $1", task))


async def until_heartbeats(made: Cluster, agent: Agent, count: int) -> None:
    """Until the agent has been heard of so many times more."""
    for _ in range(count):
        before = await made.fetchval("select seen_at from node where name = $1", agent.name)
        await made.until("select exists (select from node where name = $1 and seen_at > $2)", agent.name, before)


@pytest.mark.parametrize("servers", [1, 2])
async def test_an_agent_that_was_asked_to_end_is_given_nothing_more_while_its_tasks_run(tmp_path, servers):
    async with cluster(tmp_path, servers=servers, agents=0) as made:
        ends = await made.add_agent(servers=made.servers[-1:])  # the first server came first, and plans
        (running,) = await made.submit(made.program(held=made.held))
        await made.until_running(running)
        ends.send(signal.SIGTERM)

        async def knows() -> bool:
            return "agent.draining" in ends.log.read_text()

        await eventually(knows, what="the agent hears that it shall end")
        (waiting,) = await made.submit(made.program(held=made.held))
        await until_heartbeats(made, ends, 6)
        assert await leases(made, waiting) <= FEW
        await made.add_agent()
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        await made.until_node(ends.name, "gone")


@pytest.mark.parametrize("servers", [1, 2])
async def test_a_node_that_takes_tasks_again_does_not_give_the_first_of_them_back(tmp_path, servers):
    async with cluster(tmp_path, servers=servers, agents=0) as made:
        drained = await made.add_agent(servers=made.servers[-1:])  # the first server came first, and plans
        for server in made.servers:
            await ask(server, f"/v1/nodes/{drained.name}/drain")
            (waiting,) = await made.submit(made.program())
            await until_heartbeats(made, drained, 3)
            assert await leases(made, waiting) <= FEW, "a node that drains is given nothing"
            before = await leases(made, waiting)
            await ask(server, f"/v1/nodes/{drained.name}/undrain")
            await made.until_final()
            assert await leases(made, waiting) <= before + 2
        await made.assert_sound()


async def ask(server: Server, path: str) -> None:
    http = server.http
    try:
        assert (await http.request("POST", path)).status == 200
    finally:
        await http.close()


def thaw(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return  # the other half of the agent has ended it, which is its right
