"""What tests of the order share: tenants with subscriptions, and what explain says of a task."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.control.core import Core
from headway.domain.tenant import Subscription, SubscriptionSpec, changed
from headway.store.queries import query
from headway.wire.views.explanations import Explanation
from tests.support.engine import ScriptedAgent

LONG = {"delay_tolerance": "1h"}


async def tenant(core: Core, name: str, **subscription: Any) -> int:
    number, _ = await core.access.add_tenant(name)
    if subscription:
        new = changed(Subscription(), SubscriptionSpec(**subscription))
        async with core.database.cold() as connection:
            await connection.execute(
                "update tenant set subscription = $2::jsonb, changed_at = clock_timestamp() where id = $1",
                number,
                msgspec.json.encode(new).decode(),
            )
    await core.tenants.refresh()
    return number


async def explained(core: Core, task: int, scope: int | None = None) -> Explanation:
    """What an administrator is told of a task, or the tenant `scope`."""
    async with core.database.cold() as connection:
        row = await connection.fetchrow(query("read.one"), [task], scope)
    return await core.explaining.explain(row, scope)


async def codes(core: Core, task: int) -> list[str]:
    await core.outlook.run_once()
    return [reason.code for reason in (await explained(core, task)).reasons]


async def nothing_comes(agent: ScriptedAgent) -> bool:
    """After a round of planning there is still no order."""
    await agent.core.planner.run_once()
    return (await agent.say(wait_s=0.0)).orders == []
