"""What every route needs of a request: who calls, the core, decoded bodies, ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response

from headway import wire
from headway.api.problems import rate_headers
from headway.control.access import Caller
from headway.control.core import Core
from headway.domain.identity import MAX_ID
from headway.domain.wrong_kind import decoded
from headway.errors import InvalidInput, NotFound, VersionMismatch
from headway.store.queries import query
from headway.wire.exchange import MSGPACK, encode_msgpack

Http = Request[Any, Any, Any]
Body = TypeVar("Body")
_STRANGERS = query("subtask.strangers")


async def refuse_nul(request: Http) -> None:
    """Before every handler: no name has a NUL character in it, and PostgreSQL cannot even be asked for one."""
    path = request.scope["path"]
    if "\0" in path:
        raise NotFound(f"there is nothing at {path[:200]!r}: it has a NUL character")
    if b"%00" in request.scope["query_string"]:
        name = next(name for name, value in request.query_params.multi_items() if "\0" in name + value)
        raise InvalidInput(f"{name[:40]!r}: a NUL character in a parameter", field=name[:40])


def core_of(request: Http) -> Core:
    core: Core = request.app.state.core
    return core


async def caller_of(request: Http, *roles: str) -> Caller:
    """The caller, checked for its protocol and, if any are given, its role."""
    spoken = request.headers.get(wire.PROTOCOL_HEADER)
    if spoken is not None and spoken != str(wire.PROTOCOL):
        raise VersionMismatch(
            f"the caller speaks protocol {spoken[:20]}, this server {wire.PROTOCOL}",
            hint="use the same version of Headway on both sides",
        )
    caller = await core_of(request).access.caller(request.headers.get("authorization"))
    if roles:
        caller.need(*roles, reads=request.method == "GET" or request.scope["path"] in _ONLY_READ)
    return caller


async def while_known(request: Http, batches: AsyncIterator[Body]) -> AsyncIterator[Body]:
    """What a stream sends, until the token that asked for it expires or is revoked. It breaks off then: who comes again is told why."""
    access, said = core_of(request).access, request.headers.get("authorization")
    async for batch in batches:
        await access.caller(said)
        yield batch


PEOPLE = ("admin", "tenant")
_ONLY_READ = ("/v1/tasks/wait",)
TASKS = (*PEOPLE, "task")  # a running task submits subtasks and reads them


async def may_see(core: Core, caller: Caller, *tasks: int) -> None:
    """A running task sees itself and its own subtasks, and nothing else of its tenant."""
    if caller.role != "task":
        return
    async with core.database.cold() as connection:
        strangers = await connection.fetch(_STRANGERS, caller.task, list(tasks))
    if strangers:
        raise NotFound(f"task {caller.task} has no subtask {strangers[0]['id']}")


async def body_of(request: Http, kind: type[Body]) -> Body:
    """The JSON (or MessagePack) body as a struct, with our errors."""
    return decode_body(await request.body() or b"{}", kind, packed=is_packed(request))


def is_packed(request: Http) -> bool:
    return request.headers.get("content-type") == MSGPACK


def decode_body(body: bytes, kind: type[Body], *, packed: bool = False) -> Body:
    decoder = msgspec.msgpack.Decoder(kind) if packed else msgspec.json.Decoder(kind)
    return decoded(decoder.decode, body, getattr(kind, "__struct_fields__", ()))


def id_of(text: str | int, what: str = "task") -> int:
    """A path or body id; what is not a possible id is simply not found."""
    value = int(text) if isinstance(text, int) or (text.isascii() and text.isdigit() and len(text) < 20) else -1
    if not 0 < value <= MAX_ID:
        raise NotFound(f"there is no {what} {str(text)[:40]!r}")
    return value


def answer_in_kind(request: Http, value: Any, status: int = 200) -> Response[bytes]:
    """MessagePack to who sent MessagePack."""
    if is_packed(request):
        return Response(encode_msgpack(value), status_code=status, media_type=MSGPACK)
    return answer(value, status)


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json", headers=headers)


def rate_headers_of(core: Core, tenant: int) -> dict[str, str] | None:
    """The rate limiter's fields for the answer to a submission; None for a tenant without a rate."""
    rate = core.allowances.rate_of(tenant)
    return None if rate is None else rate_headers(*rate)
