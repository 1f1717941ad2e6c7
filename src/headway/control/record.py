"""Writes what agents report, many agents in one transaction: starts, successes, failures, returns, output (F1 F2 F3).

Everything is fenced by (id, attempt, node): a late or repeated report of an older attempt matches no row and changes nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import random
import re
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import msgspec

from headway.control import subtasks
from headway.control.checkpoints import keep_stages
from headway.control.definitions import Definitions, Interned
from headway.control.levels import Tally
from headway.control.notices import keep_notices, tell_killed
from headway.control.settle import Effects, cancel_waiting, settle
from headway.domain.lifecycle import BLAME, HELD, Blame, Outcome, State
from headway.policy.retry import Counts, Step, Verdict, decide
from headway.store.arrays import byte_strings, columns, ints, longs, moments, unpacked
from headway.store.database import Connection
from headway.store.queries import query
from headway.wire.exchange import ErrorInfo, Finished, Notice, Output, Progress, Ref, Staged, Started

_SUCCEED = query("task.succeed")
_LOCK = query("task.lock")
_RETRY = query("task.retry")
_ENLARGE = query("task.enlarge")
_KEEP = query("task.keep_attempts")
_ENDED = query("task.end_without_success")
_FAIL = query("task.fail")
_START = query("task.start")
_GIVE_BACK = query("task.give_back")
_OUTPUT = query("output.keep")
_PROGRESS = query("output.progress")
_IO = query("attempt_io.keep")


@dataclass
class Reports:
    """Reports of any number of nodes, each with the node that sent it; times are already on the database's clock."""

    started: list[tuple[int, Started]] = field(default_factory=list)
    succeeded: list[tuple[int, Finished]] = field(default_factory=list)
    failed: list[tuple[int, Finished]] = field(default_factory=list)
    returned: list[tuple[int, Ref]] = field(default_factory=list)
    notices: list[tuple[int, Notice]] = field(default_factory=list)
    staged: list[tuple[int, Staged]] = field(default_factory=list)
    output: list[tuple[int, Output]] = field(default_factory=list)
    progress: list[tuple[int, Progress]] = field(default_factory=list)

    def __bool__(self) -> bool:
        fields = (self.started, self.succeeded, self.failed, self.returned, self.notices, self.staged, self.output, self.progress)
        return any(fields)


async def record(connection: Connection, reports: Reports, definitions: Definitions) -> Effects:
    """All of it, in the caller's transaction."""
    effects = Effects()
    await _starts(connection, reports.started)
    if reports.notices:  # before the ends: they are about attempts that still ran
        await keep_notices(connection, reports.notices, effects)
    if reports.staged:
        await keep_stages(connection, reports.staged)
    waited_for = await _successes(connection, reports.succeeded, effects)
    waited_for += await failures(connection, reports.failed, definitions, effects)
    waited_for += await _returns(connection, reports.returned, effects)
    await _outputs(connection, reports)
    await _io(connection, reports)
    await settle(connection, waited_for, effects)  # last: the counters of trees are locked after tasks
    return effects


async def _starts(connection: Connection, started: list[tuple[int, Started]]) -> None:
    if started:
        rows = sorted((s.id, s.attempt, node, s.at_ms) for node, s in started)
        await connection.execute(_START, *columns(rows))


async def _successes(connection: Connection, finished: list[tuple[int, Finished]], effects: Effects) -> list[tuple[int, State]]:
    if not finished:
        return []
    finished.sort(key=_by_id)
    those = [f for _, f in finished]
    done = await connection.fetch(
        _SUCCEED,
        longs([f.id for f in those]),
        ints([f.attempt for f in those]),
        ints([node for node, _ in finished]),
        moments([f.started_ms for f in those]),
        moments([f.ended_ms for f in those]),
        byte_strings([f.result for f in those]),
        _sparse([f.exit_code for f in those]),
        _sparse([f.cpu_ms for f in those]),
        _sparse([f.max_memory for f in those]),
    )
    waited_for: list[tuple[int, State]] = []
    levels: list[tuple[int, int, tuple[int, ...]]] = []
    for tenant, shape, node, waited, tree, level, ids in done:
        tasks = unpacked(ids)
        effects.free(node, tenant, shape, len(tasks))
        ended = list(zip(tasks, repeat(State.SUCCEEDED)))
        effects.ended += ended
        if waited:
            waited_for += ended
        if tree is not None:
            levels.append((tree, level, tasks))
    if levels:
        _count_successes(effects.levels, those, levels)
    return waited_for


def _count_successes(tally: Tally, finished: list[Finished], levels: list[tuple[int, int, tuple[int, ...]]]) -> None:
    """Tasks that succeeded, by tree and level, into the tally; most reports are of one level, and whole."""
    if len(levels) == 1 and len(levels[0][2]) == len(finished):
        tally.succeeded(*levels[0][:2], [f.started_ms for f in finished], [f.ended_ms for f in finished])
        return
    said = {f.id: f for f in finished}
    for tree, level, tasks in levels:
        tally.succeeded(tree, level, [said[task].started_ms for task in tasks], [said[task].ended_ms for task in tasks])


