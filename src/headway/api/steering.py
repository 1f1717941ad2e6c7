"""/v1/tasks/{id}/pause, /resume and /signal: answered when the node has done it, or when the time to wait is over (H7)."""

from __future__ import annotations

import msgspec
from litestar import Response, post
from litestar.params import FromPath

from headway.api.query import seconds_of
from headway.api.render import task_view
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of, id_of
from headway.api.tasks import one
from headway.domain.lifecycle import State
from headway.errors import Conflict

WAIT_S = 10.0
LONGEST_WAIT_S = 60.0


class SignalName(msgspec.Struct, forbid_unknown_fields=True):
    """HUP, INT, QUIT, USR1, USR2, TERM, ALRM or WINCH."""

    signal: str


@post("/v1/tasks/{task_id:str}/pause", status_code=200)
async def pause(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Keeps a waiting task from starting; freezes a running one with all its processes."""
    return await _steer(request, task_id, "pause")


@post("/v1/tasks/{task_id:str}/resume", status_code=200)
async def resume(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Lets a paused task go on."""
    return await _steer(request, task_id, "resume")


@post("/v1/tasks/{task_id:str}/signal", status_code=200)
async def signal(request: Http, task_id: FromPath[str]) -> Response[bytes]:
    """Sends a signal to the program of a running task."""
    return await _steer(request, task_id, "signal")


async def _steer(request: Http, task_id: str, word: str) -> Response[bytes]:
    """202 when the node has not answered in time: the wish stands, and is repeated to it until it does."""
    caller = await caller_of(request, *PEOPLE)
    core, task = core_of(request), id_of(task_id)
    row = await one(core, task, caller.scope)
    if State(row["state"]).final:
        raise Conflict(f"task {task} has ended already: it is {State(row['state']).word}")
    wait = min(seconds_of(request, "wait", WAIT_S), LONGEST_WAIT_S)
    if word == "signal":
        asked = await body_of(request, SignalName)
        number: int | None = await core.steering.signal(task, caller.scope, asked.signal)
    elif word == "pause":
        number = await core.steering.pause(task, caller.scope)
    else:
        number = await core.steering.resume(task, caller.scope)
    said = await core.steering.answer(number, wait) if number is not None else "done"
    row = await one(core, task, caller.scope)
    if word == "signal":
        return answer(task_view(row), _signalled(said, ended=State(row["state"]).final))
    if State(row["state"]).final:
        raise Conflict(f"task {task} has {State(row['state']).word} meanwhile")
    return answer(task_view(row), 202 if said is None else 200)


def _signalled(said: str | None, *, ended: bool) -> int:
    """The status of an answer to a signal. A program that ended meanwhile, of it or by itself, is no error."""
    if said is not None and said.startswith("refused: "):
        raise Conflict(f"the signal was not sent: {said.removeprefix('refused: ')}", hint="only a running program can be sent one")
    return 202 if said is None and not ended else 200


ROUTES = [pause, resume, signal]
