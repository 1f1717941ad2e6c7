"""For tests of code that submits tasks: `with headway.eager():` runs them here and now, without any server.

Arguments and results go through the same encoding as on the way to a node, so that what cannot be sent fails here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import inspect
import itertools
import traceback
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from headway.client import calling, context, outcomes
from headway.client.face import Handle
from headway.wire.exchange import ErrorInfo
from headway.wire.views.tasks import LogLine, TaskView

if TYPE_CHECKING:
    from headway.client.decorator import Task

_on: ContextVar[bool] = ContextVar("headway_eager", default=False)
_ids = itertools.count(1)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Inside, `.submit`, `.delay`, `.map` and `.starmap` of a task run it at once and return finished handles."""
    before = _on.get()
    _on.set(True)
    try:
        yield
    finally:
        _on.set(before)


def is_on() -> bool:
    return _on.get()


class EagerHandle(Handle[Any]):
    """A task that ended before its handle was made."""

    def __init__(self, view: TaskView, kind: Any) -> None:
        self._view = view
        self._kind = kind

    @property
    def id(self) -> str:
        return self._view.id

    def result(self, timeout: float | None = None) -> Any:
        return outcomes.value(self._view, self._kind)

    def wait(self, timeout: float | None = None) -> TaskView:
        return self._view

    def view(self) -> TaskView:
        return self._view

    def state(self) -> str:
        return self._view.state

    @property
    def predicted_start(self) -> datetime.datetime | None:
        return self._view.started_at

    @property
    def warning(self) -> str | None:
        return None  # it waited for nothing

    def cancel(self) -> TaskView:
        return self._view  # final already

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        return iter(())  # it wrote to this process' own output


def run(task: Task[Any, Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Handle[Any]:
    """Run a call as a node would: the same encoding, the same number of attempts, but no pause between them."""
    codec, (encoded,) = task.encode([(args, kwargs)])
    spec = task.spec(codec)
    view = _waiting(spec, encoded)
    while view.state != "succeeded" and view.attempt < view.attempts:
        view.attempt += 1
        _attempt(task, view)
    return EagerHandle(view, task.kind)


def _waiting(spec: Mapping[str, Any], encoded: msgspec.Raw) -> TaskView:
    now = datetime.datetime.now(datetime.UTC)
    return TaskView(
        id=str(next(_ids)),
        name=spec.get("name") or spec["function"].partition(":")[2],
        tenant="eager",
        state="ready",
        category="urgent",
        what=spec["function"],
        labels=spec.get("labels", {}),
        attempt=0,
        attempts=spec.get("attempts", 1),
        execution_cap_s=0.0,
        created_at=now,
        eligible_at=now,
        start_by=now,
        input=encoded,
        codec=spec["codec"],
    )


def _attempt(task: Task[Any, Any, Any], view: TaskView) -> None:
    """One run, recorded in the view."""
    args, kwargs = calling.decode_call(bytes(view.input or b""), view.codec)
    before = context._running
    context._running = context.Current(view.id, view.attempt, send_progress=lambda done, total, text: None)
    view.started_at = datetime.datetime.now(datetime.UTC)
    try:
        value = task.function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = _completed(value)
        view.result = calling.encode_result(value, view.codec)
        view.error, view.state, view.outcome = None, "succeeded", "succeeded"
    except Exception as error:  # a task may fail in any way; the handle tells how
        view.error = ErrorInfo(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
        view.state, view.outcome = "failed", "error"
    finally:
        context._running = before
        view.ended_at = datetime.datetime.now(datetime.UTC)


def _completed(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of an async function, in a thread of its own: the caller may be inside an event loop already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
