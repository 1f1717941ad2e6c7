"""Warm runners as the machine sees them: who has which batch, who is asked for it back, who is started and ended.

A runner holds the resources of one task and runs a batch of tasks of that shape one after another. A batch is about
TARGET_S of predicted work, so that tiny tasks cost one message for hundreds of them and long ones go out alone.
When one of them takes long all the same, what has not begun behind it is asked back and goes to another runner.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.agent import starting
from headway.agent.local_queue import Amounts, Estimate, Group
from headway.agent.signals import (
    AskBack,
    BatchNotGiven,
    EndAllAsked,
    Ending,
    EndRunner,
    GiveBatch,
    Nudge,
    RunnerDid,
    RunnerEnded,
    RunnerGaveBack,
    StartRunner,
    StopRunner,
    Tick,
)
from headway.domain.languages import PYTHON
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import Order, Started

if TYPE_CHECKING:
    from headway.agent.machine import Machine

TARGET_S = 0.005  # predicted work in a batch
LOW_S = 0.0025  # with less than this in hand a runner gets more before it is done
BATCH = 2000
BATCH_BYTES = 2**20
STUCK_S = 0.005  # results wait behind a task that runs longer than this: ask for them
TAKE_BACK_S = 0.05  # and ask the rest of the batch back after this
NUDGE_MOST_S = 0.5  # a long task's output is fetched at least this often
IDLE = 16  # warm runners without work that are kept when others must be started: tenants come and go, memory does not
START_S = 0.1  # what it takes to start one
A_CORE = 2  # runners at work on brief functions for each core: one works while the other's results are sent; more only take turns
GRACE_S = 5.0
BELIEF_S = 10.0  # beyond their caps: then tasks of a runner are over, whatever it says of when they began
UNLUCKY = 3  # times that a task may come back unbegun from a runner that died


@dataclass(slots=True)
class Runner:
    number: int
    kind: str = ""  # which functions it can call (domain.content.runner_kind)
    ready: bool = False
    late: bool = False  # it was ended because it was not ready in time
    since: float = 0.0  # when it was started
    need: Amounts | None = None  # what it holds while it has a batch
    batch: deque[Order] = field(default_factory=deque)
    each_s: float = 0.0  # predicted, for each task of its batch
    estimate: Estimate = field(default_factory=Estimate)  # of the last of its batch
    done: int = 0  # tasks in its life whose results came
    waits_since: float = 0.0  # for the result of the first of its batch
    asked: bool = False
    frozen: bool = False  # its task is paused, and so is it
    rested: float = 0.0  # seconds that its task was paused
    stuck: bool = False  # its task takes longer than anyone thought: nothing more goes behind it
    tired: bool = False
    stopping: bool = False
    ending: Ending | None = None
    idle_since: float = 0.0
    announced: int = 0  # `begun` of the task that was last announced as started
    nudged: int = 0  # `begun` of the task behind which we asked for results
    nudge_at: float = 0.0
    nudge_s: float = TAKE_BACK_S

    @property
    def open(self) -> bool:
        """Whether it may get work."""
        return self.ready and not (self.asked or self.tired or self.stopping or self.ending or self.frozen or self.late)


class Pool:
    """The machine's runners."""

    def __init__(self, machine: Machine, *, idle_s: float) -> None:
        self.machine = machine
        self.runners: dict[int, Runner] = {}
        self.doomed: dict[int, Outcome] = {}  # tasks inside batches that shall not begin
        self._unlucky: Counter[int] = Counter()  # how often a task was the first that a dead runner had not begun
        self._stillborn: set[str] = set()  # kinds whose last runner died before it was ready
        self._idle_s = idle_s
        self._number = 0

    @property
    def busy(self) -> bool:
        return any(runner.batch for runner in self.runners.values())

    def awaits(self, kind: str, now: float) -> bool:
        """Whether orders for this kind wait for a runner that will come, not for room."""
        return starting.is_awaited(self.runners.values(), kind, now)

    @property
    def endings(self) -> list[Ending | None]:
        return [runner.ending for runner in self.runners.values()]

    @property
    def impatient(self) -> bool:
        """Whether some task may be stuck behind another, so that time must be looked at closely."""
        return any(len(runner.batch) > 1 and not runner.asked for runner in self.runners.values())

    def start(self, kind: str, definition: int | None, now: float) -> None:
        """Start one more runner, as this definition needs it."""
        self._number += 1
        self.runners[self._number] = Runner(self._number, kind, since=now)
        self.machine.out.append(StartRunner(self._number, kind, definition))

    def ready(self, number: int, now: float) -> None:
        runner = self.runners[number]
        runner.ready, runner.idle_since = True, now
        self._stillborn.discard(runner.kind)

    def died_unready(self, kind: str) -> bool:
        """Whether it was the second in a row: one alone may have been killed, for want of memory or by hand."""
        self._stillborn ^= {kind}
        return kind not in self._stillborn

    # --- giving

    def top_up(self, now: float) -> None:
        """Runners that will soon be done get more of the same shape; they keep their resources."""
        for runner in self.runners.values():
            if runner.batch and runner.open and not runner.stuck and len(runner.batch) * runner.each_s < LOW_S:
                group = self.machine.queue.groups.get((runner.kind, runner.need or ()))
                if group is not None and group.orders and self._first(group):
                    self._fill(runner, group, now)

    def _first(self, group: Group) -> bool:
        """Whether the group's turn has come: a runner that is always topped up must not starve an older task of another shape."""
        skip: set[int] = set()
        while (found := self.machine.queue.next(group.need, skip)) is not None:  # as if its own resources were free
            if found is group or any(runner.ready for runner in self._of(found.kind)):
                return found is group
            skip.add(id(found))  # it waits for its runner
        return False

    def give(self, group: Group, now: float) -> bool:
        """Hand the head of the group to an idle runner; False when there is none (one is started then), or enough are at work."""
        room = self._room_for(group)
        if room <= 0:
            return False
        for runner in self.runners.values():
            if runner.open and not runner.batch and runner.kind == group.kind:
                self.machine.allocate(group.need)
                runner.need = group.need
                self._fill(runner, group, now)
                return True
        if self._soon_free(group):
            return False
        coming = sum(not runner.ready for runner in self._of(group.kind))
        wanted = min(min(len(group.orders), room) - coming, starting.room(self.runners.values(), group.kind, now))
        if wanted > 0:
            self._dismiss_idle(wanted, now)
        for _ in range(wanted):
            self.start(group.kind, group.orders[0].definition, now)
        return False

    def _room_for(self, group: Group) -> int:
        """How many more runners may work on the group: by what is free, and of brief functions no more than the cores can keep busy.

        A runner for each slot would be twenty on two cores, of 12 MB each, that wait for one another.
        """
        room = min((there // asked for there, asked in zip(self.machine.free, group.need, strict=True) if asked), default=starting.STARTING)
        if not self.machine.recipes[group.orders[0].definition].estimate.brief:
            return room
        of_kind = (runner for runner in self._of(group.kind) if runner.batch and runner.open)
        at_work = sum(1 for runner in of_kind if runner.estimate.brief and not runner.stuck)
        return min(room, A_CORE * self.machine.cores - at_work)

    def _dismiss_idle(self, coming: int, now: float) -> None:
        """So that no more than IDLE are kept in vain, those that have rested longest go."""
        there = (runner for runner in self.runners.values() if not starting.is_slow(runner, now))
        unused = [runner for runner in there if not (runner.batch or runner.stopping or runner.ending)]
        idle = sorted((runner for runner in unused if runner.open), key=lambda runner: runner.idle_since)
        for runner in idle[: max(0, len(unused) + coming - IDLE)]:
            runner.stopping = True
            self.machine.out.append(StopRunner(runner.number))

    def _of(self, kind: str) -> Iterator[Runner]:
        return (runner for runner in self.runners.values() if runner.kind == kind)

    def _soon_free(self, group: Group) -> bool:
        """Whether the runners there are will be through with the group before a new one could begin.

        Tiny tasks that ask for a hundredth of a CPU would otherwise start two hundred processes to run for a millisecond each.
        """
        working = sum(
            (runner.estimate.brief or len(runner.batch) * runner.estimate.predicted < START_S)
            and not (runner.stuck or runner.stopping or runner.ending)
            for runner in self._of(group.kind)
        )
        if working < self.machine.cores:
            return False
        estimate = self.machine.recipes[group.orders[0].definition].estimate
        return estimate.seconds is not None and len(group.orders) * estimate.predicted < START_S * working

    def _fill(self, runner: Runner, group: Group, now: float) -> None:
        recipes, orders = self.machine.recipes, group.orders
        batch: list[Order] = []
        held = len(runner.batch) * runner.each_s
        left, size = TARGET_S - held, 0
        while orders and (not batch or (left > 0 and len(batch) < BATCH and size < BATCH_BYTES)):
            predicted = recipes[orders[0].definition].estimate.predicted
            if predicted > left and (batch or runner.batch):
                break
            order = orders.popleft()
            left -= predicted
            size += len(order.input)
            batch.append(order)
        if not batch:
            return
        self.machine.queue.took(group, len(batch))
        if not runner.batch:
            runner.waits_since = now
        runner.batch.extend(batch)
        runner.each_s = (TARGET_S - left) / len(runner.batch)
        runner.estimate = recipes[batch[-1].definition].estimate
        self.machine.out.append(GiveBatch(runner.number, batch))

    # --- coming back

    def did(self, s: RunnerDid) -> list[Order]:
        runner = self.runners.get(s.runner)
        if runner is None:
            return []
        popped = [runner.batch.popleft() for _ in range(s.count)]
        runner.done += s.count
        runner.waits_since = s.now
        runner.stuck = False
        if self.machine.steering.frozen:
            for order in popped:  # it was done before the pause took hold
                self.machine.steering.thaw_to_end(order.id, s.now)
        runner.rested = 0.0
        runner.tired = runner.tired or s.tired
        if popped:
            self._learn(popped, s)
        for order in popped:
            if not self.doomed:
                break
            self.doomed.pop(order.id, None)
        self._rest(runner, s.now)
        return popped

    def _learn(self, popped: list[Order], s: RunnerDid) -> None:
        recipes = self.machine.recipes
        recipes[popped[-1].definition].estimate.learn(s.last_s)
        if len(popped) > 1:
            each = max(s.busy_s - s.last_s, 0.0) / (len(popped) - 1)
            for definition in {order.definition for order in popped[:-1]}:
                recipes[definition].estimate.learn(each)

    def _rest(self, runner: Runner, now: float) -> None:
        """Without work it holds no resources; a tired one goes."""
        if runner.batch:
            return
        if runner.need is not None:
            self.machine.release(runner.need)
            runner.need = None
        runner.idle_since = now
        if runner.tired and not runner.stopping and not runner.ending:
            runner.stopping = True
            self.machine.out.append(StopRunner(runner.number))

    def gave_back(self, s: RunnerGaveBack) -> list[Order]:
        runner = self.runners.get(s.runner)
        if runner is None:
            return []
        runner.asked = False
        back = [runner.batch.pop() for _ in range(s.count)][::-1]
        for order in runner.batch:  # what it keeps has begun: a wish to end it is now for the runner itself
            if self.doomed and (outcome := self.doomed.pop(order.id, None)) is not None:
                self._end(runner, order.id, outcome, GRACE_S if outcome is Outcome.CANCELLED else 0.0, s.now)
        self._rest(runner, s.now)
        return back

    def not_given(self, s: BatchNotGiven) -> tuple[list[Order], list[Order]]:
        """What was to be given and was not. Gives: those that cannot be started, and those that were only beside them."""
        back = self.gave_back(RunnerGaveBack(s.runner, s.count, s.now))
        at_fault = [order for order in back if s.unstarted in (None, order.definition)]
        return at_fault, [order for order in back if s.unstarted not in (None, order.definition)]

    def ended(self, s: RunnerEnded) -> tuple[Runner, list[Order], Order | None, list[Order]]:
        """The runner is gone. Gives: it, tasks done whose results were lost, the task that ran, tasks that had not begun."""
        runner = self.runners.pop(s.runner, None)
        if runner is None:
            return Runner(s.runner), [], None, []
        orders = list(runner.batch)
        for order in orders:
            self.machine.steering.over(order.id)
        begun = self._begun(runner, min(max(s.begun - runner.done, 0), len(orders)))
        if runner.need is not None:
            self.machine.release(runner.need)
        for order in orders[:begun]:
            self.doomed.pop(order.id, None)
        return runner, orders[: max(begun - 1, 0)], orders[begun - 1] if begun else None, orders[begun:]

    def _begun(self, runner: Runner, said: int) -> int:
        """How many of its batch a dead runner had begun. It says so itself, and a function can write there what it likes: one that we
        ended had begun, and so had one that kills each runner before it begins."""
        if runner.ending is not None:
            ids = [order.id for order in runner.batch]
            return max(said, ids.index(runner.ending.id) + 1 if runner.ending.id in ids else 0)
        if said or not runner.batch:
            return said
        first = runner.batch[0].id
        if len(self._unlucky) > BATCH:
            self._unlucky.clear()
        self._unlucky[first] += 1
        return 1 if self._unlucky[first] > UNLUCKY else 0

    # --- ending

    def end_task(self, task: int, outcome: Outcome, grace_s: float, now: float, attempt: int | None = None) -> bool:
        """End a task inside a batch. False when no runner has it."""
        for runner in self.runners.values():
            for order in runner.batch:
                if order.id == task and attempt in (None, order.attempt):
                    if len(runner.batch) == 1:
                        self._end(runner, task, outcome, grace_s, now)
                    else:  # it may not have begun: the answer tells
                        self.doomed[task] = outcome
                        self.ask_back(runner)
                    return True
        return False

    def _end(self, runner: Runner, task: int, outcome: Outcome, grace_s: float, now: float) -> None:
        if runner.ending is None:
            runner.ending = Ending(task, outcome, now + grace_s)
            if grace_s > 0:
                self.machine.out.append(EndRunner(runner.number, force=False))
            self.machine.steering.thaw_to_end(task, now)
        runner.ending.kill_at = min(runner.ending.kill_at, now + grace_s)
        if grace_s <= 0 and not runner.ending.forced:
            runner.ending.forced = True
            self.machine.out.append(EndRunner(runner.number, force=True))

    def end_all(self, s: EndAllAsked) -> None:
        for runner in self.runners.values():
            if runner.batch:
                self._end(runner, runner.batch[0].id, Outcome.PRE_EMPTED, s.grace_s, s.now)

    def ask_all_back(self) -> None:
        for runner in self.runners.values():
            if len(runner.batch) > 1:
                self.ask_back(runner)

    def ask_back(self, runner: Runner) -> None:
        if not runner.asked:
            runner.asked = True
            self.machine.out.append(AskBack(runner.number))

    def clear(self) -> None:
        for runner in self.runners.values():
            if runner.need is not None:
                self.machine.release(runner.need)
        self.runners.clear()
        self.doomed.clear()

    # --- time

    def tick(self, s: Tick) -> None:
        for runner in self.runners.values():
            if runner.batch:
                self._look_at(runner, s.now)
            elif not (runner.ready or runner.late) and s.now - runner.since >= starting.READY_S:
                runner.late = True
                self.machine.out.append(EndRunner(runner.number, force=True))
        for runner, begun, current, ran in self._current(s):
            if runner.ending is not None:
                continue
            if ran >= self.machine.recipes[current.definition].cap_s:
                self.machine.warn(current, self.machine.recipes[current.definition])
                self._end(runner, current.id, Outcome.CAP_EXCEEDED, GRACE_S, s.now)
            elif ran >= TAKE_BACK_S:
                runner.stuck = True
                if len(runner.batch) > 1:
                    self.ask_back(runner)
            self._nudge(runner, begun, ran, s.now)
        self._end_idle(s.now)

    def _look_at(self, runner: Runner, now: float) -> None:
        """What does not depend on what a runner says of itself: the end of a grace, and of all patience."""
        if runner.ending is not None:
            if now >= runner.ending.kill_at and not runner.ending.forced:
                runner.ending.forced = True
                self.machine.out.append(EndRunner(runner.number, force=True))
        elif not runner.frozen and (late := now - runner.waits_since - runner.rested - BELIEF_S) >= 0:
            caps = sorted(self.machine.recipes[order.definition].cap_s for order in runner.batch)
            # Two of them: one may have ended with its result held up by the next, which lets nobody else in the process speak.
            if late >= sum(caps[-2:]):
                first = runner.batch[0]
                self.machine.warn(first, self.machine.recipes[first.definition])
                self._end(runner, first.id, Outcome.CAP_EXCEEDED, GRACE_S, now)

    def _current(self, s: Tick) -> Iterator[tuple[Runner, int, Order, float]]:
        """The runners that are in the middle of a task: runner, its count of begun tasks, the task, how long it has run."""
        for runner in self.runners.values():
            begun, since = s.current.get(runner.number, (0, 0.0))
            at = begun - runner.done - 1
            if runner.batch and 0 <= at < len(runner.batch) and not runner.frozen:
                yield runner, begun, runner.batch[at], s.now - since - runner.rested

    def _nudge(self, runner: Runner, begun: int, ran: float, now: float) -> None:
        if runner.nudged != begun:
            if ran >= STUCK_S and (begun - runner.done > 1 or ran >= TAKE_BACK_S):
                runner.nudged, runner.nudge_s = begun, TAKE_BACK_S
                runner.nudge_at = now + runner.nudge_s
                self.machine.out.append(Nudge(runner.number))
        elif now >= runner.nudge_at:
            runner.nudge_s = min(runner.nudge_s * 2, NUDGE_MOST_S)
            runner.nudge_at = now + runner.nudge_s
            self.machine.out.append(Nudge(runner.number))

    def started(self, s: Tick, wall_ms: int) -> list[Started]:
        """Tasks that run now and were not announced before."""
        found = []
        for runner, begun, current, ran in self._current(s):
            if runner.announced != begun:
                runner.announced = begun
                found.append(Started(current.id, current.attempt, wall_ms - round(ran * 1000)))
        return found

    def _end_idle(self, now: float) -> None:
        """One warm Python runner always stays: the next function must not wait for an interpreter to start."""
        idle = [runner for runner in self.runners.values() if runner.open and not runner.batch]
        stays = next((runner for runner in idle if runner.kind == PYTHON.name), None)
        for runner in idle:
            if runner is stays:
                continue
            if now - runner.idle_since >= self._idle_s:
                runner.stopping = True
                self.machine.out.append(StopRunner(runner.number))
