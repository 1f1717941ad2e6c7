"""Servers and agents die in the middle of pausing, resuming and making room: nothing is lost, doubled or left frozen (H7 E9 I2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.support.cluster import Cluster, Server, cluster
from tests.support.waiting import eventually

PAUSED = "select state = 5 from task where id = $1"
WHOLE = {"cpus": 1, "memory": "64MiB", "disk": "1MiB"}


async def call(server: Server, task: int, word: str, wait: float = 30.0) -> dict[str, Any]:
    http = server.http
    try:
        answer = await http.request("POST", f"/v1/tasks/{task}/{word}?wait={wait}", timeout=120)
    finally:
        await http.close()
    assert answer.status in (200, 202), answer.body
    view: dict[str, Any] = msgspec.json.decode(answer.body)
    return view


def counted(folder: Path) -> int:
    file = folder / "count"
    return int(file.read_text() or 0) if file.exists() else 0


async def counter(made: Cluster, folder: Path, **fields: Any) -> int:
    """A running program that counts until the file `go` is there."""
    text = (
        f"n=0; while [ ! -e {folder}/go ]; do n=$((n+1)); echo $n > {folder}/count.new; mv {folder}/count.new {folder}/count; "
        "sleep 0.01; done"
    )
    [task] = await made.submit({**made.program(), "command": ["/bin/sh", "-c", text], **fields})

    async def begun() -> bool:
        return counted(folder) > 0

    await eventually(begun, what="the counter begins")
    await made.until("select state = 4 from task where id = $1", task)
    return task


async def moves(folder: Path) -> None:
    before = counted(folder)

    async def moved() -> bool:
        return counted(folder) > before

    await eventually(moved, what="the counter goes on")


async def test_a_pause_asked_of_a_server_that_dies_is_done_and_taken_back_through_another(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with cluster(tmp_path / "cluster", servers=2) as made:
        task = await counter(made, folder)
        await call(made.servers[0], task, "pause", wait=0.0)
        made.servers[0].kill()
        await made.until(PAUSED, task)
        await made.servers[0].start()
        await call(made.servers[1], task, "resume", wait=0.0)
        made.servers[1].kill()
        await moves(folder)
        (folder / "go").touch()
        await made.until_final()
        assert await made.fetchval("select attempt - node_losses from task_history where id = $1", task) == 1


async def test_a_paused_task_whose_machine_dies_stays_paused_and_runs_again_when_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with cluster(tmp_path / "cluster", agents=2) as made:
        task = await counter(made, folder)
        assert (await call(made.servers[0], task, "pause"))["state"] == "paused"
        node = await made.fetchval("select n.name from task t join node n on n.id = t.node where t.id = $1", task)
        next(agent for agent in made.agents if agent.name == node).kill_everything()
        await made.until_node(node, "lost")
        await made.until("select state = 5 and node is null from task where id = $1", task)
        count = counted(folder)
        [later] = await made.submit(made.program())
        await made.until("select exists (select from task_history where id = $1)", later)
        assert await made.fetchval(PAUSED, task)
        assert counted(folder) == count, "something of it runs while others are handed out"
        await call(made.servers[0], task, "resume")
        await moves(folder)
        (folder / "go").touch()
        await made.until_final()
        assert await made.fetchval("select node_losses from task_history where id = $1", task) >= 1


async def test_the_room_an_urgent_task_borrowed_is_given_back_though_the_server_dies(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with cluster(tmp_path / "cluster", servers=2, cpus=1.0) as made:
        long = await counter(made, folder, resources=WHOLE, execution_cap="20h")
        hold = f"while [ ! -e {folder}/enough ]; do sleep 0.02; done"
        [urgent] = await made.submit(
            {**made.program(), "command": ["/bin/sh", "-c", hold], "resources": WHOLE, "category": "urgent"}
        )
        await made.until(PAUSED, long)
        await made.until("select state = 4 from task where id = $1", urgent)
        made.servers[0].kill()
        (folder / "enough").touch()
        await moves(folder)
        (folder / "go").touch()
        await made.until_final()
        rows = await made.fetch("select attempt, node_losses, requeues from task_history where id = any ($1::bigint[])", [long, urgent])
        # A machine that stood still may have been fenced: that is a loss of the node, and nothing else.
        assert [(row["attempt"] - row["node_losses"], row["requeues"]) for row in rows] == [(1, 0), (1, 0)]
