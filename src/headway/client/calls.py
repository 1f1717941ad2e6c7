"""What all calls of the client share: a connection, paths, and how a task is written into a body."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from headway.client.connection import Connection
from headway.domain.spec import TaskSpec
from headway.domain.wrong_kind import describe
from headway.errors import InvalidInput

Spec = TaskSpec | Mapping[str, Any]

STREAM_TIMEOUT = 900.0  # of a tree of millions of tasks
BULK_TIMEOUT = 120.0  # a bulk of tens of megabytes may wait for its commit behind others


class Calls:
    """Some calls of the API, over the connection of a client."""

    _to: Connection


def merged(spec: Spec | None, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task with some of its fields changed."""
    return {**({} if spec is None else said(spec)), **fields}


def said(spec: object) -> Mapping[str, Any]:
    """The fields that a task says. An input that is not there must not be: empty Raw is encoded as no JSON at all."""
    if isinstance(spec, Mapping):
        return spec
    if not isinstance(spec, TaskSpec):
        hint = "name them: submit(command=...), submit(function=...), or decorate a function with @task"
        raise InvalidInput(f"a task is given by its fields, here is {describe(spec)}", hint=hint)
    given = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return {name: value for name, value in given.items() if value != getattr(_NOTHING_SAID, name)}


_NOTHING_SAID = TaskSpec()
encode = msgspec.json.Encoder().encode


def segment(name: str | int) -> str:
    return quote(str(name), safe="")


def task_path(task_id: str | int, *rest: str) -> str:
    return "/".join(("/v1/tasks", segment(task_id), *rest))


def moment(at: datetime.datetime | str) -> str:
    return at if isinstance(at, str) else at.isoformat()
