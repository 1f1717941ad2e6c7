"""`current().submit`, `.map` and `.wait`: what a running task does with its subtasks (C4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headway.client import context, eager, face
from headway.client.connection import Connection
from headway.client.decorator import Task
from headway.client.face import Client, Handle
from headway.client.inside import Inside
from headway.wire.views.tasks import TaskView

_client: Client | None = None
_of: tuple[int | str, int] | None = None


def submit(what: Any, args: tuple[Any, ...], key: str | None, fields: Mapping[str, Any]) -> Handle[Any]:
    """A function with its arguments, or a task as Client.submit() takes it."""
    named = {} if key is None else {"idempotency_key": key}
    if callable(what):
        task = what if isinstance(what, Task) else Task(what, {})
        return task.options(**named).submit(*args, **fields) if named else task.submit(*args, **fields)
    if args:
        raise TypeError("arguments go with a function: submit(f, 1, 2); a task is given by its fields: submit(command=[...])")
    return face.active().submit(what, **fields, **named)


def map_over(what: Callable[..., Any], items: Iterable[Any], key: str | None) -> list[Handle[Any]]:
    """One subtask for each item, in one request."""
    task: Task[Any, Any, Any] = what if isinstance(what, Task) else Task(what, {})
    if eager.is_on():
        return task.map(items)
    codec, inputs = task.encode([((item,), {}) for item in items])
    return face.active().submit_inputs(task.spec(codec), inputs, key=key, kind=task.kind)


def wait(handles: Iterable[Handle[Any]]) -> list[TaskView]:
    """Until all of these have ended, or all that this attempt has submitted."""
    if eager.is_on():
        return [handle.wait() for handle in handles]
    client = face.active()
    inside = client.aio.inside
    ids = [handle.id for handle in handles] or (inside.children if inside is not None else [])
    return client.wait(ids)


def client() -> Client | None:
    """The client of the function that runs in this warm process; None elsewhere."""
    global _client, _of
    current = context._running
    if current is None or current.ask_place is None:
        return None
    if _client is None or _of != (current.id, current.attempt):
        url, token, tls_ca = current.ask_place()
        if _client is None:
            _client = Client(url, token, tls_ca=tls_ca)
        else:
            urls = [each.strip() for each in url.split(",")]
            _client.thread.run(_client.aio.become(Connection(urls, token=token, tls_ca=tls_ca)))
        _client.aio.inside = Inside()
        _of = (current.id, current.attempt)
    return _client
