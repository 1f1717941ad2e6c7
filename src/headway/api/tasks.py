"""/v1/tasks: submit, look up, list, wait, cancel, retry, logs."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath
from litestar.response import Stream

from headway.api.query import filter_of, one_page, seconds_of
from headway.api.render import attempt_view, definition_of, task_view, with_io
from headway.api.request import (
    PEOPLE,
    TASKS,
    Http,
    answer,
    body_of,
    caller_of,
    core_of,
    id_of,
    may_see,
    rate_headers_of,
    while_known,
)
from headway.api.tree_views import tree_row
from headway.control import subtasks
from headway.control.admission import Receipt
from headway.control.core import Core
from headway.control.draft import Draft
from headway.control.missing import no_task
from headway.control.subtasks import Parent
from headway.domain import units
from headway.domain.checks import check_key
from headway.domain.lifecycle import State
from headway.errors import Conflict, InvalidInput, NotFound
from headway.store.copy import to_datetime
from headway.store.listing import page
from headway.store.queries import query
from headway.wire.views.tasks import Accepted, AcceptedMany, AttemptView, LogLine, Page, Waited

_ONE = query("read.one")
_KNOWN = query("read.known")
_ATTEMPTS = query("read.attempts")
_OUTPUT = query("output.read")
_FAMILY = query("subtask.family")
_CAME = query("checkpoint.state_of")
_IO = query("attempt_io.of_task")
LONGEST_WAIT_S = 60.0
MAX_SUBTASKS = 1_000  # shown with their parent
STREAMS = {1: "stdout", 2: "stderr"}


class WaitFor(msgspec.Struct, forbid_unknown_fields=True):
    """Wait until at least one of these is final."""

    ids: list[str | int]
    timeout: float = 30.0


class Edit(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of the task to change before it runs again."""

    edit: dict[str, Any] = {}


@post("/v1/tasks", status_code=201)
async def submit(request: Http) -> Response[bytes]:
    """One task, a list, NDJSON, or one task over many inputs; all or nothing, durable when answered."""
    caller = await caller_of(request, *TASKS)
    core = core_of(request)
    key = request.headers.get("idempotency-key")
    if key is not None:
        check_key(key)
    kind = request.headers.get("content-type", "")
    drafts, single = await core.drafts.read(caller.tenant, await request.body(), ndjson="ndjson" in kind, key=key)
    if key is not None and not single:
        raise InvalidInput("the header Idempotency-Key goes with one task", hint="give each task of a bulk its own idempotency_key")
    parent = None
    if caller.role == "task":
        parent = Parent(caller.task, caller.attempt)
        await subtasks.confine(core.definitions, caller.tenant, caller.definition, drafts)
    await core.promises.check(caller.tenant, drafts)
    receipt = await core.admission.submit(caller.tenant, drafts, parent=parent)
    headers = rate_headers_of(core, caller.tenant)
    promise = await _promise(core, caller.tenant, drafts, receipt)
    if not single:
        return answer(AcceptedMany([str(i) for i in receipt.ids], len(receipt.ids), None, *promise), 201, headers)
    if not receipt.created[0]:
        row = await one(core, receipt.ids[0], caller.scope)
        return answer(Accepted(str(receipt.ids[0]), State(row["state"]).word, row["start_by"], created=False), 200, headers)
    start_by = to_datetime(receipt.start_by_us)
    return answer(Accepted(str(receipt.ids[0]), State(receipt.state).word, start_by, True, *promise), 201, headers)


async def _promise(
    core: Core, tenant: int, drafts: Sequence[Draft], receipt: Receipt
) -> tuple[datetime.datetime | None, str | None]:
    """When they will probably have started, and a warning if that is too late (E7)."""
    if True not in receipt.created:
        return None, None
    now_us = core.clock.now_us()
    if receipt.state == State.LEASED:
        wait: float | None = 0.0
    else:
        core.promises.stored(tenant, drafts)
        wait = await core.promises.wait(tenant, drafts, stored=True)
    if wait is None:
        return None, None
    predicted = to_datetime(round(now_us + wait * 1_000_000))
    late_s = (now_us + wait * 1_000_000 - receipt.start_by_us) / 1_000_000
    warning = None if wait == 0 or late_s <= 0 else f"it will probably start {units.duration_text(late_s)} after start_by"
    return predicted, warning


