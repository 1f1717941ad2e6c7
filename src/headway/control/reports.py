"""Collects the reports of all agents of this server and writes them together; an agent is answered after the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg
import msgspec

from headway.control.bus import Bus
from headway.control.clock import Clock
from headway.control.definitions import Definitions
from headway.control.lanes import Lanes
from headway.control.onward import Onward
from headway.control.record import Reports, record
from headway.control.settle import Effects, tell
from headway.domain.lifecycle import Outcome
from headway.domain.stages import MOST as MOST_STAGES
from headway.errors import HeadwayError, InvalidInput, Unavailable
from headway.logs import log
from headway.store.database import Connection, Database
from headway.wire.exchange import ErrorInfo, Exchange, Finished, Output, Progress, as_text, is_json, possible

CLOCK_SLACK_MS = 100  # an agent whose clock differs by more has its times moved onto the database's
_EARLIEST_MS = 946_684_800_000  # the year 2000
MAX_TEXT = 500
MAX_ERROR = 256 * 1024  # characters of a message or traceback
BATCH = 4_000
_OUTCOMES = frozenset(Outcome)
_FORESEEN = (HeadwayError, asyncpg.PostgresError, ValueError)


@dataclass
class _Waiting:
    node: int
    exchange: Exchange
    done: asyncio.Future[None]


@dataclass
class ReportDesk:
    """The queue of reports in front of the store."""

    database: Database
    definitions: Definitions
    clock: Clock
    bus: Bus
    onward: Callable[[], Onward | None] = lambda: None  # a new one for each transaction

    def __post_init__(self) -> None:
        self.lanes = Lanes(self._commit, lambda waiting: len(waiting.exchange.finished), BATCH)

    async def submit(self, node: int, exchange: Exchange) -> None:
        """Returns once the report is committed."""
        waiting = _Waiting(node, exchange, asyncio.get_running_loop().create_future())
        self.lanes.add(waiting)
        await asyncio.shield(waiting.done)

    async def _commit(self, batch: list[_Waiting]) -> None:
        try:
            effects = await self._write(batch)
        except Unavailable as error:
            _fail(batch, error)
        except Exception as error:  # whatever it is, each of them is answered
            if len(batch) > 1:
                for waiting in batch:
                    await self._commit([waiting])
                return
            log("report.refused", node=batch[0].node, error=repr(error), exc_info=None if isinstance(error, _FORESEEN) else error)
            _fail(batch, _refusal(error))
        else:
            for waiting in batch:
                if not waiting.done.done():
                    waiting.done.set_result(None)
            tell(self.bus, effects)

    async def _write(self, batch: list[_Waiting]) -> Effects:
        reports = Reports()
        now_ms = self.clock.now_us() // 1000
        for waiting in batch:
            _sort_into(reports, waiting.node, waiting.exchange, now_ms)
        onward = self.onward()

        async def work(connection: Connection) -> Effects:
            effects = await record(connection, reports, self.definitions)
            if onward is not None:
                await onward.lease(connection, effects)
            return effects

        try:
            effects = await self.database.transact(work)
        except BaseException:
            if onward is not None:
                onward.lost()
            raise
        if onward is not None:
            onward.committed()
        return effects


def _refusal(error: Exception) -> HeadwayError:
    """Values that cannot be stored are the agent's mistake, anything else is ours."""
    if isinstance(error, HeadwayError):
        return error
    if isinstance(error, (ValueError, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)):
        return InvalidInput(f"the report could not be stored: {error}")
    return HeadwayError(f"the report could not be stored: {error}")


def _fail(batch: list[_Waiting], error: HeadwayError) -> None:
    for waiting in batch:
        if not waiting.done.done():
            waiting.done.set_exception(error)
            waiting.done.exception()


