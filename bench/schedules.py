"""Ten thousand schedules due in the same second: `python bench/schedules.py [--schedules 10000]`.

A throw-away `headway up` gets the schedules, each with a definition of its own, through the API. All start at the same moment. Counted
is in the database: how long after that moment the last firing was stored and the last task had started on the node, and that none
happened twice. Exit code 1 when not all started within 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
import time
from typing import Any

import msgspec

from headway.bench import bodies, durability
from headway.bench.instance import Instance, throw_away
from headway.bench.processes import cpu_seconds

BAR_S = 5.0
CHUNK = 1_000
PATIENCE_S = 60.0

_FIGURES = """
select count(*) as firings, count(distinct f.run) as runs, count(t.id) as tasks, count(t.started_at) as started,
    (select count(*) from headway.task_anywhere where labels ? 'schedule') as made,
    extract(epoch from max(f.fired_at) - $1)::float8 as last_fired_s, extract(epoch from max(t.started_at) - $1)::float8 as last_started_s,
    extract(epoch from percentile_disc(0.5) within group (order by t.started_at) - $1)::float8 as median_started_s
from headway.firing f left join headway.task_anywhere t on t.id = f.run
"""


async def measure(count: int) -> dict[str, Any]:
    async with throw_away() as instance:
        await durability.require(instance.connection)
        await instance.first_task()
        began = time.monotonic()
        await apply(instance, 0, min(count, CHUNK), start="2099-01-01T00:00:00Z")  # how fast is this machine?
        needed = (time.monotonic() - began) * (count / CHUNK) * 2 + 3
        now = await instance.connection.fetchval("select clock_timestamp()")
        start = (now + datetime.timedelta(seconds=needed)).replace(microsecond=0)
        began = time.monotonic()
        for first in range(0, count, CHUNK):
            await apply(instance, first, min(first + CHUNK, count), start=start.isoformat())
        applied_s = time.monotonic() - began
        if await instance.connection.fetchval("select clock_timestamp() > $1", start):
            raise SystemExit("the schedules were not all there in time: run it again on a quieter machine")
        return {"schedules": count, "applied_s": round(applied_s, 1), **await wait(instance, start, count)}


async def apply(instance: Instance, first: int, end: int, *, start: str) -> None:
    schedules = [
        {"name": f"s{n}", "schedule": 3600, "start": start,
         "task": {"function": bodies.NOOP, "input": [f"schedule {n}"], "retry": {"max": 300 + n}}}
        for n in range(first, end)
    ]  # fmt: skip
    await instance.http.request("POST", "/v1/schedules", body=msgspec.json.encode(schedules), timeout=120)


async def wait(instance: Instance, start: datetime.datetime, count: int) -> dict[str, Any]:
    """What the database knows once every task has started, or patience is at its end."""
    ahead = (start - datetime.datetime.now(datetime.UTC)).total_seconds()
    await asyncio.sleep(max(0.0, ahead - 0.1))
    before = cpu_seconds(instance.roots)
    deadline = time.monotonic() + (start - datetime.datetime.now(datetime.UTC)).total_seconds() + PATIENCE_S
    question = "select count(*) from headway.task_history where labels ? 'schedule'"
    while time.monotonic() < deadline and await instance.connection.fetchval(question) < count:
        await asyncio.sleep(1.0)
    used = cpu_seconds(instance.roots) - before  # by two: what it takes on two cores that nobody else uses
    found = {**await instance.connection.fetchrow(_FIGURES, start), "cpu_s": used}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--schedules", type=int, default=10_000)
    count = parser.parse_args().schedules
    figures = asyncio.run(measure(count))
    for name, value in figures.items():
        print(f"{name:>18}  {value}")
    once = all(figures[name] == count for name in ("firings", "runs", "tasks", "started", "made"))
    in_time = (figures["last_started_s"] or BAR_S + 1) <= BAR_S
    print(f"{'none twice':>18}  {once}\n{'within 5 s':>18}  {in_time}")
    return 0 if once and in_time else 1


if __name__ == "__main__":
    sys.exit(main())