@get("/v1/tasks")
async def list_tasks(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    wanted = filter_of(request, core, caller.scope)
    async with core.database.searches(caller.tenant) as connection:
        rows, last = one_page(await page(connection, replace(wanted, limit=wanted.limit + 1)), wanted.limit)
    if not rows and wanted.tree is not None:
        await tree_row(core, wanted.tree, caller.scope)  # one that is not there is no empty one
    return answer(Page([task_view(row) for row in rows], str(last["id"]) if last else None))


@get("/v1/tasks/{task_id:str}")
async def show(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """One task with input and result; `wait` holds the answer until it is final or the time is over."""
    caller = await caller_of(request, *TASKS)
    core, task = core_of(request), id_of(task_id)
    await may_see(core, caller, task)
    row = await one(core, task, caller.scope)
    wait = min(seconds_of(request, "wait", 0.0), LONGEST_WAIT_S)
    if wait > 0 and not State(row["state"]).final:
        await core.waiting.any_final([task], caller.scope, wait)
        row = await one(core, task, caller.scope)
    view = task_view(row, whole=True)
    if view.usage is not None and not definition_of(row["body"]).function:
        with_io(view.usage, await _io_of(core, task), row["attempt"])
    async with core.database.reads() as connection:
        parent, children = await connection.fetchrow(_FAMILY, task, MAX_SUBTASKS)
        stage, view.checkpoint_at, view.checkpoint_size = await connection.fetchrow(_CAME, task)
    if view.stages:
        view.stages_done = len(view.stages) if view.state == "succeeded" else stage or 0
    view.parent, view.subtasks = None if parent is None else str(parent), [str(child) for child in children]
    return answer(view)


@post("/v1/tasks/wait", status_code=200)
async def wait_for(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *TASKS)
    core = core_of(request)
    asked = await body_of(request, WaitFor)
    ids = list(dict.fromkeys(id_of(i) for i in asked.ids))
    if not 0 < len(ids) <= 10_000:
        raise InvalidInput(f"ids: {len(ids)} are given", field="ids", hint="1 to 10,000")
    await may_see(core, caller, *ids)
    await _must_exist(core, ids, caller.scope)
    done = await core.waiting.any_final(ids, caller.scope, min(max(asked.timeout, 0.0), LONGEST_WAIT_S))
    async with core.database.reads() as connection:
        rows = await connection.fetch(_ONE, done, caller.scope) if done else []
    final = set(done)
    return answer(Waited([task_view(row, whole=True) for row in rows], [str(i) for i in ids if i not in final]))


@get("/v1/tasks/{task_id:str}/attempts")
async def attempts(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Every attempt, the current or last one included."""
    caller = await caller_of(request, *TASKS)
    core, task = core_of(request), id_of(task_id)
    await may_see(core, caller, task)
    row = await one(core, task, caller.scope)
    async with core.database.reads() as connection:
        earlier = await connection.fetch(_ATTEMPTS, task)
    nodes = {node.id: node.name for node in core.fleet.nodes.values()}
    views: list[AttemptView] = [attempt_view(r, nodes) for r in earlier]
    if row["attempt"] > 0 and row["leased_at"] is not None:
        views.append(attempt_view(row, nodes))
    moved = await _io_of(core, task)
    for view in views:
        if view.usage is not None:
            with_io(view.usage, moved, view.attempt)
    return answer(views)


@post("/v1/tasks/{task_id:str}/cancel", status_code=200)
async def cancel(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Ends a waiting task at once; a running one is told, and ends with all its processes."""
    caller = await caller_of(request, *TASKS)
    core, task = core_of(request), id_of(task_id)
    await may_see(core, caller, task)
    row = await one(core, task, caller.scope)
    if not State(row["state"]).final:
        await core.actions.cancel([task])
        row = await one(core, task, caller.scope)
    elif State(row["state"]) is not State.CANCELLED:
        raise Conflict(f"task {task} has ended already: it is {State(row['state']).word}")
    return answer(task_view(row))


@post("/v1/tasks/{task_id:str}/retry", status_code=200)
async def retry(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Sends a dead letter again, changed if asked."""
    caller = await caller_of(request, *PEOPLE)
    core, task = core_of(request), id_of(task_id)
    asked = await body_of(request, Edit)
    row = await one(core, task, caller.scope)
    if State(row["state"]) is not State.FAILED or not await core.actions.revive([task], caller.scope, asked.edit):
        raise Conflict(f"task {task} is {State(row['state']).word}: only a failed task can be sent again", hint="submit it anew")
    return answer(task_view(await one(core, task, caller.scope)))


@get("/v1/tasks/{task_id:str}/logs")
async def logs(request: Http, task_id: FromPath[str]) -> Response[bytes] | Stream:
    """stdout and stderr as NDJSON of LogLine; `follow=1` streams to the end, `raw=1` gives the bytes, `whole=1` what was cut too."""
    caller = await caller_of(request, *TASKS)
    core, task = core_of(request), id_of(task_id)
    await may_see(core, caller, task)
    row = await one(core, task, caller.scope)
    stream = request.query_params.get("stream")
    if stream not in (None, "stdout", "stderr"):
        raise InvalidInput(f"stream: {stream[:20]!r} is unknown", field="stream", hint="stdout or stderr")
    number = {"stdout": 1, "stderr": 2}.get(stream or "")
    attempt = request.query_params.get("attempt")
    if attempt is not None and not (attempt.isascii() and attempt.isdigit() and len(attempt) < 9):
        raise InvalidInput(f"attempt: {attempt[:20]!r} is not a number", field="attempt")
    wanted = int(attempt) if attempt is not None else None
    raw = request.query_params.get("raw") in ("1", "true")
    follow = request.query_params.get("follow") in ("1", "true")
    if wanted is not None and not (follow and not State(row["state"]).final):  # one that is followed may still come
        _must_have_begun(task, row["attempt"], wanted)
    if request.query_params.get("whole") in ("1", "true"):
        found = await core.outputs.whole(task, row["attempt"] if wanted is None else wanted)
        return Stream(found, media_type="application/octet-stream")
    at = _position(request.query_params.get("after"))
    pieces = while_known(request, read_output(core, task, caller.scope, wanted, number, at, follow=follow))
    kind = "application/octet-stream" if raw else "application/x-ndjson"
    return Stream(_raw(pieces) if raw else _lines(pieces), media_type=kind)


async def read_output(
    core: Core, task: int, tenant: int | None, attempt: int | None, stream: int | None, at: tuple[int, int], *, follow: bool
) -> AsyncIterator[list[Any]]:
    """Pieces of output behind a position, in order; following ends once the task is final and everything was read."""
    while True:
        final = not follow or State((await one(core, task, tenant))["state"]).final
        async with core.database.reads() as connection:
            rows = await connection.fetch(_OUTPUT, task, *at, attempt, stream, 500)
        if rows:
            at = (rows[-1]["attempt"], rows[-1]["sequence"])
            yield rows
        elif final:
            return
        else:
            yield []
            began = time.monotonic()
            await core.waiting.any_final([task], tenant, 0.25)
            await asyncio.sleep(max(0.0, 0.05 - (time.monotonic() - began)))


def _must_have_begun(task: int, last: int, wanted: int) -> None:
    """Nothing is what an attempt that wrote nothing wrote, not one that is not there."""
    if not 1 <= wanted <= last:
        had = f"it has had {last}" if last else "none has begun yet"
        raise NotFound(f"task {task} has no attempt {wanted}: {had}", hint="without `attempt` the output of all comes")


def _position(text: str | None) -> tuple[int, int]:
    """`ATTEMPT-SEQUENCE` of the last entry that the caller has; the beginning without it."""
    if text is None:
        return (0, -1)
    attempt, _, sequence = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (attempt, sequence)):
        hint = "`attempt` and `sequence` of the last entry, as in after=1-17"
        raise InvalidInput(f"after: {text[:30]!r} is no position", field="after", hint=hint)
    return int(attempt), int(sequence)


async def _raw(pieces: AsyncIterator[list[Any]]) -> AsyncIterator[bytes]:
    async for rows in pieces:
        yield b"".join(row["data"] for row in rows)


async def _lines(pieces: AsyncIterator[list[Any]]) -> AsyncIterator[bytes]:
    async for rows in pieces:
        lines = [
            LogLine(r["attempt"], STREAMS[r["stream"]], r["at"], r["data"].decode(errors="replace"), r["sequence"]) for r in rows
        ]
        yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


async def _io_of(core: Core, task: int) -> dict[int, tuple[int, int]]:
    """Bytes read and written by each attempt of a task the caller may see."""
    async with core.database.reads() as connection:
        return {row["attempt"]: (row["read_bytes"], row["written_bytes"]) for row in await connection.fetch(_IO, task)}


async def _must_exist(core: Core, tasks: list[int], tenant: int | None) -> None:
    """Nobody shall wait for what never ends because it is not there."""
    async with core.database.reads() as connection:
        known = {row["id"] for row in await connection.fetch(_KNOWN, tasks, tenant)}
        for task in tasks:
            if task not in known:
                raise await no_task(connection, task, tenant)


async def one(core: Core, task: int, tenant: int | None) -> Any:
    """The row of a task the caller may see."""
    async with core.database.reads() as connection:
        row = await connection.fetchrow(_ONE, [task], tenant)
        if row is None:
            raise await no_task(connection, task, tenant)
    return row


ROUTES = [submit, list_tasks, show, wait_for, attempts, cancel, retry, logs]
