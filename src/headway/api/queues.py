"""/v1/queues: depth, age and rules of every queue; operators add, change, pause and resume them. /v1/peaks: what was put off (F5 E4)."""

from __future__ import annotations

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.params import FromPath

from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of
from headway.control.core import Core
from headway.control.outlook import PlanState
from headway.domain.queues import Queue, check_queue, check_timezone, hours_of, runs_of
from headway.errors import InvalidInput, NotFound
from headway.store.queries import query
from headway.wire.views.answers import Changed
from headway.wire.views.fleet import PeakView, QueueView, ShareView

_PEAKS = query("queue.peaks")
SHOWN = 20  # shares of the largest tenants
MOST_HOURS = 50


class NewQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue: when it runs, as always, off-peak or peak, and within which hours."""

    name: str
    runs: str = "always"
    hours: list[str] | str = []
    timezone: str = "UTC"
    paused: bool = False


class QueueChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out stays as it is."""

    runs: str | msgspec.UnsetType = msgspec.UNSET
    hours: list[str] | str | msgspec.UnsetType = msgspec.UNSET
    timezone: str | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET


@get("/v1/queues")
async def queues(request: Http) -> Response[bytes]:
    """All queues with the caller's own tasks; an administrator sees everybody's."""
    caller = await caller_of(request, *PEOPLE)
    return answer((await core_of(request).queue_views.look(caller.scope))[0])


@get("/v1/queues/{name:str}")
async def show_queue(request: Http, name: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    return answer(await _one(core_of(request), name, caller.scope))


@post("/v1/queues", status_code=201)
async def add_queue(request: Http) -> Response[bytes]:
    caller = await caller_of(request, "admin")
    core, asked = core_of(request), await body_of(request, NewQueue)
    hours = tuple(hours_of(text) for text in _list(asked.hours))
    await core.queues.add(Queue(check_queue(asked.name), runs_of(asked.runs), hours, check_timezone(asked.timezone), asked.paused))
    return answer(await _one(core, asked.name, caller.scope), 201)


@patch("/v1/queues/{name:str}")
async def set_queue(request: Http, name: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, "admin")
    core, asked = core_of(request), await body_of(request, QueueChange)
    changes: dict[str, object] = {}
    if asked.runs is not msgspec.UNSET:
        changes["runs"] = runs_of(asked.runs)
    if asked.hours is not msgspec.UNSET:
        changes["hours"] = tuple(hours_of(text) for text in _list(asked.hours))
    if asked.timezone is not msgspec.UNSET:
        changes["timezone"] = check_timezone(asked.timezone)
    if asked.paused is not msgspec.UNSET:
        changes["paused"] = asked.paused
    if not changes:
        raise InvalidInput("nothing to change", hint="give runs, hours, timezone or paused")
    await core.queues.change(name, **changes)
    return answer(await _one(core, name, caller.scope))


@delete("/v1/queues/{name:str}", status_code=200)
async def remove_queue(request: Http, name: FromPath[str]) -> Response[bytes]:
    await caller_of(request, "admin")
    await core_of(request).queues.remove(name)
    return answer(Changed(1))


@post("/v1/queues/{name:str}/pause", status_code=200)
async def pause_queue(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Nothing of this queue is handed out; what runs goes on."""
    caller = await caller_of(request, "admin")
    await core_of(request).queues.change(name, paused=True)
    return answer(await _one(core_of(request), name, caller.scope))


@post("/v1/queues/{name:str}/resume", status_code=200)
async def resume_queue(request: Http, name: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, "admin")
    await core_of(request).queues.change(name, paused=False)
    return answer(await _one(core_of(request), name, caller.scope))


@get("/v1/peaks")
async def peaks(request: Http) -> Response[bytes]:
    """What was put off at peak in the last 30 days, newest first (admin)."""
    await caller_of(request, "admin")
    async with core_of(request).database.reads() as connection:
        rows = await connection.fetch(_PEAKS, 30 * 86_400, 1_000)
    return answer([PeakView(*row.values()) for row in rows])


def shares_of(core: Core, plan: PlanState, tenant: int | None) -> list[ShareView]:
    """The largest shares of the fleet; of a tenant only its own."""
    wanted = {t: one for t, one in plan.tenants.items() if tenant is None or t == tenant}
    largest = sorted(wanted.items(), key=lambda item: -item[1].share)[:SHOWN]
    return [ShareView(core.tenants.names.get(t, str(t)), one.share, one.waiting > 0) for t, one in largest]


async def _one(core: Core, name: str, tenant: int | None) -> QueueView:
    core.queue_views.forget()
    for view in (await core.queue_views.look(tenant))[0]:
        if view.name == name:
            return view
    raise NotFound(f"there is no queue {name[:60]!r}", hint=f"queues: {', '.join(sorted(core.queues.by_name)[:20])}")


def _list(hours: list[str] | str) -> list[str]:
    found = [hours] if isinstance(hours, str) else hours
    if len(found) > MOST_HOURS:
        raise InvalidInput(f"hours: {len(found)} spans are too many", field="hours", hint=f"at most {MOST_HOURS}")
    return [text for text in found if text.strip()]


ROUTES = [queues, show_queue, add_queue, set_queue, remove_queue, pause_queue, resume_queue, peaks]
