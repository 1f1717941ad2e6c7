"""The clock of a server's machine steps back, and forward: ids stay unique and rising, no task is early, late or lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from headway.wire.http import Http
from tests.support.cluster import TOKEN, Cluster, cluster
from tests.support.packages import need


def set_clock(file: Path, offset: str) -> None:
    """What libfaketime reads at each look at the clock; by a rename, so that it is never read half written."""
    fresh = file.with_suffix(".new")
    fresh.write_text(f"{offset}\n")
    fresh.rename(file)


def false_clock(library: str, file: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # the kernel never sets that one back
    }


def clock_of_a_process(variables: dict[str, str]) -> float:
    command = [sys.executable, "-c", "import time; print(time.time())"]
    return float(subprocess.run(command, env=variables, capture_output=True, check=True).stdout)


# The clocks jump by hours: nobody is lost, nor fences itself, because a busy machine stood still for a few seconds.
PATIENT = {"HEADWAY_FENCE_S": "20", "HEADWAY_LOST_S": "25"}


async def with_false_clock(made: Cluster, library: str, file: Path) -> None:
    """Add a server whose clock the test sets; make sure first that it can."""
    variables = false_clock(library, file)
    set_clock(file, "-1000d")
    assert time.time() - clock_of_a_process(variables) > 86_400
    set_clock(file, "+0s")
    server = await made.add_server(**variables, **PATIENT)
    assert "libfaketime" in Path(f"/proc/{server.pid}/maps").read_text()


async def test_a_clock_that_jumps_makes_no_id_twice_and_loses_nothing(tmp_path):
    library, file = need("libfaketime"), tmp_path / "clock"
    async with cluster(tmp_path, agents=0, **PATIENT) as made:
        await with_false_clock(made, library, file)
        false = made.servers[1]
        made.servers[0].send(signal.SIGTERM)  # the one with the false clock leads, plans and reaps
        await made.until("select holder = (select boot from server where url = $1) from duty where name = 'planner'", false.url)
        agent = await made.add_agent(servers=[false])
        ids: list[int] = []
        for offset in ("+0s", "-3600s", "+7200s", "-2000d", "+3000d", "-1s"):
            set_clock(file, offset)
            ids += await made.submit(*(made.function() for _ in range(30)), server=false)
            ids += await made.submit(made.program(0.3), made.function(0.3, at=await _soon(made)), server=false)
        await made.until_final()
        await made.assert_sound()
        assert len(set(ids)) == len(ids)
        assert ids == sorted(ids), "ids of one server rise, whatever its clock says"
        await made.until_node(agent.name, "up")
        early = "select count(*) from task_history where started_at < eligible_at - interval '5 ms' or ended_at < started_at"
        assert await made.fetchval(early) == 0
        wild = "select count(*) from task_history where abs(extract(epoch from ended_at - clock_timestamp())) > 600"
        assert await made.fetchval(wild) == 0, "times are the database's"


async def _soon(made: Cluster) -> float:
    """Half a second from now, by the database's clock."""
    return float(await made.fetchval("select extract(epoch from clock_timestamp() + interval '0.5 s')::float8"))


async def test_tokens_and_heartbeats_do_not_follow_a_clock_that_jumps(tmp_path):
    library, file = need("libfaketime"), tmp_path / "clock"
    async with cluster(tmp_path, agents=0, **PATIENT) as made:
        await with_false_clock(made, library, file)
        false = made.servers[1]
        agent = await made.add_agent(servers=[false])
        (task,) = await made.submit(made.function(4.0), server=false)
        await made.until_running(task)
        for offset in ("-86400s", "+86400s", "-5s"):
            set_clock(file, offset)
            http = Http(false.url, token=TOKEN)
            assert (await http.request("GET", "/readyz")).status == 200
            assert (await http.request("GET", "/v1/whoami")).status == 200
            await http.close()
        await made.until_final()
        await made.assert_sound()
        assert made.runs_of(task) == [1], "nobody thought that the node was lost"
        await made.until_node(agent.name, "up")
