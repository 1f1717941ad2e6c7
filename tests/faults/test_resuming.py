"""A node is killed, and its tasks go on elsewhere from where they were: checkpoints, stages, subtasks (H8 C4)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from tests.faults import resuming_tasks
from tests.support.cluster import TOUGH, Cluster, cluster
from tests.support.waiting import eventually

SMALL = TOUGH["resources"]
# A machine that stands still for three seconds is no second loss of a node.
PATIENT = {"HEADWAY_FENCE_S": "6", "HEADWAY_LOST_S": "8"}


async def node_of(made: Cluster, task: int) -> str:
    return await made.until("select n.name from task t join node n on n.id = t.node where t.id = $1", task)


async def result_of(made: Cluster, task: int) -> object:
    await made.until("select not exists (select from task where id = $1)", task)
    return msgspec.json.decode(await made.fetchval("select result from task_history where id = $1", task))


async def trail_has(trail: Path, text: str) -> None:
    async def there() -> bool:
        return trail.exists() and text in trail.read_text()

    await eventually(there, what=f"{text!r} in the trail")


async def test_a_task_ninety_percent_done_whose_node_is_killed_does_the_last_ten_percent_elsewhere(tmp_path):
    trail = tmp_path / "trail"
    async with cluster(tmp_path, agents=2, **PATIENT) as made:
        command = [sys.executable, "-S", resuming_tasks.__file__, str(trail), "10", "9"]
        (task,) = await made.submit({"command": command, "resources": SMALL})  # one attempt: a lost node uses none
        await trail_has(trail, "waits")
        await made.until("select exists (select from checkpoint where task = $1)", task)
        first = await node_of(made, task)
        next(agent for agent in made.agents if agent.name == first).kill_everything()
        assert await result_of(made, task) == 10
        steps = [line.split() for line in trail.read_text().splitlines() if line.startswith("step")]
        assert [int(number) for _, number, _, _ in steps] == list(range(10)), "each is done once"
        assert [attempt == "1" for *_, attempt in steps] == [True] * 9 + [False]
        last = await made.fetchval("select n.name from task_history h join node n on n.id = h.node where h.id = $1", task)
        assert last != first


async def test_stages_that_ended_before_the_node_was_killed_are_not_run_again(tmp_path):
    trail, flag = tmp_path / "trail", tmp_path / "flag"
    stages = [
        {"name": "export", "command": f"echo export >> {trail}"},
        {"name": "convert", "command": f"echo convert >> {trail}; [ -e {flag} ] || {{ touch {flag}; exec sleep 600; }}"},
        {"name": "switch", "command": f"echo switch >> {trail}; echo 7 > $HEADWAY_RESULT"},
    ]
    async with cluster(tmp_path, agents=2, **PATIENT) as made:
        (task,) = await made.submit({"stages": stages, "resources": SMALL})
        await trail_has(trail, "convert")
        first = await node_of(made, task)
        next(agent for agent in made.agents if agent.name == first).kill_everything()
        assert await result_of(made, task) == 7
        assert trail.read_text().split() == ["export", "convert", "convert", "switch"]


async def test_killing_agent_and_server_in_the_middle_doubles_no_subtask(tmp_path):
    trail = tmp_path / "trail"
    count = 40
    async with cluster(tmp_path) as made:
        function = f"{resuming_tasks.__file__}:fan_out"
        (task,) = await made.submit({"function": function, "input": [count, str(trail)], **TOUGH})
        agent, server = made.agents[0], made.servers[0]
        await trail_has(trail, "submitted")
        server.kill()
        await server.start()
        await trail_has(trail, "child")
        agent.kill_everything()
        agent.start()
        await made.until_node(agent.name, "up")
        pids = agent.processes()
        if pids["supervisor"]:
            os.kill(pids["supervisor"][0], signal.SIGKILL)
        assert await result_of(made, task) == sum(range(count))
        assert await made.fetchval("select count(*) from subtask where parent = $1", task) == count
        everything = "select (select count(*) from task) + (select count(*) from task_history) + (select count(*) from dead_letter)"
        assert await made.fetchval(everything) == count + 1


async def test_a_script_that_submits_while_its_server_is_killed_goes_on_with_another(tmp_path):
    """Two servers; the one that the command line would ask first is dead, and comes back later."""
    go = tmp_path / "go"
    script = f"""
    while [ ! -e {go} ]; do sleep 0.05; done
    headway submit -- sh -c 'echo 6 > "$HEADWAY_RESULT"' > /dev/null || exit
    headway wait || exit
    echo 7 > "$HEADWAY_RESULT"
    """
    async with cluster(tmp_path, servers=2) as made:
        env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        (task,) = await made.submit({"command": ["/bin/sh", "-c", script], "env": env, "resources": SMALL})
        await node_of(made, task)
        made.servers[0].kill()
        go.touch()
        assert await result_of(made, task) == 7
        assert await made.fetchval("select count(*) from subtask where parent = $1", task) == 1
