"""Queues, stats, tiers, tenants and tokens, metrics, health."""

from __future__ import annotations

import secrets

import msgspec
from litestar import Response, get, post
from prometheus_client import generate_latest

from headway import telemetry
from headway.api.queues import shares_of
from headway.api.render import resources_view
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of
from headway.domain.resources import DIMENSIONS, TIERS
from headway.domain.task import check_name
from headway.errors import Conflict, InvalidInput, Unavailable
from headway.store.queries import query
from headway.version import VERSION
from headway.wire.views import Stats

_DEAD = query("read.dead_count")
_LEADERS = query("duty.leaders")
_TENANTS = query("token.tenants")


class NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """A token for a role; `tenant` (its name) only with the role tenant."""

    role: str = "tenant"
    tenant: str | None = None
    name: str = ""


@get("/v1/stats")
async def stats(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    found, states = await core.queue_views.look(caller.scope)
    plan = await core.outlook.read()
    async with core.database.cold() as connection:
        leaders = await connection.fetch(_LEADERS)
        states["failed"] = await connection.fetchval(_DEAD)
    nodes: dict[str, int] = {}
    for node in core.fleet.nodes.values():
        nodes[node.word] = nodes.get(node.word, 0) + 1
    up = [node for node in core.fleet.nodes.values() if node.accepting]
    total = sum(node.capacity.cpus_milli for node in up) / 1000
    held = sum(room.capacity.cpus_milli - room.free[0] for room in core.planner.rooms.values() if room.accepting) / 1000
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
        )
    )


@get("/v1/tiers")
async def tiers(request: Http) -> Response[bytes]:
    await caller_of(request, *PEOPLE)
    return answer({name: resources_view(need, name) for name, need in TIERS.items()})


@get("/v1/whoami")
async def whoami(request: Http) -> Response[bytes]:
    caller = await caller_of(request)
    return answer({"tenant": caller.tenant_name, "role": caller.role})


@get("/v1/tenants")
async def list_tenants(request: Http) -> Response[bytes]:
    await caller_of(request, "admin")
    async with core_of(request).database.cold() as connection:
        return answer([{"id": row["id"], "name": row["name"]} for row in await connection.fetch(_TENANTS)])


@post("/v1/tenants", status_code=201)
async def add_tenant(request: Http) -> Response[bytes]:
    await caller_of(request, "admin")
    asked = await body_of(request, NewTenant)
    check_name(asked.name)
    tenant, created = await core_of(request).access.add_tenant(asked.name)
    if not created:
        raise Conflict(f"there is a tenant {asked.name!r} already")
    return answer({"id": tenant, "name": asked.name}, 201)


@post("/v1/keys", status_code=201)
async def add_key(request: Http) -> Response[bytes]:
    """A new token, shown once."""
    await caller_of(request, "admin")
    core, asked = core_of(request), await body_of(request, NewKey)
    if asked.role not in ("admin", "tenant", "agent"):
        raise InvalidInput(f"role: {asked.role[:20]!r} is unknown", field="role", hint="admin, tenant or agent")
    if (asked.role == "tenant") != (asked.tenant is not None):
        raise InvalidInput("tenant: needed for the role tenant, and only for it", field="tenant")
    tenant = None
    if asked.tenant is not None:
        async with core.database.cold() as connection:
            names = {row["name"]: row["id"] for row in await connection.fetch(_TENANTS)}
        if asked.tenant not in names:
            raise InvalidInput(f"tenant: there is no tenant {asked.tenant[:40]!r}", field="tenant")
        tenant = names[asked.tenant]
    if asked.name:
        check_name(asked.name)
    token = f"hw_{asked.role}_{secrets.token_urlsafe(24)}"
    await core.access.add(token, asked.role, tenant=tenant, name=asked.name)
    return answer({"token": token, "role": asked.role, "tenant": asked.tenant}, 201)


@get("/metrics")
async def metrics(request: Http) -> Response[bytes]:
    """Prometheus text; needs a token like everything that tells about tenants."""
    await caller_of(request)
    core = core_of(request)
    found, _ = await core.queue_views.look(None)
    for queue in found:
        for state in ("ready", "scheduled", "blocked", "running"):
            telemetry.QUEUE_DEPTH.labels(queue=queue.name, state=state).set(getattr(queue, state))
        telemetry.QUEUE_OLDEST.labels(queue=queue.name).set(queue.oldest_ready_s or 0.0)
    async with core.database.cold() as connection:
        telemetry.DEAD_LETTERS.set(await connection.fetchval(_DEAD))
    for i, dimension in enumerate(DIMENSIONS):
        up = [node for node in core.fleet.nodes.values() if node.accepting]
        telemetry.NODE_CAPACITY.labels(resource=dimension).set(sum(node.capacity.amounts()[i] for node in up))
        rooms = [room for room in core.planner.rooms.values() if room.accepting]
        telemetry.NODE_ALLOCATED.labels(resource=dimension).set(sum(r.capacity.amounts()[i] - r.free[i] for r in rooms))
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
    async with core.database.cold() as connection:
        await connection.fetchval("select 1")
    return answer({"status": "ok"})


ROUTES = [stats, tiers, whoami, list_tenants, add_tenant, add_key, metrics, livez, readyz]
