"""Schedules while servers are killed: every moment fires once (D3 I2)."""

from __future__ import annotations

import datetime
import signal

import msgspec

from tests.support.cluster import Cluster, cluster
from tests.support.waiting import eventually

NAMES = 5


async def test_every_moment_fires_once_though_the_leading_server_is_killed_again_and_again(tmp_path):
    async with cluster(tmp_path, servers=3, agents=1) as made:
        start = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(seconds=8)
        end = start + datetime.timedelta(seconds=15)
        moments = {start + datetime.timedelta(seconds=n) for n in range(16)}
        body = [
            {"name": f"s{n}", "schedule": 1, "start": start.isoformat(), "end": end.isoformat(), "overlap": "allow", "misfire": "all",
             "task": made.function()}
            for n in range(NAMES)
        ]  # fmt: skip
        http = made.servers[0].http
        answer = await http.request("POST", "/v1/schedules", body=msgspec.json.encode(body))
        await http.close()
        assert answer.status == 200, answer.body
        for second in (3, 9):
            await made.until("select clock_timestamp() > $1", start + datetime.timedelta(seconds=second))
            await _kill_leader(made)
        await made.until("select not exists (select from schedule where next_at is not null)")
        rows = await made.fetch("select s.name, f.at, f.run, f.state from firing f join schedule s on s.id = f.schedule")
        assert {(row["name"], row["at"]) for row in rows} == {(f"s{n}", at) for n in range(NAMES) for at in moments}
        assert {row["state"] for row in rows} == {1}
        made.acknowledged = {row["run"] for row in rows}
        assert len(made.acknowledged) == len(rows) == NAMES * 16
        everything = await made.fetch("select id from task_anywhere")
        assert {row["id"] for row in everything} == made.acknowledged  # no task without its firing
        await made.until_final()
        await made.assert_sound()


async def _kill_leader(made: Cluster) -> None:
    """The server that leads the timekeeper, by kill -9, and then it comes back."""
    url = await made.fetchval("select url from server where boot = (select holder from duty where name = 'timekeeper')")
    server = next(one for one in made.servers if one.url.rstrip("/") == url.rstrip("/"))
    server.send(signal.SIGKILL)
    server.kill()

    async def another_leads() -> bool:
        leads = "select holder from duty where name = 'timekeeper' and expires_at > clock_timestamp()"
        return (await made.fetchval(f"select url from server where boot = ({leads})")) not in (None, url)

    await eventually(another_leads, what="another server leads the timekeeper")
    await server.start()
