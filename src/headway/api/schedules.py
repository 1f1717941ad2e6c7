"""/v1/schedules: apply, look, pause, resume, trigger, backfill, delete (D1-D3)."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath

from headway.api.query import one_page, whole
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of
from headway.control.core import Core
from headway.control.schedules import Applied, missing
from headway.control.starting import Start
from headway.domain.firings import upcoming
from headway.domain.lifecycle import State
from headway.domain.schedule import Scheduled, ScheduleSpec, moment, timing
from headway.domain.spec import TaskSpec
from headway.domain.wrong_kind import decoded
from headway.errors import InvalidInput
from headway.policy import trees as policy
from headway.policy.firing import Fate, Kind
from headway.store.queries import query
from headway.wire.views.answers import Changed
from headway.wire.views.schedules import AppliedView, Backfilled, FiringView, SchedulePage, ScheduleView

_LIST = query("schedule.list")
_FIRINGS = query("schedule.firings")
_TREE_SUMS = query("schedule.tree_sums")
_scheduled = msgspec.json.Decoder(Scheduled)
_scheduled_list = msgspec.json.Decoder(list[Scheduled])
_KNOWN = frozenset(Scheduled.__struct_fields__) | frozenset(TaskSpec.__struct_fields__)


class Range(msgspec.Struct, forbid_unknown_fields=True):
    """What a backfill makes up for: moments from `since` on, before `until`."""

    since: str | float
    until: str | float
    overlap: str = "queue"


@post("/v1/schedules", status_code=200)
async def apply_schedules(request: Http) -> Response[bytes]:
    """Applies one schedule or a list, all or none."""
    caller = await caller_of(request, *PEOPLE)
    body = await request.body()
    many = body[:64].lstrip()[:1] == b"["
    asked = decoded(_scheduled_list.decode, body, _KNOWN) if many else [decoded(_scheduled.decode, body, _KNOWN)]
    applied = [_applied(one) for one in await core_of(request).schedules.apply(caller.tenant, asked)]
    return answer(applied)


@put("/v1/schedules/{name:str}")
async def apply_schedule(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Makes the schedule what the body says; the same again changes nothing."""
    caller = await caller_of(request, *PEOPLE)
    asked = decoded(_scheduled.decode, await request.body(), _KNOWN)
    if asked.name not in (None, name):
        raise InvalidInput(f"name: the body says {asked.name!r}, the address {name!r}", field="name")
    asked.name = name
    applied = (await core_of(request).schedules.apply(caller.tenant, [asked]))[0]
    return answer(_applied(applied))


