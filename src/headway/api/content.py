"""/v1/uploads, /v1/pins, /v1/secrets and /v1/tasks/{id}/once: what tasks run, may know, and do once (H1 H10 H11)."""

from __future__ import annotations

import datetime
import re
from typing import Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath
from litestar.response import Stream

from headway.api.request import PEOPLE, TASKS, Http, answer, body_of, caller_of, core_of, id_of
from headway.domain.content import check_secret_name
from headway.errors import Forbidden, InvalidInput, NotFound, TooLarge
from headway.store.queries import query

LARGEST_UPLOAD = 64 * 2**20
_HASH = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[^/\x00-\x1f\x7f]{1,200}")
_PINS = query("content.pins")
_UNPIN = query("content.unpin")


class Uploaded(msgspec.Struct):
    """`executable` goes into a task as it is."""

    executable: str
    sha256: str
    size: int


class Pin(msgspec.Struct, forbid_unknown_fields=True):
    """What a URL was when it was first fetched."""

    url: str
    sha256: str


class PinView(msgspec.Struct):
    url: str
    sha256: str
    pinned_at: datetime.datetime


class NewSecret(msgspec.Struct, forbid_unknown_fields=True):
    value: str


class SecretView(msgspec.Struct):
    """Never the value."""

    name: str
    changed_at: datetime.datetime


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    """`step` is claim, done or release. `again` takes over what an earlier attempt of the same task left uncertain."""

    key: str
    attempt: int
    step: str = "claim"
    again: bool = False
    value: Any = None


class ClaimView(msgspec.Struct):
    """yours, done, uncertain or taken; by which task and attempt."""

    state: str
    task: str
    attempt: int
    value: Any = None


@post("/v1/uploads", status_code=201)
async def upload(request: Http) -> Response[bytes]:
    """Keeps the body for the caller's tenant, once for each content."""
    caller = await caller_of(request, *TASKS)
    name = request.query_params.get("name") or "upload"
    if not _FILE_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidInput(f"name: {name[:40]!r} is not a file name", field="name", hint="its suffix says what runs it")
    body = await request.body()
    if len(body) > LARGEST_UPLOAD:
        raise TooLarge(f"{len(body)} bytes are too many", hint=f"at most {LARGEST_UPLOAD}; use a URL or a volume")
    digest = await core_of(request).contents.keep(caller.tenant, body)
    return answer(Uploaded(f"upload:{digest}/{name}", digest, len(body)), 201)


@get("/v1/nodes/definitions/{definition:int}/uploads/{digest:str}")
async def fetch_upload(request: Http, definition: FromPath[int], digest: FromPath[str]) -> Stream:
    """For agents: an upload that a definition names."""
    await caller_of(request, "agent", "admin")
    if not _HASH.fullmatch(digest) or not 0 < definition < 2**31:
        raise NotFound("there is no such upload")
    return Stream(await core_of(request).contents.pieces(definition, digest), media_type="application/octet-stream")


@post("/v1/nodes/definitions/{definition:int}/pins", status_code=200)
async def pin(request: Http, definition: FromPath[int]) -> Response[bytes]:
    """For agents: what a URL was when it was first fetched for the definition's tenant; now, when it never was."""
    await caller_of(request, "agent", "admin")
    asked = await body_of(request, Pin)
    if (
        not _HASH.fullmatch(asked.sha256)
        or not 0 < len(asked.url) <= 4096
        or not asked.url.isprintable()
        or not 0 < definition < 2**31
    ):
        raise InvalidInput("sha256: expected 64 hexadecimal digits and a URL", field="sha256")
    return answer(Pin(asked.url, await core_of(request).contents.pin(definition, asked.url, asked.sha256)))


@get("/v1/pins")
async def list_pins(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    async with core_of(request).database.reads() as connection:
        rows = await connection.fetch(_PINS, caller.tenant)
    return answer([PinView(row["url"], row["sha256"].hex(), row["pinned_at"]) for row in rows])


@delete("/v1/pins", status_code=200)
async def unpin(request: Http) -> Response[bytes]:
    """The next fetch pins the URL anew."""
    caller = await caller_of(request, *PEOPLE)
    url = request.query_params.get("url") or ""
    async with core_of(request).database.reads() as connection:
        found = await connection.fetchval(_UNPIN, caller.tenant, url) if "\0" not in url else None
    if found is None:
        raise NotFound("that URL is not pinned", hint="`headway pin ls` lists them")
    return answer({"url": found})


@get("/v1/secrets")
async def list_secrets(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    rows = await core_of(request).secrets.names(caller.tenant)
    return answer([SecretView(row["name"], row["changed_at"]) for row in rows])


@put("/v1/secrets/{name:str}", status_code=200)
async def set_secret(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Sets a secret of the caller's tenant; tasks that start from now on see the new value."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    await core.secrets.put(caller.tenant, name, (await body_of(request, NewSecret)).value)
    return answer(
        next(SecretView(r["name"], r["changed_at"]) for r in await core.secrets.names(caller.tenant) if r["name"] == name)
    )


@delete("/v1/secrets/{name:str}", status_code=200)
async def remove_secret(request: Http, name: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    check_secret_name(name)
    await core_of(request).secrets.remove(caller.tenant, name)
    return answer({"name": name})


@post("/v1/tasks/{task_id:str}/once", status_code=200)
async def once(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """From inside a running task: claim an effect, say that it has happened, or give it up."""
    caller = await caller_of(request, "task", "admin")
    core, task = core_of(request), id_of(task_id)
    asked = await body_of(request, Claim)
    if caller.role == "task" and (caller.task, caller.attempt) != (task, asked.attempt):
        raise Forbidden("a task claims for itself and its own attempt only")
    if not 0 <= asked.attempt < 2**31:
        raise InvalidInput(f"attempt: {asked.attempt} is out of range", field="attempt")
    if asked.step == "claim":
        found = await core.once.claim(task, asked.attempt, asked.key, again=asked.again)
        value = msgspec.json.decode(found.value) if found.value else None
        return answer(ClaimView(found.state, str(found.task), found.attempt, value))
    if asked.step == "done":
        await core.once.done(task, asked.attempt, asked.key, None if asked.value is None else msgspec.json.encode(asked.value))
    elif asked.step == "release":
        await core.once.release(task, asked.attempt, asked.key)
    else:
        raise InvalidInput(f"step: {asked.step[:20]!r} is unknown", field="step", hint="claim, done or release")
    return answer(ClaimView(asked.step, str(task), asked.attempt))


ROUTES = [upload, fetch_upload, pin, list_pins, unpin, list_secrets, set_secret, remove_secret, once]