def _sort_into(reports: Reports, node: int, exchange: Exchange, now_ms: int) -> None:
    """One agent's report into the common lists, its times on the database's clock."""
    shift = now_ms - exchange.now_ms if exchange.now_ms else 0
    if abs(shift) <= CLOCK_SLACK_MS:
        shift = 0
    for finished in exchange.finished:
        if shift or not _EARLIEST_MS < finished.started_ms <= finished.ended_ms <= now_ms:
            finished.ended_ms = _plausible(finished.ended_ms + shift, now_ms)
            begun = _plausible(finished.started_ms + shift, now_ms) if finished.started_ms else 0
            finished.started_ms = min(begun, finished.ended_ms)
        if finished.waits:
            finished.waits = possible(finished.waits)
        if finished.result is not None and not is_json(finished.result):
            finished.result = as_text(finished.result)
        if not (finished.exit_code is finished.cpu_ms is finished.max_memory is finished.read_bytes is finished.written_bytes is None):
            _fit(finished)
        if finished.outcome:
            if finished.outcome not in _OUTCOMES:
                finished.outcome = Outcome.ERROR
            finished.error = _error_text(finished.error)
            reports.failed.append((node, finished))
        else:
            reports.succeeded.append((node, finished))
    for started in exchange.started:
        started.at_ms = _plausible(started.at_ms + shift, now_ms)
        reports.started.append((node, started))
    reports.returned += [(node, ref) for ref in exchange.returned]
    reports.notices += [(node, notice) for notice in exchange.notices]
    reports.staged += [(node, staged) for staged in exchange.stages if possible([staged.id]) and 0 <= staged.number < MOST_STAGES]
    reports.output += [(node, _shifted(o, shift, now_ms)) for o in exchange.output]
    reports.progress += [(node, _clean(p)) for p in exchange.progress]
    exchange.now_ms = 0  # its times are moved: when the batch must be tried again, they are not moved twice


def _error_text(said: str | None) -> str | None:
    """JSON of an ErrorInfo that can be stored, whatever the agent said: an attempt that ended must be able to end."""
    if said is None:
        return None
    try:
        info = msgspec.json.decode(said, type=ErrorInfo)
    except (ValueError, RecursionError):
        info = ErrorInfo("Error", said)
    kind, message, traceback = (part.replace("\x00", "")[:MAX_ERROR] for part in (info.type, info.message, info.traceback))
    kept = ErrorInfo(kind, message, traceback, info.excess)
    return msgspec.json.encode(kept).decode()


def _fit(finished: Finished) -> None:
    """Who used more than its column takes has used as much as that: 25 days of CPU time are not many for a large machine."""
    code, cpu_ms, memory = finished.exit_code or 0, finished.cpu_ms or 0, finished.max_memory or 0
    read, written = finished.read_bytes or 0, finished.written_bytes or 0
    if 0 <= cpu_ms < 2**31 and 0 <= memory < 2**63 and -(2**31) <= code < 2**31 and 0 <= read < 2**63 and 0 <= written < 2**63:
        return
    finished.exit_code = _within(finished.exit_code, -(2**31), 2**31 - 1)
    finished.cpu_ms = _within(finished.cpu_ms, 0, 2**31 - 1)
    finished.max_memory = _within(finished.max_memory, 0, 2**63 - 1)
    finished.read_bytes = _within(finished.read_bytes, 0, 2**63 - 1)
    finished.written_bytes = _within(finished.written_bytes, 0, 2**63 - 1)


def _within(number: int | None, least: int, most: int) -> int | None:
    return None if number is None else min(max(number, least), most)


def _plausible(moment_ms: int, now_ms: int) -> int:
    """A time no agent should be able to make up: after 2000, not in the future."""
    return moment_ms if _EARLIEST_MS < moment_ms <= now_ms + CLOCK_SLACK_MS else now_ms


def _shifted(output: Output, shift: int, now_ms: int) -> Output:
    output.at_ms = _plausible(output.at_ms + shift, now_ms)
    return output


def _clean(progress: Progress) -> Progress:
    """Progress text comes from the task itself: whatever it is, it must not fail the batch."""
    progress.text = progress.text.replace("\x00", "")[:MAX_TEXT]
    return progress
