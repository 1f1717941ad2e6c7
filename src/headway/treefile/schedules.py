"""`schedule`, `timezone`, `start`, `end`, `overlap`, `misfire` of a tree: checked and kept."""

from __future__ import annotations

import datetime
from collections.abc import Mapping as AnyMapping

from cronsim import CronSim, CronSimError

from headway.domain import units
from headway.domain.task import at_seconds
from headway.errors import InvalidInput
from headway.treefile.document import Entry, Node
from headway.treefile.model import Schedule
from headway.treefile.values import Reader, describe, did_you_mean

KEYS = ("schedule", "timezone", "start", "end", "overlap", "misfire")
EVERY = ("daily", "weekly", "monthly", "annually")
OVERLAP = ("skip", "queue", "replace", "allow")
MISFIRE = ("skip", "one", "all")
_HINT = '0 for once, seconds, "10m", daily, weekly, monthly, annually, or a cron expression such as "0 3 * * *"'


def read_schedule(reader: Reader, entries: AnyMapping[str, Entry]) -> Schedule | None:
    """The schedule among a task's entries, if there is one."""
    if not entries:
        return None
    if "schedule" not in entries:
        name, entry = next(iter(entries.items()))
        reader.fail(entry.key.mark, f"{name} says how a schedule behaves, and there is no schedule", hint="add `schedule:`")
    return Schedule(
        every=_every(reader, entries["schedule"].value),
        timezone=_text(reader, entries, "timezone"),
        start=_moment(reader, entries, "start"),
        end=_moment(reader, entries, "end"),
        overlap=_choice(reader, entries, "overlap", OVERLAP),
        misfire=_choice(reader, entries, "misfire", MISFIRE),
    )


def is_once(reader: Reader, node: Node) -> bool:
    """`schedule: 0`: once for each run of the tree, the only schedule a subtask may have here."""
    return _every(reader, node) == 0


def _every(reader: Reader, node: Node) -> float | str:
    value = reader.value(node)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        reader.fail(node.mark, f"schedule: expected a time, here is {describe(node)}", hint=_HINT)
    if isinstance(value, int | float):
        if not 0 <= value <= units.LONGEST:
            reader.fail(node.mark, f"schedule: {value} is out of range", hint="seconds, from 0 to ten years")
        return value
    if value in EVERY:
        return value
    if len(value.split()) >= 5:
        return _cron(reader, node, value)
    try:
        return units.seconds(value, "schedule")
    except InvalidInput:
        near = did_you_mean(value, EVERY)
    return reader.fail(node.mark, f"schedule: {value[:60]!r} is not a schedule{near}", hint=_HINT)


def _cron(reader: Reader, node: Node, text: str) -> str:
    try:
        CronSim(text, datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC))
    except CronSimError as error:
        reader.fail(
            node.mark,
            f"schedule: {text[:60]!r} is not a cron expression: {error}",
            hint="minute hour day month weekday",
        )
    return text


def _text(reader: Reader, entries: AnyMapping[str, Entry], name: str) -> str | None:
    return reader.text(entries[name].value, name) if name in entries else None


def _moment(reader: Reader, entries: AnyMapping[str, Entry], name: str) -> str | float | None:
    if name not in entries:
        return None
    node = entries[name].value
    value = reader.value(node)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        reader.fail(node.mark, f"{name}: expected a moment, here is {describe(node)}", hint='write "2026-11-15T03:00:00Z"')
    try:
        at_seconds(value, name)
    except InvalidInput as error:
        reader.fail(node.mark, error.detail, hint=error.hint, field=name)
    return value


def _choice(reader: Reader, entries: AnyMapping[str, Entry], name: str, choices: tuple[str, ...]) -> str:
    if name not in entries:
        return {"overlap": "skip", "misfire": "one"}[name]
    node = entries[name].value
    word = reader.text(node, name)
    if word not in choices:
        reader.fail(node.mark, f"{name}: {word!r} is unknown{did_you_mean(word, choices)}", hint=", ".join(choices))
    return word
