"""What nodes say about attempts that run: answers to controls, warnings; and what killed an attempt (H6 H7 J6).

A node may speak only of attempts it holds, and answer only what it was asked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headway.control.settle import Effects
from headway.domain.lifecycle import Outcome
from headway.store.arrays import columns
from headway.store.database import Connection
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo, Finished, Notice

MAX_ANSWER = 200
WARNINGS = {"cap_warning": "task.cap_warning"}  # kinds of notices that are events by themselves
KILLED = frozenset({Outcome.CAP_EXCEEDED, Outcome.OUT_OF_MEMORY, Outcome.TOO_MANY_PROCESSES, Outcome.DISK_FULL})

_ANSWERED = query("control.answered")
_PAUSED = query("control.paused")
_RESUMED = query("control.resumed")
_HOLDERS = query("control.holders")
_TELL = query("event.tell")
_TELL_EACH = query("event.tell_each")

Told = list[tuple[int, Notice]]  # with the node that says it


async def keep_notices(connection: Connection, notices: Told, effects: Effects) -> None:
    """All notices of a batch of reports, in its transaction."""
    notices = sorted(notices, key=lambda told: (told[1].id, told[1].number))
    await _keep_answers(connection, [told for told in notices if told[1].number], effects)
    await _keep_warnings(connection, [told for told in notices if told[1].kind in WARNINGS], effects)


async def _keep_answers(connection: Connection, notices: Told, effects: Effects) -> None:
    if not notices:
        return
    answers = [_clean(notice.kind) for _, notice in notices]
    rows = await connection.fetch(
        _ANSWERED, [notice.number for _, notice in notices], answers, [node for node, _ in notices]
    )
    asked = {row["number"]: row for row in rows}
    effects.answered += asked
    last: dict[int, tuple[int, Notice]] = {}  # only what an attempt is now counts: it may have been paused and resumed in one report
    for node, notice in notices:
        row = asked.get(notice.number)
        if row is not None and (row["task"], row["attempt"]) == (notice.id, notice.attempt):
            last[notice.id] = (node, notice)
    for kind, statement, event in (("paused", _PAUSED, "task.paused"), ("resumed", _RESUMED, "task.resumed")):
        mine = [(notice.id, notice.attempt, node) for node, notice in last.values() if notice.kind == kind]
        if mine:
            await tell(connection, event, await connection.fetch(statement, *columns(mine)), effects)


async def tell(connection: Connection, kind: str, rows: list[Any], effects: Effects) -> None:
    """One kind of event about tasks, given as rows with id and tenant."""
    if rows:
        await connection.execute(_TELL, kind, [row["id"] for row in rows], [row["tenant"] for row in rows])
        effects.told = True


async def tell_each(connection: Connection, events: list[tuple[int, str, int, dict[str, Any]]], effects: Effects) -> None:
    """Events (tenant, kind, task, data) that say something about each task."""
    if events:
        rows = [(tenant, kind, task, msgspec.json.encode(data).decode()) for tenant, kind, task, data in events]
        await connection.execute(_TELL_EACH, *columns(rows))
        effects.told = True


async def _keep_warnings(connection: Connection, notices: Told, effects: Effects) -> None:
    if not notices:
        return
    refs = [(notice.id, notice.attempt, node) for node, notice in notices]
    tenants = {row["id"]: row["tenant"] for row in await connection.fetch(_HOLDERS, *columns(refs))}
    events = [
        (tenants[notice.id], WARNINGS[notice.kind], notice.id, {"attempt": notice.attempt, **_data(notice.text)})
        for _, notice in notices
        if notice.id in tenants
    ]
    await tell_each(connection, events, effects)


async def tell_killed(connection: Connection, judged: list[tuple[Any, Finished]], effects: Effects) -> None:
    """Attempts that were ended for what they used: their clients are told what was used and what was allowed (G3)."""
    events = []
    for row, report in judged:
        if report.outcome in KILLED:
            info = msgspec.json.decode(report.error, type=ErrorInfo) if report.error else ErrorInfo("", "")
            data = {"attempt": report.attempt, "outcome": Outcome(report.outcome).word, "message": info.message}
            data |= {"used": _used(report), "allowed": {"execution_cap_s": row["cap_ms"] / 1000}}
            if info.excess is not None:  # the limit it was ended for
                data["limit"] = {"what": info.excess.what, "used": info.excess.used, "allowed": info.excess.allowed}
            events.append((row["tenant"], "task.killed", report.id, data))
    await tell_each(connection, events, effects)


def _used(report: Finished) -> dict[str, Any]:
    used: dict[str, Any] = {"wall_s": (report.ended_ms - report.started_ms) / 1000}
    if report.cpu_ms is not None:
        used["cpu_s"] = report.cpu_ms / 1000
    if report.max_memory is not None:
        used["max_memory"] = report.max_memory
    return used


def _data(text: str) -> dict[str, Any]:
    """What an agent said, if it can be stored."""
    try:
        return msgspec.json.decode(_clean(text, 2_000), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _clean(text: str, most: int = MAX_ANSWER) -> str:
    return text.replace("\x00", "")[:most]
