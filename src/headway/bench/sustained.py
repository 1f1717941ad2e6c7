"""Ten minutes under full load: does the last minute do what the first did, and do the hot tables stay small?"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headway.bench import companions
from headway.bench.figures import three_digits
from headway.bench.instance import Instance
from headway.bench.ledger import Backlog, Ids
from headway.bench.load import Plan, Sent
from headway.bench.scenarios import BULK
from headway.domain.units import size_text

DEEP, SHALLOW = 40_000, 20_000  # the backlog is kept between: deep enough that nobody waits for the generator
STEP_S = 0.25  # in which nobody ends SHALLOW tasks, and a look at the backlog (up to 10 ms) costs little
FILL_S = 10.0
TENTHS = 10


async def sustained(instance: Instance, seconds: float) -> dict[str, Any]:
    """Rates of the first and the last tenth, and the sizes at both ends. The rest is as in `end_to_end`."""
    ledger = instance.ledger
    plan = Plan(instance.url, instance.tenant_tokens or [instance.token], "mixed", per_request=BULK, connections=4)
    small = await ledger.sizes()
    backlog = await ledger.backlog()
    async with companions.listener(instance.url, instance.token), companions.generator(plan) as generator:
        generator.say("go")
        await fill(backlog)
        since = await ledger.now()
        least = await feed(backlog, generator, seconds=seconds)
        generator.finish()
        sent = await generator.answer(Sent)
    ids = Ids(sent.first_id, sent.last_id, sent.tasks)
    ended = await ledger.all_finished(ids)
    await ledger.require_success(ids, "noop")
    await ledger.require_results(ids)
    rates = [count / seconds * TENTHS for count in await ledger.finishes_by_parts(ids, since, part_s=seconds / TENTHS, parts=TENTHS)]
    return {
        "sustained_first_per_s": three_digits(rates[0]),
        "sustained_last_per_s": three_digits(rates[-1]),
        "sustained_ratio": round(rates[-1] / rates[0], 3),
        "sustained_slowest_tenth_per_s": three_digits(min(rates)),
        "sustained_per_s": three_digits(sent.tasks / (ended - sent.began)),
        "sustained_tasks": sent.tasks,
        "sustained_least_waiting": least,
        "hot_sizes_before": {name: size_text(size) for name, size in small.items()},
        "hot_sizes_after": {name: size_text(size) for name, size in (await ledger.sizes()).items()},
    }


async def fill(backlog: Backlog) -> None:
    """Until enough waits for the figures to begin; where tasks end as fast as they are sent, that is never."""
    end = time.monotonic() + FILL_S
    while await backlog.look(SHALLOW) < SHALLOW and time.monotonic() < end:
        await asyncio.sleep(STEP_S)


async def feed(backlog: Backlog, generator: companions.Companion, *, seconds: float) -> int:
    """Keep the backlog between its borders for so long; how many tasks waited at the least."""
    end, going, least = time.monotonic() + seconds, True, DEEP
    while time.monotonic() < end:
        waiting = await backlog.look(DEEP)
        least = min(least, waiting)
        if going and waiting >= DEEP:
            generator.say("pause")
            going = False
        elif not going and waiting < SHALLOW:
            generator.say("resume")
            going = True
        await asyncio.sleep(STEP_S)
    return least
