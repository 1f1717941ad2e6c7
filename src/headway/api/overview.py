"""Stats, metrics, health."""

from __future__ import annotations

import asyncio

from litestar import Response, get
from prometheus_client import generate_latest

from headway import telemetry
from headway.api.queues import shares_of
from headway.api.request import PEOPLE, Http, answer, caller_of, core_of
from headway.control.core import Core
from headway.control.fleet import NODE_WORDS
from headway.domain.resources import DIMENSIONS
from headway.errors import Unavailable
from headway.store.queries import query
from headway.version import VERSION
from headway.wire.views.fleet import QueueView, ShareView, Stats

_DEAD = query("read.dead_count")
_OWN_DEAD = query("allowance.dead")
COUNTED = 100_000
READY_S = 3.0  # who asks whether we are ready has somewhere else to go
_LEADERS = query("duty.leaders")


@get("/v1/stats")
async def stats(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    found, states = await core.queue_views.look(caller.scope)
    plan = await core.outlook.read()
    if caller.scope is not None:
        return answer(await _own(core, caller.scope, found, states, shares_of(core, plan, caller.scope)))
    async with core.database.reads() as connection:
        leaders = await connection.fetch(_LEADERS)
        states["failed"] = await connection.fetchval(_DEAD)
    nodes: dict[str, int] = {}
    for node in core.fleet.nodes.values():
        nodes[node.word] = nodes.get(node.word, 0) + 1
    up = [node for node in core.fleet.nodes.values() if not node.closed]
    total = sum(node.capacity.cpus_milli for node in up) / 1000
    held = sum(room.capacity.cpus_milli - room.free[0] for room in core.planner.rooms.values() if not room.closed) / 1000
    rates = core.rates.now()
    return answer(
        Stats(
            states=states,
            nodes=nodes,
            queues=found,
            finished_per_s=rates.get("finished", 0.0),
            submitted_per_s=rates.get("submitted", 0.0),
            servers=len(core.servers),
            leaders={row["name"]: row["holder"] for row in leaders if row["live"]},
            version=VERSION,
            free_cpus=max(0.0, total - held),
            total_cpus=total,
            utilisation=plan.utilisation,
            peak=plan.peak,
            top_k=plan.top_k,
            drain_per_s=plan.drain_per_s,
            promoted=plan.promoted,
            shares=shares_of(core, plan, caller.scope),
            jain=plan.jain,
            trouble=core.database.trouble,
        )
    )


async def _own(core: Core, tenant: int, queues: list[QueueView], states: dict[str, int], shares: list[ShareView]) -> Stats:
    """What a tenant sees: its own tasks and share, nothing of the machines or of others (A7)."""
    async with core.database.reads() as connection:
        states["failed"] = await connection.fetchval(_OWN_DEAD, tenant, COUNTED)
    return Stats(
        states=states, nodes={}, queues=queues, finished_per_s=0.0, submitted_per_s=0.0, servers=0, leaders={}, version=VERSION,
        free_cpus=0.0, total_cpus=0.0, shares=shares,
    )  # fmt: skip


@get("/metrics")
async def metrics(request: Http) -> Response[bytes]:
    """Prometheus text about all tenants together: for administrators, and readers without a tenant."""
    await caller_of(request, "admin")
    core = core_of(request)
    found, _ = await core.queue_views.look(None)
    for queue in found:
        for state in ("ready", "scheduled", "blocked", "running"):
            telemetry.QUEUE_DEPTH.labels(queue=queue.name, state=state).set(getattr(queue, state))
        telemetry.QUEUE_OLDEST.labels(queue=queue.name).set(queue.oldest_ready_s or 0.0)
    async with core.database.reads() as connection:
        telemetry.DEAD_LETTERS.set(await connection.fetchval(_DEAD))
    for state in NODE_WORDS:
        telemetry.NODES.labels(state=state).set(sum(node.word == state for node in core.fleet.nodes.values()))
    for i, dimension in enumerate(DIMENSIONS):
        unit = 1000 if dimension == "cpus" else 1  # counted in thousandths
        up = [node for node in core.fleet.nodes.values() if not node.closed]
        telemetry.NODE_CAPACITY.labels(resource=dimension).set(sum(node.capacity.amounts()[i] for node in up) / unit)
        rooms = [room for room in core.planner.rooms.values() if not room.closed]
        taken = sum(min(room.capacity.amounts()[i] - room.free[i], room.capacity.amounts()[i]) for room in rooms)
        telemetry.NODE_ALLOCATED.labels(resource=dimension).set(taken / unit)
    return Response(generate_latest(telemetry.registry), media_type="text/plain; version=0.0.4")


@get("/livez")
async def livez() -> Response[bytes]:
    return answer({"status": "ok"})


@get("/readyz")
async def readyz(request: Http) -> Response[bytes]:
    """Whether this server can admit tasks now: the database answers."""
    core = core_of(request)
    if not core.ready:
        raise Unavailable("the server is starting or stopping")
    try:
        async with asyncio.timeout(READY_S), core.database.cold() as connection:  # as our duties: people who ask much do not make us unfit
            await connection.fetchval("select 1")
    except TimeoutError:  # of a connection that has to be made first, too
        raise Unavailable(f"the database did not answer within {READY_S:g} s") from None
    return answer({"status": "ok"})


ROUTES = [stats, metrics, livez, readyz]