@get("/v1/schedules")
async def list_schedules(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    limit = whole(request, "limit", 100, low=1, high=1000)
    cursor = whole(request, "cursor", 0, low=0, high=2**31 - 1)
    coming = whole(request, "next", 1, low=0, high=100)
    async with core.database.reads() as connection:
        rows = await connection.fetch(_LIST, caller.scope, None, cursor, limit + 1)
    shown, last = one_page(rows, limit)
    return answer(SchedulePage([_view(core, row, coming) for row in shown], str(last["id"]) if last else None))


@get("/v1/schedules/{name:str}")
async def show_schedule(request: Http, name: FromPath[str]) -> Response[bytes]:
    """One schedule with its `next` firings (5) and its `past` ones (10)."""
    caller = await caller_of(request, *PEOPLE)
    coming = whole(request, "next", 5, low=0, high=1000)
    past = whole(request, "past", 10, low=0, high=1000)
    return answer(await _one(core_of(request), caller.tenant, name, coming=coming, past=past))


@post("/v1/schedules/{name:str}/pause", status_code=200)
async def pause_schedule(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Nothing fires until it is resumed; runs under way go on."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    await core.schedules.pause(caller.tenant, _named(name))
    return answer(await _one(core, caller.tenant, name))


@post("/v1/schedules/{name:str}/resume", status_code=200)
async def resume_schedule(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Goes on from now: what fell into the pause does not count as missed."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    await core.schedules.resume(caller.tenant, _named(name))
    return answer(await _one(core, caller.tenant, name))


@post("/v1/schedules/{name:str}/trigger", status_code=201)
async def trigger_schedule(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Runs it now, whatever calendar, policy and pause say."""
    caller = await caller_of(request, *PEOPLE)
    start: Start = await core_of(request).schedules.trigger(caller.tenant, _named(name))
    return answer(FiringView(start.at, start.at, start.kind.name.lower(), start.fate.name.lower(), str(start.run)), 201)


@post("/v1/schedules/{name:str}/backfill", status_code=200)
async def backfill_schedule(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Makes up for the moments of a range that did not run."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    asked = await body_of(request, Range)
    row = await _row(core, caller.tenant, name)
    zone = timing(msgspec.json.decode(row["spec"], type=ScheduleSpec), name).zone
    since, until = moment(asked.since, zone, "since"), moment(asked.until, zone, "until")
    made = await core.schedules.backfill(caller.tenant, name, since, until, asked.overlap)
    return answer(Backfilled(len(made), made))


@post("/v1/schedules/{name:str}/stop-backfill", status_code=200)
async def stop_backfill(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Gives up the moments of backfills that have not begun; runs under way go on."""
    caller = await caller_of(request, *PEOPLE)
    given_up = await core_of(request).schedules.stop_backfill(caller.tenant, _named(name))
    return answer(Backfilled(len(given_up), given_up))


@delete("/v1/schedules/{name:str}", status_code=200)
async def delete_schedule(request: Http, name: FromPath[str]) -> Response[bytes]:
    """Runs under way go on."""
    caller = await caller_of(request, *PEOPLE)
    await core_of(request).schedules.delete(caller.tenant, _named(name))
    return answer(Changed(1, [name]))


def _applied(applied: Applied) -> AppliedView:
    return AppliedView(applied.name, applied.change, applied.next_at)


def _named(name: str) -> str:
    """A name that PostgreSQL can look for."""
    if "\x00" in name or any(0xD800 <= ord(letter) <= 0xDFFF for letter in name):
        raise missing(name)
    return name


async def _row(core: Core, tenant: int, name: str) -> Any:
    async with core.database.reads() as connection:
        row = await connection.fetchrow(_LIST, tenant, _named(name), 0, 1)
    if row is None:
        raise missing(name)
    return row


async def _one(core: Core, tenant: int, name: str, *, coming: int = 5, past: int = 10) -> ScheduleView:
    row = await _row(core, tenant, name)
    view = _view(core, row, coming)
    async with core.database.reads() as connection:
        rows = await connection.fetch(_FIRINGS, row["id"], past)
        trees = [firing["run"] for firing in rows if firing["is_tree"]]
        states = {row["tree"]: _tree_state(row) for row in await connection.fetch(_TREE_SUMS, trees)} if trees else {}
    view.past = [_firing(firing, states) for firing in rows]
    view.work = msgspec.Raw(row["body"].encode())
    return view


def _view(core: Core, row: Any, coming: int) -> ScheduleView:
    spec = msgspec.json.decode(row["spec"], type=ScheduleSpec)
    when = timing(spec, row["name"])
    state = "paused" if row["paused_at"] else "finished" if row["next_at"] is None else "active"
    moments = [] if state != "active" else upcoming(when, core.clock.now(), row["anchor"], coming)
    if state == "active" and coming and row["next_at"] not in moments:  # due just now, and not fired yet
        moments = [row["next_at"], *moments][:coming]
    return ScheduleView(
        name=row["name"],
        tenant=row["tenant_name"],
        state=state,
        schedule=spec.schedule,
        timezone=spec.timezone,
        start=spec.start,
        end=spec.end,
        jitter=spec.jitter,
        overlap=spec.overlap,
        misfire=spec.misfire,
        tasks=row["tasks"],
        next=moments,
        last_at=row["last_at"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        problem=row["problem"],
        last_state=None if row["last_state"] is None else Fate(row["last_state"]).name.lower(),
        last_note=row["last_note"],
    )


def _tree_state(row: Any) -> str:
    sums = {name: row[name] for name in ("total", "succeeded", "failed", "cancelled", "skipped", "spared", "expired")}
    return policy.state(policy.Sums(**sums), begun=row["begun"])


def _firing(row: Any, trees: dict[int, str]) -> FiringView:
    run_state = trees.get(row["run"])
    if row["task_state"] is not None:
        run_state = State(row["task_state"]).word
    return FiringView(
        row["at"],
        row["fired_at"],
        Kind(row["kind"]).name.lower(),
        Fate(row["state"]).name.lower(),
        None if row["run"] is None else str(row["run"]),
        run_state,
        row["missed"],
        row["note"],
    )


ROUTES = [
    apply_schedules,
    apply_schedule,
    list_schedules,
    show_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
    backfill_schedule,
    stop_backfill,
    delete_schedule,
]
