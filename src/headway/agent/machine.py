"""The agent's brain, without hands: `handle(stimulus)` returns instructions and does no I/O.

It answers for every attempt it accepted: each waits in the local queue, runs as an executable, or is in the batch
of a warm runner, and leaves by exactly one TellFinished, TellReturned or runner's result. An (id, attempt) is
accepted once; a lower attempt of a task is never started after a higher one, and a higher one not before the lower
has ended here. An order for one that has left already is answered by telling its end again: whoever gives it has not
kept what it was told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.agent.excess import OUTCOMES, said
from headway.agent.local_queue import Amounts, LocalQueue, Recipe, minus, plus
from headway.agent.pool import Pool
from headway.agent.preparing import Preparing
from headway.agent.recipes import Recipes
from headway.agent.reports import error_text
from headway.agent.signals import (
    BatchNotGiven,
    DrainAsked,
    EndAllAsked,
    Ending,
    EndProcess,
    Fenced,
    Instruction,
    OrdersArrived,
    Prepared,
    ProcessEnded,
    RunnerDid,
    RunnerEnded,
    RunnerGaveBack,
    RunnerReady,
    Spawn,
    Stimulus,
    Take,
    TellAgain,
    TellFinished,
    TellNotices,
    TellReturned,
    TellStarted,
    Tick,
)
from headway.agent.starting import READY_S
from headway.agent.steering import Steering
from headway.domain.languages import PYTHON
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import Cancel, ErrorInfo, Excess, Finished, Notice, Order, Ref, Started

GRACE_S = 5.0  # between SIGTERM and SIGKILL when an execution cap is exceeded (H6)
STARTED_S = 0.5  # attempts still running are announced this often
REMEMBER_S = 5.0  # at least so long is a repeated order recognised: longer than any answer can be on its way under one lease
REMEMBER = 20_000  # and at least so many of them
STALLED_S = 1.0  # a group from which nothing was started for so long goes back to the server


@dataclass(slots=True)
class Running:
    """An executable that runs."""

    order: Order
    recipe: Recipe
    since: float
    started_ms: int
    announced: bool = False
    ending: Ending | None = None


class Machine:
    """Everything an agent holds, and what to do next."""

    def __init__(self, capacity: Amounts, *, wall_ms: Callable[[], int], idle_s: float = 60.0) -> None:
        self.free = capacity
        self.cores = max(1, capacity[0] // 1000)
        self.queue = LocalQueue()
        self.running: dict[int, Running] = {}
        self.pool = Pool(self, idle_s=idle_s)
        self.steering = Steering(self)
        self.recipes = Recipes(self.definitions_held)
        self.draining = False
        self.out: list[Instruction] = []
        self.wall_ms = wall_ms  # only to stamp reports; decisions use the stimulus' own time
        self._seen: dict[int, int] = {}  # task id -> highest attempt accepted
        self._seen_before: dict[int, int] = {}
        self._seen_since = 0.0
        self.preparing = Preparing(self)
        self._parked: dict[int, Order] = {}  # a higher attempt waits for the end of a lower one
        self._announce_at = 0.0
        self._stalls: dict[int, tuple[int, float]] = {}  # group -> (orders taken from it, since when it is so)
        self._handlers: dict[type, Callable[[Any], None]] = {
            OrdersArrived: self._orders_arrived,
            Prepared: lambda s: self.preparing.done(s),
            ProcessEnded: self._process_ended,
            RunnerReady: lambda s: self.pool.ready(s.runner, s.now),
            RunnerDid: self._runner_did,
            RunnerGaveBack: self._runner_gave_back,
            BatchNotGiven: self._batch_not_given,
            RunnerEnded: self._runner_ended,
            Tick: self._tick,
            DrainAsked: self._drain_asked,
            EndAllAsked: self._end_all,
            Fenced: self._fenced,
        }

    def handle(self, stimulus: Stimulus) -> list[Instruction]:
        self._handlers[type(stimulus)](stimulus)
        now: float | None = getattr(stimulus, "now", None)
        if now is not None and not self.draining:
            self._start(now)
        out, self.out = self.out, []
        return out

    def held(self) -> list[Ref]:
        """Every attempt this machine answers for."""
        refs = [(order.id, order.attempt) for order in self.queue]
        refs += [(running.order.id, running.order.attempt) for running in self.running.values()]
        refs += [(order.id, order.attempt) for runner in self.pool.runners.values() for order in runner.batch]
        refs += [(order.id, order.attempt) for order in self._parked.values()]
        refs += [(order.id, order.attempt) for order in self.preparing]
        return refs

    def definitions_held(self) -> set[int]:
        """The definitions of everything that waits or runs here."""
        held = {order.definition for order in self.queue} | {running.order.definition for running in self.running.values()}
        held |= {order.definition for runner in self.pool.runners.values() for order in runner.batch}
        return held | {order.definition for order in self._parked.values()} | {order.definition for order in self.preparing}

    @property
    def busy(self) -> bool:
        """Whether anything runs, so that time matters."""
        return bool(self.running) or self.pool.busy

    # --- what arrives

    def _orders_arrived(self, s: OrdersArrived) -> None:
        self.recipes.learn(s.definitions)
        refs: list[Ref] = []
        unknown: dict[int, None] = {}
        accepted: list[Order] = []
        again: list[Ref] = []
        seen, before = self._seen, self._seen_before
        for order in s.orders:
            if order.definition not in self.recipes and order.definition not in self.recipes.unusable:
                unknown[order.definition] = None
                continue
            refs.append((order.id, order.attempt))
            if order.definition in self.recipes.unusable:
                self.tell(order, Outcome.NOT_STARTABLE, ErrorInfo("NotStartable", self.recipes.unusable[order.definition]))
                continue
            if order.id in seen or order.id in before:
                if max(seen.get(order.id, 0), before.get(order.id, 0)) < order.attempt:
                    seen[order.id] = order.attempt
                    if not self._supersede(order, s.now):
                        accepted.append(order)
                else:
                    again.append((order.id, order.attempt))
                continue
            seen[order.id] = order.attempt
            accepted.append(order)
        self._forget(s.now)
        if self.draining:
            self._give_back(accepted)
        else:
            self._accept(accepted)
        if again and (left := set(again) - set(self.held())):
            self.out.append(TellAgain(sorted(left)))
        if refs or unknown:
            self.out.append(Take(refs, list(unknown)))
        if s.cancels:
            self._cancel(s.cancels, s.now)
        if s.controls:
            self.steering.control(s.controls, s.now)

    def _accept(self, orders: list[Order]) -> None:
        """Orders to run: what needs preparation waits for it first, outside the queue and its own cap (H5)."""
        self.enqueue(self.preparing.keep(orders) if self.recipes.to_prepare else orders)

    def enqueue(self, orders: list[Order]) -> None:
        """Append runs of orders of one group at a time: one lookup for a run, not for an order."""
        begin, last = 0, None
        for at, order in enumerate(orders):
            if order.definition != last:
                if begin < at:
                    self.queue.add(self.queue.group(self.recipes[orders[begin].definition]), orders[begin:at])
                begin, last = at, order.definition
        if begin < len(orders):
            self.queue.add(self.queue.group(self.recipes[orders[begin].definition]), orders[begin:])

    def _forget(self, now: float) -> None:
        if len(self._seen) > REMEMBER and now - self._seen_since > REMEMBER_S:
            self._seen_before, self._seen, self._seen_since = self._seen, {}, now

    def _supersede(self, order: Order, now: float) -> bool:
        """A higher attempt of a task seen before. True when it must wait for the end of the lower one."""
        self.queue.remove({order.id})
        self.preparing.remove({order.id})
        if (running := self.running.get(order.id)) is not None:
            self.end_running(running, Outcome.PRE_EMPTED, 0.0, now)
        elif not self.pool.end_task(order.id, Outcome.PRE_EMPTED, 0.0, now):
            return False
        self._parked[order.id] = order
        return True

    def unpark(self, task: int, attempt: int) -> bool:
        """Take an attempt out that waits for the end of a lower one; False when there is none."""
        parked = self._parked.get(task)
        if parked is None or parked.attempt != attempt:
            return False
        del self._parked[task]
        return True

    def _unpark(self, task: int) -> None:
        if self._parked and (order := self._parked.pop(task, None)) is not None:
            self._accept([order])

    # --- starting

    def _start(self, now: float) -> None:
        self.pool.top_up(now)
        skip: set[int] = set()
        while (group := self.queue.next(self.free, skip)) is not None:
            if group.kind:
                if not self.pool.give(group, now):
                    skip.add(id(group))
                continue
            order = group.orders.popleft()
            self.queue.took(group, 1)
            recipe = self.recipes[order.definition]
            self.allocate(recipe.need)
            self.running[order.id] = Running(order, recipe, now, self.wall_ms())
            self.out.append(Spawn(order, recipe.definition))

    def allocate(self, need: Amounts) -> None:
        self.free = minus(self.free, need)

    def release(self, need: Amounts) -> None:
        self.free = plus(self.free, need)

    # --- ending

    def _process_ended(self, s: ProcessEnded) -> None:
        running = self.running.get(s.finished.id)
        if running is None or running.order.attempt != s.finished.attempt:
            return  # fenced meanwhile
        del self.running[s.finished.id]
        self.steering.over(s.finished.id)
        self.release(running.recipe.need)
        finished = s.finished
        if running.ending is not None:
            finished.outcome = running.ending.outcome
            finished.error = error_text(why(running.ending.outcome, running.recipe, finished))
        self.out.append(TellFinished(finished))
        self._unpark(finished.id)

    def _runner_did(self, s: RunnerDid) -> None:
        for order in self.pool.did(s):
            if self._parked:
                self._unpark(order.id)

    def _runner_gave_back(self, s: RunnerGaveBack) -> None:
        self.requeue(self.pool.gave_back(s), s.now)

    def _batch_not_given(self, s: BatchNotGiven) -> None:
        told, rest = self.pool.not_given(s)
        for order in told:
            self.tell(order, Outcome.NOT_STARTABLE, ErrorInfo("NotStartable", s.why))
        self.requeue(rest, s.now)

    def _runner_ended(self, s: RunnerEnded) -> None:
        runner, lost, current, rest = self.pool.ended(s)
        if not runner.ready and runner.kind not in ("", PYTHON.name) and self.pool.died_unready(runner.kind):
            self._no_runner(runner.kind, f"it was not ready within {READY_S:g} s" if runner.late else s.why)
        if s.unstarted is not None:
            self._not_startable(s.unstarted, s.why)
        for order in lost:
            info = ErrorInfo("RunnerCrashed", "it was done, but its result was lost when its runner died")
            self.tell(order, Outcome.PRE_EMPTED, info)
        if current is not None:
            ending = runner.ending
            if ending is not None and ending.id == current.id:
                info = why(ending.outcome, self.recipes[current.definition], None)
                self.tell(current, ending.outcome, info, s.started_ms)
            elif ending is not None:
                self.tell(
                    current, Outcome.PRE_EMPTED, ErrorInfo("PreEmpted", "its runner was ended for another task"), s.started_ms
                )
            elif s.excess is not None:
                self.tell(current, OUTCOMES[s.excess.what], ErrorInfo(*said(s.excess), "", s.excess), s.started_ms)
            else:
                self.tell(current, Outcome.RUNNER_CRASHED, ErrorInfo("RunnerCrashed", s.why), s.started_ms)
        self.requeue(rest, s.now)

    def _no_runner(self, kind: str, why: str) -> None:
        """Runners of this kind die before they are ready: another would too. Its tasks are told, instead of trying for ever."""
        info = ErrorInfo("NotStartable", f"no runner for {kind} could be started: {why}")
        for group in self.queue.groups.values():
            if group.kind == kind:
                for order in self.queue.take_out(group):
                    self.tell(order, Outcome.NOT_STARTABLE, info)

    def _not_startable(self, definition: int, why: str) -> None:
        """No runner could be started as this definition needs it, and another could not either. (A function whose secret was removed
        had one started after another, without a pause, until the supervisor was taken for frozen.)"""
        waiting = {order.id for order in self.queue if order.definition == definition}
        for order in self.queue.remove(waiting):
            self.tell(order, Outcome.NOT_STARTABLE, ErrorInfo("NotStartable", why))

    def tell(self, order: Order, outcome: Outcome, info: ErrorInfo, started_ms: int | None = None) -> None:
        """Report an attempt that ended without a word of its own."""
        now = self.wall_ms()
        error = error_text(info)
        self.out.append(TellFinished(Finished(order.id, order.attempt, outcome, started_ms or now, now, error=error)))
        self._unpark(order.id)

    def requeue(self, orders: list[Order], now: float) -> None:
        """Orders that came back unbegun wait first in line, unless they were cancelled or the agent is draining."""
        kept = []
        for order in orders:
            outcome = self.pool.doomed.pop(order.id, None)
            if outcome is Outcome.PRE_EMPTED and order.id in self._parked:
                self._unpark(order.id)  # superseded before it began
            elif outcome is Outcome.PRE_EMPTED:
                self._give_back([order])  # it was to make room, and had not begun
            elif outcome is not None:
                self.tell(order, outcome, ErrorInfo("Cancelled", "cancelled before it began"))
            else:
                kept.append(order)
        if self.draining:
            self._give_back(kept)
        elif kept:
            self.queue.put_back(self.queue.group(self.recipes[kept[0].definition]), kept)
        self.steering.came_back(now)

    def _cancel(self, cancels: list[Cancel], now: float) -> None:
        asked = {cancel.id: cancel for cancel in cancels}
        waiting = {order.id for order in self.queue if order.id in asked and order.attempt == asked[order.id].attempt}
        waiting |= {order.id for order in self.preparing if order.id in asked and order.attempt == asked[order.id].attempt}
        for order in (*self.queue.remove(waiting), *self.preparing.remove(waiting)):
            self.tell(order, Outcome.CANCELLED, ErrorInfo("Cancelled", "cancelled before it began"))
        for cancel in cancels:
            running = self.running.get(cancel.id)
            if running is not None and running.order.attempt == cancel.attempt:
                self.end_running(running, Outcome.CANCELLED, cancel.grace_s, now)
            elif running is None:
                self.pool.end_task(cancel.id, Outcome.CANCELLED, cancel.grace_s, now, attempt=cancel.attempt)

    def end_running(self, running: Running, outcome: Outcome, grace_s: float, now: float) -> None:
        """SIGTERM, and SIGKILL after the grace. The first reason stays, the shortest patience wins."""
        if running.ending is None:
            running.ending = Ending(running.order.id, outcome, now + grace_s)
            if grace_s > 0:
                self.out.append(EndProcess(running.order.id, force=False))
            self.steering.thaw_to_end(running.order.id, now)
        running.ending.kill_at = min(running.ending.kill_at, now + grace_s)
        if grace_s <= 0 and not running.ending.forced:
            running.ending.forced = True
            self.out.append(EndProcess(running.order.id, force=True))

    # --- time

    def _tick(self, s: Tick) -> None:
        now = s.now
        for running in self.running.values():
            ending = running.ending
            if ending is None:
                if now - running.since >= running.recipe.cap_s and running.order.id not in self.steering.frozen:
                    self.warn(running.order, running.recipe)
                    self.end_running(running, Outcome.CAP_EXCEEDED, GRACE_S, now)
            elif now >= ending.kill_at and not ending.forced:
                ending.forced = True
                self.out.append(EndProcess(running.order.id, force=True))
        self.pool.tick(s)
        self._give_back_stalled(now)
        if now >= self._announce_at:
            self._announce_at = now + STARTED_S
            self._announce(s)

    def warn(self, order: Order, recipe: Recipe) -> None:
        """The execution cap is reached: who asked is told before the end (H6)."""
        text = f'{{"allowed_s":{recipe.cap_s:g},"killed_in_s":{GRACE_S:g}}}'
        self.out.append(TellNotices([Notice(order.id, order.attempt, "cap_warning", text=text)]))

    def _announce(self, s: Tick) -> None:
        started = self.pool.started(s, self.wall_ms())
        for running in self.running.values():
            if not running.announced:
                running.announced = True
                started.append(Started(running.order.id, running.order.attempt, running.started_ms))
        if started:
            self.out.append(TellStarted(started))

    def _drain_asked(self, s: DrainAsked) -> None:
        self.draining = s.on
        if s.on:
            self._give_back(self.queue.empty() + self.preparing.empty())
            self.pool.ask_all_back()

    def _give_back_stalled(self, now: float) -> None:
        """Orders given ahead of what runs, behind tasks that turned out to be long, are needed elsewhere."""
        waiting: dict[int, tuple[int, float]] = {}
        for group in self.queue.groups.values():
            if not group.orders:
                continue
            taken, since = self._stalls.get(id(group), (-1, now))
            if taken != group.taken or self.pool.awaits(group.kind, now) or self._making_room:
                since = now
            if now - since >= STALLED_S:
                self._give_back(self.queue.take_out(group))
            else:
                waiting[id(group)] = (group.taken, since)
        self._stalls = waiting

    @property
    def _making_room(self) -> bool:
        """Whether something ends here for the sake of what waits."""
        endings = [running.ending for running in self.running.values()] + self.pool.endings
        return any(ending is not None and ending.outcome is Outcome.PRE_EMPTED for ending in endings)

    def _give_back(self, orders: list[Order]) -> None:
        if orders:
            self.out.append(TellReturned([(order.id, order.attempt) for order in orders]))

    def _end_all(self, s: EndAllAsked) -> None:
        for running in self.running.values():
            self.end_running(running, Outcome.PRE_EMPTED, s.grace_s, s.now)
        self.pool.end_all(s)

    def _fenced(self, s: Fenced) -> None:
        self.steering.clear()
        for running in self.running.values():
            self.release(running.recipe.need)
        self.running.clear()
        self.pool.clear()
        self.queue.empty()
        self.preparing.empty()
        self._parked.clear()
        self._seen, self._seen_before = {}, {}  # the next boot gets new attempts; orders to this boot are refused by the shell


def why(outcome: Outcome, recipe: Recipe, finished: Finished | None) -> ErrorInfo:
    """What a person is told about an attempt that was ended."""
    if outcome is Outcome.CAP_EXCEEDED:
        used = (finished.ended_ms - finished.started_ms) / 1000 if finished is not None else 0.0
        excess = Excess("time", max(used, recipe.cap_s), recipe.cap_s)
        return ErrorInfo("CapExceeded", f"ran longer than its execution cap of {recipe.cap_s:g} s", "", excess)
    if outcome is Outcome.CANCELLED:
        return ErrorInfo("Cancelled", "cancelled while it ran")
    return ErrorInfo("PreEmpted", "ended to make room; it runs again and has used no attempt")
