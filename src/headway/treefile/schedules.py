"""`schedule`, `timezone`, `start`, `end`, `jitter`, `overlap`, `misfire` of a tree: read here, judged by domain.schedule.

Also the first half of C6: a subtask that is scheduled less often than what waits for it can never keep up.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from typing import Any

from headway.domain import graph
from headway.domain.firings import mean_gap
from headway.domain.schedule import HINT, Misfire, Overlap, ScheduleSpec, describe, timing
from headway.domain.spec import SCHEDULE_WORDS
from headway.domain.units import duration_text
from headway.errors import ImpossibleTree, InvalidInput
from headway.treefile.document import Entry, Mark, Node
from headway.treefile.values import Reader
from headway.treefile.values import describe as describe_node

KEYS = SCHEDULE_WORDS
OVERLAP = tuple(choice.name.lower() for choice in Overlap)
MISFIRE = tuple(choice.name.lower() for choice in Misfire)
_TEXTS = ("timezone", "overlap", "misfire")
_SOME_TIME = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)  # how often something fires does not depend on when one asks
_ALIKE = 1.02  # a month is not always as long


def read_schedule(reader: Reader, entries: AnyMapping[str, Entry]) -> ScheduleSpec:
    """The schedule among a task's entries, of which there is at least one."""
    if "schedule" not in entries:
        name, entry = next(iter(entries.items()))
        reader.fail(entry.key.mark, f"{name} says how a schedule behaves, and there is no schedule", hint="add `schedule:`")
    spec = ScheduleSpec(**{name: _value(reader, name, entry.value) for name, entry in entries.items()})
    try:
        timing(spec)
    except InvalidInput as error:
        mark = entries[error.field or "schedule"].value.mark
        reader.fail(mark, error.detail, hint=error.hint, field=error.field)
    return spec


def is_once(spec: ScheduleSpec) -> bool:
    """`schedule: 0` and nothing else: on a subtask, once for each run of the tree."""
    return timing(spec).once and spec.start is None


def interval(spec: ScheduleSpec) -> float | None:
    """Seconds from one firing to the next on average; None when it fires once."""
    return mean_gap(timing(spec), _SOME_TIME)


def check_rhythms(
    reader: Reader,
    after: AnyMapping[str, Sequence[str]],
    whole: ScheduleSpec | None,
    own: AnyMapping[str, tuple[ScheduleSpec, Mark]],
) -> dict[str, ScheduleSpec]:
    """The subtasks that run more often than the tree, with their schedules. One that runs less often is refused (C6)."""
    if not own:
        return {}
    if whole is None or (period := interval(whole)) is None:
        name, (_, mark) = next(iter(own.items()))
        reader.fail(mark, f"{name!r}: a schedule on a subtask needs one on the tree", hint="`schedule: 0` is once for each run")
    waits: dict[str, list[str]] = {name: [] for name in after}
    for name, upstreams in after.items():
        for upstream in upstreams:
            waits[upstream].append(name)
    more_often = {}
    for name in graph.check_acyclic(after):
        if name not in own:
            continue
        spec, mark = own[name]
        mine = interval(spec)
        chain = _to_faster(name, waits, own, period, mine)
        if chain:
            other, every = (own[chain[-1]][0], "") if chain[-1] in own else (whole, "the tree, ")
            reader.fail(
                mark,
                f"impossible: {name!r} ({_often(spec)}) is scheduled less often than {chain[-1]!r} ({every}{_often(other)}), which waits "
                f"for it: {' → '.join(chain)}",
                kind=ImpossibleTree,
                hint="give it `schedule: 0`, once for each run, or a shorter interval",
                chain=chain,
            )
        if mine is not None and mine * _ALIKE < period:
            more_often[name] = spec
    return more_often


def _to_faster(
    name: str,
    waits: AnyMapping[str, Sequence[str]],
    own: AnyMapping[str, tuple[ScheduleSpec, Mark]],
    period: float,
    mine: float | None,
) -> list[str]:
    """The chain from a task to the first that waits for it and is scheduled more often; empty when there is none."""
    queue, came_from = [name], {name: ""}
    for at in queue:
        gap = interval(own[at][0]) if at in own and at != name else period if not waits[at] else None
        if gap is not None and (mine is None or mine > gap * _ALIKE):
            chain = [at]
            while came_from[chain[-1]]:
                chain.append(came_from[chain[-1]])
            return chain[::-1]
        for behind in waits[at]:
            if behind not in came_from:
                came_from[behind] = at
                queue.append(behind)
    return []


def _often(spec: ScheduleSpec) -> str:
    gap = interval(spec)
    said = describe(spec)
    return said if gap is None or said.startswith("every ") else f"{said}: every {duration_text(gap)}"


def _value(reader: Reader, name: str, node: Node) -> Any:
    if name in _TEXTS:
        return reader.text(node, name)
    value = reader.value(node)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        what, hint = ("a time", HINT) if name == "schedule" else ("a moment", 'write "2026-11-15T03:00:00Z"')
        if name == "jitter":
            what, hint = "a duration", 'write seconds, or "90s", "10m"'
        reader.fail(node.mark, f"{name}: expected {what}, here is {describe_node(node)}", hint=hint)
    return value