async def failures(
    connection: Connection, finished: list[tuple[int, Finished]], definitions: Definitions, effects: Effects
) -> list[tuple[int, State]]:
    """Attempts that did not succeed: each is retried, cancelled or becomes a dead letter, as the policy decides."""
    if not finished:
        return []
    rows = {row["id"]: row for row in await connection.fetch(_LOCK, sorted({f.id for _, f in finished}))}
    known = await definitions.load({row["definition"] for row in rows.values()})
    await subtasks.refuse_circles(connection, rows, [report for _, report in finished])
    retried: list[tuple[Any, Finished, Verdict]] = []
    cancelled: list[tuple[Any, Finished, Verdict]] = []
    dead: list[tuple[Any, Finished, Verdict]] = []
    judged: list[tuple[Any, Finished]] = []
    for node, report in sorted(finished, key=_by_id):
        row = rows.get(report.id)
        if row is None or row["attempt"] != report.attempt or row["node"] != node or row["state"] not in HELD:
            continue
        del rows[report.id]  # a second report of the same attempt in this batch is a repeat
        definition = known[row["definition"]].definition
        counts = Counts(row["failures"], row["resource_failures"], row["node_losses"], row["requeues"])
        verdict = decide(
            Outcome(report.outcome), counts, attempts=definition.attempts, retry=definition.retry,
            cancelling=row["cancel_at"] is not None, luck=random.random(),
        )  # fmt: skip
        effects.free(node, row["tenant"], row["shape"])
        judged.append((row, report))
        {Step.AGAIN: retried, Step.CANCEL: cancelled, Step.GIVE_UP: dead}[verdict.step].append((row, report, verdict))
    await tell_killed(connection, judged, effects)
    await _enlarge(connection, retried, known, definitions)
    await _retry(connection, retried, effects)
    return await _cancel(connection, cancelled, effects) + await _bury(connection, dead, known, effects)


async def _enlarge(
    connection: Connection, retried: list[tuple[Any, Finished, Verdict]], known: dict[int, Interned], definitions: Definitions
) -> None:
    """A task that ran out of memory is tried again in the next larger tier, where there is one it may have (K2)."""
    rows = []
    for row, report, _ in retried:
        if report.outcome != Outcome.OUT_OF_MEMORY:
            continue
        larger = definitions.larger(row["tenant"], known[row["definition"]].definition)
        if larger is not None:
            interned = await definitions.intern(row["tenant"], larger)
            rows.append((row["id"], interned.id, interned.shape))
    if rows:
        await connection.execute(_ENLARGE, *columns(sorted(rows)))


async def _retry(connection: Connection, retried: list[tuple[Any, Finished, Verdict]], effects: Effects) -> None:
    if not retried:
        return
    now = await connection.fetchval("select clock_timestamp()")
    rows = []
    suspended = []
    for row, report, verdict in retried:
        if report.outcome == Outcome.SUSPENDED:
            suspended.append((row, report.waits, verdict.counts.requeues))
            continue
        eligible = now + datetime.timedelta(seconds=verdict.delay_s)
        tolerance = row["start_by"] - row["eligible_at"]
        state = State.SCHEDULED if verdict.delay_s > 0 else State.READY
        if row["hold_at"] is not None:
            state = State.PAUSED  # somebody asked for it: the next attempt waits until it is resumed
        c = verdict.counts
        rows.append((row["id"], state, eligible, eligible + tolerance, c.failures, c.resource_failures, c.node_losses, c.requeues))
    kept = [
        (row["id"], row["attempt"], row["node"], row["leased_at"], _moment(report.started_ms), _moment(report.ended_ms), report.outcome,
         report.exit_code, report.error, report.cpu_ms, report.max_memory)
        for row, report, _ in retried
    ]  # fmt: skip
    await connection.execute(_KEEP, *columns(kept))
    await subtasks.suspend(connection, suspended, effects)
    if rows:
        await subtasks.failed(connection, [row["id"] for row, report, _ in retried if BLAME[Outcome(report.outcome)] in _ITS_OWN])
        again = await connection.fetch(_RETRY, *columns(rows))
        effects.now_ready([row for row in again if row["state"] == State.READY])
        effects.scheduled |= any(row["state"] == State.SCHEDULED for row in again)


async def _cancel(
    connection: Connection, cancelled: list[tuple[Any, Finished, Verdict]], effects: Effects
) -> list[tuple[int, State]]:
    if not cancelled:
        return []
    rows = [
        (
            row["id"],
            State.CANCELLED,
            report.outcome,
            report.error,
            report.exit_code,
            _moment(report.started_ms),
            _moment(report.ended_ms),
            report.cpu_ms,
            report.max_memory,
        )
        for row, report, _ in cancelled
    ]
    done = await connection.fetch(_ENDED, *columns(rows))
    effects.ended += [(row["id"], State.CANCELLED) for row in done]
    _count(effects, done, State.CANCELLED, {report.id: report for _, report, _ in cancelled})
    return [(row["id"], State.CANCELLED) for row in done if row["has_dependants"]]


