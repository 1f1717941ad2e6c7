"""What a final task means to who waits for it: a value, or an exception that tells the story."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import pickle
import sys
from typing import Any

import msgspec

from headway.client.calling import SCRIPT
from headway.errors import HeadwayError, TaskFailed, rebuilt
from headway.wire.views.tasks import TaskView

_ENDED = {"cancelled": "was cancelled", "skipped": "was skipped", "expired": "expired"}


class TaskCancelled(TaskFailed, concurrent.futures.CancelledError):
    """Somebody cancelled the task. Caught by `except CancelledError` of concurrent.futures too."""


def value(view: TaskView, kind: Any = None) -> Any:
    """The result of a final task, as `kind` when it fits; TaskFailed when there is none."""
    if view.state != "succeeded":
        raise failure(view)
    if view.result is None or not bytes(view.result):
        return None
    found = msgspec.json.decode(view.result)
    if view.codec == "pickle" and isinstance(found, str):
        return _unpickled(view, found)
    return found if kind is None else _as(found, kind)


def failure(view: TaskView) -> TaskFailed:
    """The exception for a task that ended without a result. Its traceback on the node is shown below our own."""
    error = view.error
    why = f"{error.type}: {error.message}" if error else view.outcome
    kind = TaskCancelled if view.state == "cancelled" else TaskFailed
    failed = kind(
        f"task {view.id} ({view.name}) {_ENDED.get(view.state, 'failed')}" + (f": {why}" if why else ""),
        type=error.type if error else "",
        message=error.message if error else "",
        traceback=error.traceback if error else "",
        task=view.id,
        state=view.state,
        outcome=view.outcome,
        exit_code=view.exit_code,
    )
    if error and error.traceback:
        failed.add_note(f"on node {view.node or 'unknown'}, attempt {view.attempt}:\n{error.traceback.rstrip()}")
    return failed


def as_raised(failed: TaskFailed) -> TaskFailed:
    """The same failure as one that is also of the class which the function raised: who waits for a future of the standard library
    catches that. Only of a class that is loaded here, for nobody else can name it."""
    kind = _loaded(failed.type)
    if kind is None:
        return failed
    try:
        both: type[TaskFailed] = type(kind.__name__, (TaskFailed, kind), {"__reduce__": _plainly, "__module__": kind.__module__})
        found = both.__new__(both, failed.detail)
    except TypeError:  # a class that others cannot stand beside
        return failed
    vars(found).update(vars(failed))
    found.args = failed.args
    return found


def _loaded(name: str) -> type[Exception] | None:
    """The class that a runner calls so."""
    for split in range(len(parts := name.split(".")), 0, -1):
        module, path = ".".join(parts[: split - 1]) or "builtins", parts[split - 1 :]
        found: Any = sys.modules.get("__main__" if module.startswith(SCRIPT) else module)
        for part in path:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return None if issubclass(found, StopIteration) else found  # no future can hold that one
    return None


def _plainly(failed: TaskFailed) -> Any:
    """Pickled, it is a TaskFailed: the class was made here."""
    return rebuilt, (TaskFailed, failed.args, vars(failed))


def _as(found: Any, kind: Any) -> Any:
    """JSON knows no tuples, dates or classes: make the value what the function's annotation says. An annotation is a
    promise that Python does not check, so a value that does not fit stays as it came."""
    try:
        return msgspec.convert(found, type=kind)
    except (msgspec.ValidationError, TypeError):
        return found


def _unpickled(view: TaskView, text: str) -> Any:
    try:
        return _Unpickler(io.BytesIO(base64.b64decode(text))).load()
    except (AttributeError, ImportError) as error:
        raise HeadwayError(
            f"the result of task {view.id} cannot be loaded here: {error}", hint="its class must be importable here too"
        ) from error


class _Unpickler(pickle.Unpickler):
    """A class of the script that runs here as `__main__` has another module's name on the node."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module.startswith(SCRIPT) else module, name)
