"""What all calls of the client share: a connection, paths, and how a task is written into a body."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from headway.client.connection import Connection
from headway.domain.spec import TaskSpec

Spec = TaskSpec | Mapping[str, Any]

STREAM_TIMEOUT = 900.0  # of a tree of millions of tasks
BULK_TIMEOUT = 120.0  # a bulk of tens of megabytes may wait for its commit behind others


class Calls:
    """Some calls of the API, over the connection of a client."""

    _to: Connection


def merged(spec: Spec | None, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task with some of its fields changed."""
    if isinstance(spec, TaskSpec):
        spec = said(spec)
    return {**(spec or {}), **fields}


def said(spec: Spec) -> Mapping[str, Any]:
    """The fields that a task says. An input that is not there must not be: empty Raw is encoded as no JSON at all."""
    if not isinstance(spec, TaskSpec):
        return spec
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
