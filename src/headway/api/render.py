"""Rows of the store as the views of the wire."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from headway.control.definitions import Definitions
from headway.domain.identity import ms_of
from headway.domain.lifecycle import Outcome, State
from headway.domain.resources import Capacity, Resources
from headway.domain.task import Category, Definition, decode
from headway.wire.exchange import ErrorInfo
from headway.wire.views.tasks import AttemptView, ProgressView, ResourcesView, TaskView, UsageView

_definitions: dict[str, Definition] = {}  # by body: most rows of a page share theirs


def definition_of(body: str) -> Definition:
    known = _definitions.get(body)
    if known is None:
        if len(_definitions) > 2_000:
            _definitions.clear()
        known = _definitions[body] = decode(body)
    return known


def task_view(row: Any, *, whole: bool = False) -> TaskView:
    """One task. `whole` adds input and result."""
    definition = definition_of(row["body"])
    state = State(row["state"])
    view = TaskView(
        id=str(row["id"]),
        name=row["name"] or definition.name,
        tenant=row["tenant_name"],
        state=state.word,
        category=Category(row["category"]).name.lower(),
        what=definition.what,
        labels=msgspec.json.decode(row["labels"]) if row["labels"] else {},
        attempt=row["attempt"],
        attempts=definition.attempts,
        execution_cap_s=row["cap_ms"] / 1000,
        created_at=datetime.datetime.fromtimestamp(ms_of(row["id"]) / 1000, datetime.UTC),
        eligible_at=row["eligible_at"],
        start_by=row["start_by"],
        leased_at=row["leased_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        node=row["node_name"],
        outcome=outcome_word(row["outcome"]),
        exit_code=row["exit_code"],
        error=error_of(row["error"]),
        codec=definition.codec,
        stages=[stage.name for stage in definition.stages],
        resources=resources_view(definition.resources, definition.tier),
        isolation=definition.isolation or "none",
        queue=definition.queue or None,
        max_wait_s=definition.patience.limit_ms / 1000 or None,
        on_max_wait=definition.patience.word,
        usage=usage_of(row),
        progress=ProgressView(row["done"], row["total"], row["text"]) if row["total"] is not None else None,
        tree=str(row["tree"]) if row["tree"] is not None else None,
        blocked_on=row["blocked_on"],
        cancelling=row["cancel_at"] is not None,
        paused_since=row.get("hold_at"),
        failures={
            "task": row["failures"],
            "resource": row["resource_failures"],
            "node": row["node_losses"],
            "requeues": row["requeues"],
        },
    )
    if whole:
        view.input = msgspec.Raw(row["input"] or b"null")
        if state is State.SUCCEEDED:
            view.result = msgspec.Raw(row["result"] or b"null")
    return view


def attempt_view(row: Any, nodes: dict[int, str]) -> AttemptView:
    return AttemptView(
        attempt=row["attempt"],
        outcome=outcome_word(row["outcome"]),
        node=nodes.get(row["node"]),
        leased_at=row["leased_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        exit_code=row["exit_code"],
        error=error_of(row["error"]),
        usage=usage_of(row),
    )


def resources_view(need: Resources, tier: str = "") -> ResourcesView:
    return ResourcesView(
        need.cpus_milli / 1000, need.memory, need.disk, need.iops, need.bandwidth, need.ports, dict(need.labels), tier
    )


def outcome_word(outcome: int | None) -> str | None:
    return None if outcome is None else Outcome(outcome).word


def error_of(text: str | None) -> ErrorInfo | None:
    return msgspec.json.decode(text, type=ErrorInfo) if text else None


def usage_of(row: Any) -> UsageView | None:
    if row["started_at"] is None or row["ended_at"] is None:
        return None
    wall = (row["ended_at"] - row["started_at"]).total_seconds()
    return UsageView(wall, row["cpu_ms"] / 1000 if row["cpu_ms"] is not None else None, row["max_memory"])


def with_io(usage: UsageView, moved: dict[int, tuple[int, int]], attempt: int) -> None:
    if attempt in moved:
        usage.read_bytes, usage.written_bytes = moved[attempt]


def allocated_view(counts: dict[int, int], definitions: Definitions, capacity: Capacity) -> ResourcesView:
    """The sum of what attempts of these shapes hold; what is beyond the capacity was handed out ahead, and holds nothing yet."""
    total = [0] * 6
    for shape, count in counts.items():
        for i, amount in enumerate(definitions.shapes[shape].amounts()):
            total[i] += amount * count
    cpus, memory, disk, iops, bandwidth, ports = map(min, total, capacity.amounts())
    return ResourcesView(cpus / 1000, memory, disk, iops, bandwidth, ports)
