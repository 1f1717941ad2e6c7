"""Checkpoints (H8): agents save and fetch folders for the attempts they run, functions save and read values for themselves."""

from __future__ import annotations

import re

import msgspec
from litestar import Response, get, post, put
from litestar.params import FromPath

from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of, id_of
from headway.api.tasks import one
from headway.control.checkpoints import Writer
from headway.errors import Forbidden, InvalidInput, NotFound
from headway.wire.views.tasks import Saved

_HASH = re.compile(r"[0-9a-f]{64}")
BYTES = "application/octet-stream"


class Announced(msgspec.Struct, forbid_unknown_fields=True):
    """A folder, packed: its attempt, its SHA-256 in hexadecimal, its size in bytes. `damaged`: it was fetched and is not whole."""

    attempt: int
    hash: str
    size: int = 0
    damaged: bool = False


@post("/v1/nodes/{node:int}/checkpoints/{task_id:str}", status_code=200)
async def announce(request: Http, node: FromPath[int], task_id: FromPath[str]) -> Response[bytes]:
    """Saves a folder whose chunks are here; otherwise says that they must be sent first."""
    await caller_of(request, "agent", "admin")
    core = core_of(request)
    said = await body_of(request, Announced)
    writer = Writer(id_of(task_id), _whole(said.attempt, "attempt"), _whole(node, "node"))
    if said.damaged:
        await core.checkpoints.reject(writer, _digest(said.hash))
        return answer(Saved(False))
    return answer(Saved(await core.checkpoints.announce(writer, _digest(said.hash), said.size)))


@put("/v1/nodes/{node:int}/checkpoints/{task_id:str}/{digest:str}/{number:int}", status_code=200)
async def put_chunk(
    request: Http, node: FromPath[int], task_id: FromPath[str], digest: FromPath[str], number: FromPath[int]
) -> Response[bytes]:
    """One chunk of an announced folder: 1 MiB, the last one what is left; the same again changes nothing."""
    await caller_of(request, "agent", "admin")
    core = core_of(request)
    size, attempt = (_whole(_number(request, name), name) for name in ("size", "attempt"))
    writer = Writer(id_of(task_id), attempt, _whole(node, "node"))
    await core.checkpoints.put_chunk(writer, _digest(digest), size, _whole(number, "number"), await request.body())
    return answer(Saved(False))


@get("/v1/nodes/{node:int}/checkpoints/{task_id:str}/{digest:str}/{number:int}")
async def get_chunk(
    request: Http, node: FromPath[int], task_id: FromPath[str], digest: FromPath[str], number: FromPath[int]
) -> Response[bytes]:
    """One chunk of a checkpoint of the task that the node's attempt belongs to."""
    await caller_of(request, "agent", "admin")
    core = core_of(request)
    writer = Writer(id_of(task_id), _whole(_number(request, "attempt"), "attempt"), _whole(node, "node"))
    return Response(await core.checkpoints.chunk(writer, _digest(digest), _whole(number, "number")), media_type=BYTES)


@put("/v1/tasks/{task_id:str}/checkpoint", status_code=200)
async def save(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """A running task saves a value: the body, as it is. Durable when answered."""
    caller = await caller_of(request, "task")
    if caller.task != id_of(task_id):
        raise Forbidden("a task saves checkpoints of its own only")
    await core_of(request).checkpoints.save_value(Writer(caller.task, caller.attempt), await request.body())
    return answer(Saved(True))


@get("/v1/tasks/{task_id:str}/checkpoint")
async def last(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """The value that a task saved last, of those that are not damaged."""
    caller = await caller_of(request, *PEOPLE, "task")
    core, task = core_of(request), id_of(task_id)
    if caller.role == "task" and caller.task != task:
        raise Forbidden("a task reads checkpoints of its own only")
    await one(core, task, caller.scope)
    found = await core.checkpoints.last_value(task)
    if found is None:
        raise NotFound(f"task {task} has saved no checkpoint", hint="a folder is fetched by the node that runs its next attempt")
    return Response(found, media_type=BYTES)


def _digest(text: str) -> bytes:
    if not _HASH.fullmatch(text):
        raise InvalidInput("hash: it is no SHA-256", field="hash", hint="64 hexadecimal digits")
    return bytes.fromhex(text)


def _number(request: Http, name: str) -> int:
    text = request.query_params.get(name) or ""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(f"{name}: {text[:20]!r} is not a number", field=name)
    return int(text)


def _whole(value: int, name: str) -> int:
    if not 0 <= value < 2**31:
        raise InvalidInput(f"{name}: {value} is out of range", field=name)
    return value


ROUTES = [announce, put_chunk, get_chunk, save, last]
