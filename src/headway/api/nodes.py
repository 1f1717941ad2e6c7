"""/v1/nodes: agents register and exchange; people look and drain."""

from __future__ import annotations

from litestar import Response, delete, get, post
from litestar.params import FromPath

from headway.api.render import allocated_view
from headway.api.request import PEOPLE, Http, answer, answer_in_kind, body_of, caller_of, core_of
from headway.control.core import Core
from headway.control.fleet import Node
from headway.errors import Conflict, NotFound
from headway.store.queries import query
from headway.wire.exchange import Exchange, Register
from headway.wire.views.answers import Changed
from headway.wire.views.fleet import NodeView

_ALLOCATED = query("task.allocated")
_DRAIN = query("node.set_drain")
_REMOVE = query("node.remove")


@post("/v1/nodes", status_code=201)
async def register(request: Http) -> Response[bytes]:
    """An agent announces its machine."""
    await caller_of(request, "agent", "admin")
    return answer_in_kind(request, await core_of(request).exchanges.register(await body_of(request, Register)), 201)


@post("/v1/nodes/{node:int}/exchange", status_code=200)
async def exchange(request: Http, node: FromPath[int]) -> Response[bytes]:
    """The one call of an agent; JSON or MessagePack, answered in kind."""
    await caller_of(request, "agent", "admin")
    if not 0 <= node < 2**31:
        raise NotFound(f"there is no node {node}")
    reply = await core_of(request).exchanges.exchange(node, await body_of(request, Exchange))
    return answer_in_kind(request, reply)


@get("/v1/nodes")
async def list_nodes(request: Http) -> Response[bytes]:
    """All nodes. The machines are the operator's: a tenant sees none."""
    caller = await caller_of(request, *PEOPLE)
    return answer(await views(core_of(request)) if caller.scope is None else [])


@get("/v1/nodes/{name:str}")
async def show_node(request: Http, name: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    if caller.scope is not None:
        raise NotFound("a tenant sees no nodes: they are the operator's")
    node = _find(core, name)
    return answer(next(view for view in await views(core) if view.id == node.id))


@post("/v1/nodes/{name:str}/drain", status_code=200)
async def drain(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Takes nothing new; what runs goes on to its end."""
    return await _set_drain(request, name, True)


@post("/v1/nodes/{name:str}/undrain", status_code=200)
async def undrain(request: Http, name: FromPath[str]) -> Response[bytes]:
    return await _set_drain(request, name, False)


@delete("/v1/nodes/{name:str}", status_code=200)
async def remove(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Forgets a node that is lost or gone: tasks that only it could run no longer wait for it. Its agent may register again."""
    await caller_of(request, "admin")
    core = core_of(request)
    await core.fleet.refresh()
    node = _find(core, name)
    async with core.database.hot() as connection:
        gone = await connection.fetchval(_REMOVE, node.id)
    if gone is None:
        raise Conflict(
            f"node {node.name} is {node.word}, and may hold tasks",
            hint=f"end its agent first (`headway node drain {node.name}` lets it finish), or wait until it is lost or gone",
        )
    await core.fleet.refresh()
    return answer(Changed(1, [node.name]))


async def _set_drain(request: Http, name: str, value: bool) -> Response[bytes]:
    await caller_of(request, "admin")
    core = core_of(request)
    node = _find(core, name)
    async with core.database.hot() as connection:
        await connection.execute(_DRAIN, node.id, value)
    return answer(next(view for view in await views(core) if view.id == node.id))


def _find(core: Core, name: str) -> Node:
    node = core.fleet.by_name(name)
    if node is None:
        raise _missing(name)
    return node


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no node {name[:60]!r}", hint="see `headway node ls`")


async def views(core: Core) -> list[NodeView]:
    """All nodes with what they hold."""
    await core.fleet.refresh()
    async with core.database.hot() as connection:
        rows = await connection.fetch(_ALLOCATED, list(core.fleet.nodes))
    await core.definitions.load_shapes(row["shape"] for row in rows)
    held: dict[int, dict[int, int]] = {}
    for row in rows:
        there = held.setdefault(row["node"], {})
        there[row["shape"]] = there.get(row["shape"], 0) + row["count"]
    return [
        NodeView(
            id=node.id,
            name=node.name,
            state=node.word,
            cpus=node.capacity.cpus_milli / 1000,
            memory=node.capacity.memory,
            disk=node.capacity.disk,
            labels=node.capacity.labels,
            running=sum(held.get(node.id, {}).values()),
            allocated=allocated_view(held.get(node.id, {}), core.definitions, node.capacity),
            seen_at=node.seen_at,
            version=node.version,
            region=node.region,
            trouble=node.trouble,
            clock_s=node.clock_ms / 1000,
        )
        for node in core.fleet.nodes.values()
    ]


ROUTES = [register, exchange, list_nodes, show_node, drain, undrain, remove]
