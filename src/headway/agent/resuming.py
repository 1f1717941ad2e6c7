"""Attempts that go on where an earlier one was: folders brought back and saved, stages one after another (H8).

Stands between the machine, which says what to start, and the executables. Most attempts have neither stages nor a checkpoint and
pass through. While a folder is being carried, or a finished stage is being recorded, an attempt is here without a process.

A folder is saved when nothing in it was written to for a second, and at the latest after ten if it is never still, but not more
often than every five, and a large one less often. At the end of a program that did not succeed it is saved once more before the end
is told, so that the next attempt finds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from headway.agent.carriers import Carriers
from headway.agent.carry import Answer
from headway.agent.clock import wall_ms
from headway.agent.executables import Executables
from headway.agent.folders import Changed, Signature, Unfit, signature
from headway.agent.output import STDERR
from headway.agent.process import Process
from headway.agent.reports import Outbox, error_text
from headway.agent.scratch import CHECKPOINT
from headway.agent.stages import StageDefinitions, name_stage
from headway.domain.lifecycle import Outcome
from headway.domain.task import Definition
from headway.wire.exchange import ErrorInfo, Finished, Order, Staged

LOOK_S = 0.5  # between two looks at the folders
QUIET_S = 1.0  # a folder that was not written to for so long is whole
LONGEST_S = 10.0  # between two checkpoints of a folder that is never still
REST_S = 5.0  # at least, between two checkpoints of a task that runs
RATE = 4 * 2**20  # bytes a second that one task may save, on the average
MOST_LOOKED_AT = 2_000  # entries of one folder: beyond, it counts as changed
AT_ONCE = 4  # folders that are being saved


@dataclass
class Watched:
    """The folder of a running program."""

    seen: Signature = ()
    since: float = 0.0  # when `seen` was first seen so
    saved: Signature = ()
    saved_at: float = 0.0
    rest_until: float = 0.0
    carrier: int = 0  # a process that saves it now
    told: str = ""  # the last problem that was told


@dataclass
class Attempt:
    """One that has more than its process."""

    process: Process
    definition: Definition
    stage: int = 0
    carrier: int = 0
    ended: Finished | None = None  # it has ended, and its folder is being saved
    waits: bool = False  # paused, its next program could begin


class Resuming:
    def __init__(self, executables: Executables, carriers: Carriers, outbox: Outbox, tell: Callable[[Finished], None]) -> None:
        self._executables, self._carriers, self._outbox, self._tell = executables, carriers, outbox, tell
        self._definitions = StageDefinitions()
        self._attempts: dict[int, Attempt] = {}  # by task: staged ones, and those that are here without a process
        self._here: set[int] = set()  # tasks without a process
        self._recorded: list[tuple[int, int, int]] = []  # report, task, attempt: stages whose record is on its way
        self._ending: set[int] = set()  # tasks that were asked to end: what their programs say now is not the last word
        self._paused: set[int] = set()  # tasks of which no program may begin
        self._watched: dict[int, Watched] = {}  # by process
        self._look_at = 0.0
        executables.keep, executables.unable = self._keep, self._unable

    # --- beginning

    def spawn(self, wanted: list[tuple[Order, Definition]]) -> list[Finished]:
        """Start them, or bring their folders back first. Those that could not be started are finished already."""
        plain: list[tuple[Order, Definition]] = []
        failed: list[Finished] = []
        for order, definition in wanted:
            if order.resume is None and not definition.stages:
                plain.append((order, definition))
            else:
                failed += self._begin(order, definition)
        return failed + self._executables.spawn(plain) if plain else failed

    def _begin(self, order: Order, definition: Definition) -> list[Finished]:
        process, failed = self._executables.begin(order, definition)
        if failed is not None:
            return [failed]
        stage = min(order.resume.stage if order.resume else 0, max(len(definition.stages) - 1, 0))
        attempt = self._attempts[order.id] = Attempt(process, definition, stage)
        if order.resume is not None and order.resume.checkpoints:
            self._here.add(order.id)
            folder = f"{process.dir}/{CHECKPOINT}"
            attempt.carrier = self._carriers.fetch(
                order, folder, order.resume.checkpoints, lambda answer: self._fetched(attempt, answer)
            )
            return []
        return self._go(attempt)

    def _fetched(self, attempt: Attempt, answer: Answer) -> None:
        if not self._is_here(attempt):
            return
        attempt.carrier = 0
        if answer.again:
            self._end_here(attempt, Outcome.PRE_EMPTED, ErrorInfo("CheckpointUnreachable", answer.error))
            return
        if answer.error:
            self._say(attempt.process, f"a checkpoint was passed over: {answer.error}")
        for finished in self._go(attempt):
            self._tell(finished)

    def pause(self, task: int) -> None:
        """Its next program waits: one that is here without a process has nothing that could be frozen."""
        self._paused.add(task)

    def go_on(self, task: int) -> None:
        self._paused.discard(task)
        attempt = self._attempts.get(task)
        if attempt is not None and attempt.waits and self._is_here(attempt):
            for finished in self._go(attempt):
                self._tell(finished)

    def _go(self, attempt: Attempt) -> list[Finished]:
        """Start its program, or that of its stage; one that is paused does not begin yet."""
        order, definition = attempt.process.order, attempt.definition
        attempt.waits = order.id in self._paused
        if attempt.waits:
            self._here.add(order.id)
            return []
        self._here.discard(order.id)
        if definition.stages:
            definition = self._definitions.of(order.definition, definition, attempt.stage)
        else:
            del self._attempts[order.id]
        return self._executables.start([(attempt.process, definition)])

    def _unable(self, process: Process, finished: Finished) -> None:
        """Its program, or that of its stage, could not be started."""
        attempt = self._attempts.pop(process.order.id, None)
        if attempt is not None:
            self._name_stage(attempt, finished)

    # --- ending

    def _keep(self, process: Process, finished: Finished) -> bool:
        """A program ended. True: the attempt goes on, or its end is told later."""
        watched = self._watched.pop(process.pid, None)
        if watched is not None and watched.carrier:
            self._carriers.kill(watched.carrier)
        attempt = self._attempts.get(process.order.id)
        well = finished.outcome == Outcome.SUCCEEDED and process.order.id not in self._ending
        self._ending.discard(process.order.id)
        if attempt is not None and well and attempt.stage + 1 < len(attempt.definition.stages):
            self._record(attempt)
            return True
        if attempt is not None:
            self._name_stage(attempt, finished)
        if well or not _has_entries(f"{process.dir}/{CHECKPOINT}"):
            self._attempts.pop(process.order.id, None)
            return False
        self._save_last(attempt or Attempt(process, Definition("")), finished)
        return True

    def _record(self, attempt: Attempt) -> None:
        """The next stage begins when it is on record that this one has ended."""
        order = attempt.process.order
        self._here.add(order.id)
        self._outbox.add("stages", [Staged(order.id, order.attempt, attempt.stage)])
        self._recorded.append((self._outbox.next_number, order.id, order.attempt))

    def answered(self, number: int) -> None:
        """All reports up to this one are committed."""
        due = [(task, of) for report, task, of in self._recorded if report <= number]
        if not due:
            return
        self._recorded = [each for each in self._recorded if each[0] > number]
        for task, of in due:
            attempt = self._attempts.get(task)
            if attempt is not None and task in self._here and attempt.process.order.attempt == of:
                attempt.stage += 1
                for finished in self._go(attempt):
                    self._tell(finished)

    def _save_last(self, attempt: Attempt, finished: Finished) -> None:
        """What a program left when it ended by itself is whole. What a signal ended may not be: only if it was quiet before."""
        process = attempt.process
        attempt.ended = finished
        self._attempts[process.order.id] = attempt
        self._here.add(process.order.id)
        quiet_s = QUIET_S if finished.outcome == Outcome.SIGNAL else 0.0
        attempt.carrier = self._carriers.save(
            process.order, f"{process.dir}/{CHECKPOINT}", quiet_s=quiet_s, then=lambda answer: self._saved_last(attempt, answer)
        )

    def _saved_last(self, attempt: Attempt, answer: Answer) -> None:
        if not self._is_here(attempt):
            return
        if answer.error:
            self._say(attempt.process, f"the last checkpoint was not saved: {answer.error}")
        self._leave(attempt)

    def end(self, task: int, *, force: bool) -> None:
        """End an attempt, whether it has a process now or not."""
        attempt = self._attempts.get(task)
        if attempt is None or task not in self._here:
            if self._executables.tree_of(task)[0]:
                self._ending.add(task)
            self._executables.end(task, force=force)
            return
        if attempt.ended is not None and not force:
            return  # its program has ended; its folder is being saved
        if attempt.carrier:
            self._carriers.kill(attempt.carrier)
        if attempt.ended is not None:
            self._leave(attempt)
        else:
            self._end_here(attempt, Outcome.SIGNAL, ErrorInfo("Ended", "ended before its program began"))

    def _end_here(self, attempt: Attempt, outcome: Outcome, why: ErrorInfo) -> None:
        order, now = attempt.process.order, wall_ms()
        attempt.ended = Finished(order.id, order.attempt, outcome, attempt.process.started_ms, now, error=error_text(why))
        self._leave(attempt)

    def _leave(self, attempt: Attempt) -> None:
        """Its end is told, and its folder given back."""
        order = attempt.process.order
        self._here.discard(order.id)
        self._attempts.pop(order.id, None)
        self._executables.leave(attempt.process)
        if attempt.ended is not None:
            self._tell(attempt.ended)

    def _is_here(self, attempt: Attempt) -> bool:
        order = attempt.process.order
        return order.id in self._here and self._attempts.get(order.id) is attempt

    def _name_stage(self, attempt: Attempt, finished: Finished) -> None:
        if attempt.definition.stages and finished.outcome:
            name_stage(finished, attempt.definition.stages[attempt.stage].name)

    def _say(self, process: Process, text: str) -> None:
        """A line in the task's own output."""
        pieces, _ = process.capture.feed(STDERR, f"[headway: {text}]\n".encode(errors="replace"), wall_ms())
        if pieces:
            self._outbox.add("output", pieces)

    # --- saving while it runs

    def tick(self, now: float) -> None:
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for process in self._executables.running():
            if now - process.since >= QUIET_S:
                self._look(process, now)

    def _look(self, process: Process, now: float) -> None:
        folder = f"{process.dir}/{CHECKPOINT}"
        watched = self._watched.get(process.pid)
        if watched is None:
            if not _has_entries(folder):
                return
            watched = self._watched[process.pid] = Watched(saved_at=now)
        if watched.carrier or now < watched.rest_until:
            return
        try:
            seen = signature(folder, MOST_LOOKED_AT)
        except Changed:
            return  # it is being written to
        except Unfit as error:
            self._complain(process, watched, str(error))
            return
        if seen != watched.seen:
            watched.seen, watched.since = seen, now
        if not seen or (seen == watched.saved and len(seen) < MOST_LOOKED_AT):
            return
        if now - watched.since < QUIET_S and now - watched.saved_at < LONGEST_S:
            return
        if sum(1 for each in self._watched.values() if each.carrier) < AT_ONCE:
            watched.carrier = self._carriers.save(
                process.order, folder, quiet_s=0.0, then=lambda answer: self._saved(process, watched, seen, answer)
            )

    def _saved(self, process: Process, watched: Watched, seen: Signature, answer: Answer) -> None:
        watched.carrier = 0
        now = watched.saved_at = watched.since = self._look_at
        if not answer.again:
            watched.saved = seen
            watched.rest_until = now + max(REST_S, sum(max(size, 0) for _, _, size, _ in seen) / RATE)
        if answer.error and not answer.again and self._watched.get(process.pid) is watched:
            self._complain(process, watched, answer.error)

    def _complain(self, process: Process, watched: Watched, why: str) -> None:
        if why != watched.told:
            watched.told = why
            self._say(process, f"the checkpoint was not saved: {why}")

    def drop_all(self) -> None:
        """Forget everything: it has been killed."""
        for attempt in self._attempts.values():
            if attempt.process.order.id in self._here:
                self._executables.leave(attempt.process)
        self._attempts.clear()
        self._here.clear()
        self._recorded.clear()
        self._ending.clear()
        self._paused.clear()
        self._watched.clear()
        self._carriers.drop_all()


def _has_entries(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError:
        return False