async def _bury(
    connection: Connection, dead: list[tuple[Any, Finished, Verdict]], known: dict[int, Interned], effects: Effects
) -> list[tuple[int, State]]:
    if not dead:
        return []
    rows = []
    for row, report, verdict in dead:
        name = known[row["definition"]].definition.name
        error = report.error or msgspec.json.encode(ErrorInfo(Outcome(report.outcome).word, verdict.because)).decode()
        c = verdict.counts
        rows.append(
            (row["id"], report.outcome, error, report.exit_code, _moment(report.started_ms), _moment(report.ended_ms), report.cpu_ms,
             report.max_memory, fingerprint(name, report.outcome, error), c.failures, c.resource_failures, c.node_losses)
        )  # fmt: skip
    done = await connection.fetch(_FAIL, *columns(rows))
    effects.ended += [(row["id"], State.FAILED) for row in done]
    _count(effects, done, State.FAILED, {report.id: report for _, report, _ in dead})
    return [(row["id"], State.FAILED) for row in done if row["has_dependants"]]


async def fail_waiting(
    connection: Connection, task: int, what: Interned, error: ErrorInfo, effects: Effects
) -> list[tuple[int, State]]:
    """A task that waits (locked by the caller) can never run: a dead letter with the reason. Returns it if others wait for it."""
    now = await connection.fetchval("select clock_timestamp()")
    text, kind = msgspec.json.encode(error).decode(), int(Outcome.NOT_STARTABLE)
    row = (task, kind, text, None, None, now, None, None, fingerprint(what.definition.name, kind, text), 0, 0, 0)
    done = await connection.fetch(_FAIL, *columns([row]))
    effects.ended += [(row["id"], State.FAILED) for row in done]
    for row in done:
        if row["tree"] is not None:
            effects.levels.end(row["tree"], row["level"], State.FAILED, ended_ms=round(now.timestamp() * 1000))
    return [(row["id"], State.FAILED) for row in done if row["has_dependants"]]


def _count(effects: Effects, ended: list[Any], state: State, reports: dict[int, Finished]) -> None:
    """The levels of those that belong to a tree."""
    for row in ended:
        if row["tree"] is not None:
            report = reports[row["id"]]
            effects.levels.end(row["tree"], row["level"], state, began_ms=report.started_ms, ended_ms=report.ended_ms)


_ITS_OWN = (Blame.TASK, Blame.RESOURCE)
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")


def fingerprint(name: str, outcome: int, error: str) -> str:
    """Groups dead letters that died of the same thing: numbers and quoted words in the message do not count."""
    info = msgspec.json.decode(error, type=ErrorInfo)
    first = info.message.strip().splitlines()[:1]
    text = f"{name}|{outcome}|{info.type}|{_VARIABLE.sub('#', first[0][:200] if first else '')}"
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


async def _returns(connection: Connection, returned: list[tuple[int, Ref]], effects: Effects) -> list[tuple[int, State]]:
    """Orders that were not begun wait again; those that somebody cancelled meanwhile end here, or another node would run them."""
    if not returned:
        return []
    rows = await connection.fetch(_GIVE_BACK, *columns(sorted((ref[0], ref[1], node) for node, ref in returned)))
    for row in rows:
        there = (row["node"], row["tenant"], row["shape"])
        effects.returned[there] = effects.returned.get(there, 0) + 1
    effects.now_ready([row for row in rows if row["state"] == State.READY and not row["cancelling"]])
    return await cancel_waiting(connection, sorted(row["id"] for row in rows if row["cancelling"]), effects)


async def _outputs(connection: Connection, reports: Reports) -> None:
    if reports.output:
        rows = sorted((o.id, o.attempt, o.sequence, o.stream, o.at_ms, o.data, node) for node, o in reports.output)
        await connection.execute(_OUTPUT, *columns(rows))
    if reports.progress:
        last = {p.id: (p.id, p.attempt, p.done, p.total, p.text, node) for node, p in reports.progress}
        await connection.execute(_PROGRESS, *columns(sorted(last.values())))


async def _io(connection: Connection, reports: Reports) -> None:
    rows = {
        (f.id, f.attempt): (f.id, f.attempt, f.read_bytes or 0, f.written_bytes or 0)
        for _, f in (*reports.succeeded, *reports.failed)
        if f.read_bytes or f.written_bytes
    }
    if rows:
        await connection.execute(_IO, *columns(sorted(rows.values())))


def _sparse(column: list[Any]) -> list[Any]:
    """A column of nulls is sent as an empty array, which unnest fills up with nulls: encoding costs 0.3 µs an element."""
    return column if column.count(None) < len(column) else []


def _by_id(item: tuple[int, Finished]) -> int:
    return item[1].id


def _moment(unix_ms: int) -> datetime.datetime | None:
    return datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC) if unix_ms else None
