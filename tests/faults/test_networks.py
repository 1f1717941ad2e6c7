"""Networks as they are: slow, lossy, cut without a word, with a router that forgets. No task is lost or runs twice at once (I1 I2 I4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from headway.embedded.postgres import Postgres
from headway.wire.http import Http
from tests.support.cable import FAR, NEAR, Cable, cable
from tests.support.cluster import TOKEN, Agent, Cluster, Server, cluster
from tests.support.databases import FAST
from tests.support.waiting import eventually

__all__ = ["cable"]  # a fixture


@asynccontextmanager
async def divided(folder: Path, cable: Cable, **settings: str) -> AsyncIterator[tuple[Cluster, Agent]]:
    """Server and database here, an agent at the other end of the cable."""
    async with cluster(folder, agents=0, HEADWAY_HOST=NEAR, **settings) as made:
        with cable.far():
            agent = await made.add_agent()
        yield made, agent


async def test_over_a_slow_line_that_loses_packets_everything_is_done_once(tmp_path: Path, cable: Cable) -> None:
    async with divided(tmp_path, cable, HEADWAY_FENCE_S="10", HEADWAY_LOST_S="12") as (made, _):
        cable.delay_s, cable.jitter_s, cable.loss = 0.3, 0.1, 0.1
        for _ in range(5):
            await made.submit(*(made.function(0.05) for _ in range(20)), *(made.program(0.05) for _ in range(4)))
        await made.until_final()
        await made.assert_sound()


async def test_a_cable_that_is_cut_for_a_moment_costs_nothing(tmp_path: Path, cable: Cable) -> None:
    async with divided(tmp_path, cable, HEADWAY_FENCE_S="20", HEADWAY_LOST_S="25") as (made, agent):
        tasks = await made.submit(made.program(held=made.held), made.function(held=made.held))
        for task in tasks:
            await made.until_running(task)
        cable.cut = True
        await eventually(lambda: "exchange_failed" in agent.log.read_text(), what="the agent notices")
        cable.cut = False
        made.held.touch()
        await made.until_final()
        await made.assert_sound()
        assert [made.runs_of(task) for task in tasks] == [[1], [1]]


async def test_a_node_that_is_cut_off_has_ended_its_tasks_before_they_run_elsewhere_and_comes_back(tmp_path: Path, cable: Cable) -> None:
    async with divided(tmp_path, cable) as (made, agent):
        tasks = await made.submit(made.program(held=made.held), made.function(held=made.held))
        for task in tasks:
            await made.until_running(task)
        cable.cut = True
        await made.until_node(agent.name, "lost")
        await made.add_agent()
        await made.until_final()
        cable.cut = False
        await made.until_node(agent.name, "up")
        await made.submit(*(made.function() for _ in range(20)))
        await made.until_final()
        await made.assert_sound()


async def test_a_router_that_forgets_idle_connections_keeps_no_task_waiting(tmp_path: Path, cable: Cable) -> None:
    cable.forgets_s = 1.5
    async with divided(tmp_path, cable, HEADWAY_FENCE_S="20", HEADWAY_LOST_S="25") as (made, agent):
        for _ in range(3):
            before = cable.forgotten
            await eventually(lambda since=before: cable.forgotten > since, what="a connection was silent for too long")
            await made.submit(made.function(), made.program())
            await made.until_final()
        await made.assert_sound()
        await made.until_node(agent.name, "up")


@asynccontextmanager
async def far_database(folder: Path, cable: Cable) -> AsyncIterator[Cluster]:
    """A PostgreSQL at the other end of the cable; servers and agents are here."""
    settings = {**FAST, "synchronous_commit": "on"}
    made = Cluster(folder, Postgres(folder / "db", settings={**settings, "listen_addresses": FAR}))
    made.dsn = f"postgresql://headway@{FAR}:5432/postgres"
    try:
        first = Postgres(folder / "db", settings=settings)
        first.start()
        first.stop()
        with open(folder / "db" / "postgres" / "pg_hba.conf", "a") as file:
            file.write(f"host all all {NEAR}/32 trust\n")
        with cable.far():
            made.postgres.start()
        yield made
    except BaseException:
        print(made.logs())
        raise
    finally:
        cable.cut = False
        made.end()


async def test_a_database_that_is_cut_off_is_noticed_and_everything_goes_on_after(tmp_path: Path, cable: Cable) -> None:
    async with far_database(tmp_path, cable) as made:
        server = await made.add_server()
        await made.add_agent()
        tasks = await made.submit(made.program(held=made.held), made.function(held=made.held))
        for task in tasks:
            await made.until_running(task)
        cable.cut = True
        await eventually(lambda: says_ready(server, 503), what="/readyz says no")
        made.held.touch()  # they end while nobody can store it
        cable.cut = False
        await eventually(lambda: says_ready(server, 200), what="/readyz says yes")
        await made.submit(*(made.function() for _ in range(20)))
        await made.until_final()
        await made.assert_sound()
        assert [made.runs_of(task) for task in tasks] == [[1], [1]], "the agent was told to hold on"


async def test_connections_to_the_database_that_a_router_forgot_are_replaced_and_nothing_is_lost(tmp_path: Path, cable: Cable) -> None:
    async with far_database(tmp_path, cable) as made:
        await made.add_server()
        await made.add_agent()
        await made.submit(*(made.function() for _ in range(200)))  # opens every connection there may be
        await made.until_final()
        cable.forget()  # all of them, at once: what is sent on them vanishes
        await eventually(lambda: admitted(made), what="tasks are taken again")  # until then the answer is 503
        await made.until_final()
        await made.assert_sound()


async def admitted(made: Cluster) -> list[int]:
    http = made.servers[0].http
    try:
        return made.remember(await http.request("POST", "/v1/tasks", body=msgspec.json.encode([made.function()] * 20), timeout=120))
    finally:
        await http.close()


async def says_ready(server: Server, status: int) -> bool:
    http = Http(server.url, token=TOKEN, connect_timeout=2.0)
    try:
        return (await http.request("GET", "/readyz", timeout=30)).status == status
    finally:
        await http.close()
