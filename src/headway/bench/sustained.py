"""Ten minutes under full load: does the last minute do what the first did, and do the hot tables stay small?"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headway.bench import companions
from headway.bench.figures import rate, three_digits
from headway.bench.instance import Instance
from headway.bench.ledger import Ids, WrongCount
from headway.bench.load import Plan, Sent
from headway.bench.scenarios import BULK
from headway.domain.units import size_text

DEEP, SHALLOW = 40_000, 20_000  # the backlog is kept between: deep enough that nobody waits for the generator
STEP_S = 0.5


async def sustained(instance: Instance, seconds: float) -> dict[str, Any]:
    """Rates of the first and the last tenth, and the sizes at both ends. The rest is as in `end_to_end`."""
    ledger = instance.ledger
    plan = Plan(instance.url, instance.tenant_tokens or [instance.token], "mixed", per_request=BULK, connections=4)
    small = await ledger.sizes()
    base = await ledger.finishes_so_far()
    async with companions.listener(instance.url, instance.token), companions.generator(plan) as generator:
        generator.say("go")
        samples = await feed(instance, generator, base=base, seconds=seconds)
        generator.finish()
        sent = await generator.answer(Sent)
    ids = Ids(sent.first_id, sent.last_id, sent.tasks)
    ended = await ledger.all_finished(ids)
    await ledger.require_success(ids, "noop")
    await ledger.require_results(ids)
    tenth = seconds / 10
    first = _rate_between(samples, sent.began + STEP_S, sent.began + STEP_S + tenth)
    last = _rate_between(samples, samples[-1][0] - tenth, samples[-1][0])
    return {
        "sustained_first_per_s": three_digits(first),
        "sustained_last_per_s": three_digits(last),
        "sustained_ratio": round(last / first, 3),
        "sustained_per_s": three_digits(sent.tasks / (ended - sent.began)),
        "sustained_tasks": sent.tasks,
        "hot_sizes_before": {name: size_text(size) for name, size in small.items()},
        "hot_sizes_after": {name: size_text(size) for name, size in (await ledger.sizes()).items()},
    }


async def feed(instance: Instance, generator: companions.Companion, *, base: int, seconds: float) -> list[tuple[float, int]]:
    """Keep the backlog between its borders for so long; (time, finishes) all the way."""
    samples: list[tuple[float, int]] = []
    end, going = time.monotonic() + seconds, True
    while time.monotonic() < end:
        await asyncio.sleep(STEP_S)
        samples.append((time.monotonic(), await instance.ledger.finishes_so_far() - base))
        waiting = await instance.ledger.waiting()
        if going and waiting > DEEP:
            generator.say("pause")
            going = False
        elif not going and waiting < SHALLOW:
            generator.say("resume")
            going = True
    return samples


def _rate_between(samples: list[tuple[float, int]], begin: float, end: float) -> float:
    inside = [sample for sample in samples if begin <= sample[0] <= end]
    if len(inside) < 2:
        raise WrongCount("the run was too short for a first and a last tenth")
    return rate(inside[0], inside[-1])
