"""What the rate limiter costs each task on the fast way (A3 promises under 2 µs): `python bench/micro/allowances.py`.

Compares a tenant without limits, and one with rate and quota whose tokens are at hand, with an empty coroutine.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headway.control.allowances import Allowance, Allowances
from headway.control.bus import Bus
from headway.control.tenants import Tenants
from headway.domain.tenant import Subscription

COUNT = 200_000


async def nothing(_tenant: int, _count: int) -> None:
    return None


async def cost(call: Any, tenant: int, size: int) -> float:
    """µs a request."""
    began = time.perf_counter()
    for _ in range(COUNT):
        await call(tenant, size)
    return (time.perf_counter() - began) / COUNT * 1e6


async def main() -> None:
    database: Any = None  # the fast way never asks it
    allowances = Allowances(database, Tenants(database, Bus()), "bench")
    mine = allowances.limited[2] = Allowance(Subscription(rate_per_hour=1e9, burst=10**9, max_waiting=10**9))
    mine.tokens, mine.slots, mine.until = 1e12, 10**12, float("inf")
    floor = await cost(nothing, 1, 1)
    for words, tenant, size in (("no limits", 1, 1), ("rate and quota, one task", 2, 1), ("rate and quota, bulk of 500", 2, 500)):
        spent = await cost(allowances.take, tenant, size)
        print(f"{words:30} {max(0.0, spent - floor) / size:7.3f} µs a task (an empty call: {floor:.3f})")


if __name__ == "__main__":
    asyncio.run(main())
