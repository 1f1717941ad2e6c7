"""Pausing, resuming, signalling and yielding attempts that run here (H7 E9).

A paused attempt is frozen with its whole process tree. It keeps its memory, disk and ports, and gives its CPU time, IOPS and
bandwidth back; its execution cap stands still. A function is frozen with its runner, alone: what waits in the runner's batch is
asked back first. Each control is done once, and one older than the last of its attempt is out of date.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.agent.local_queue import Amounts
from headway.agent.pool import Runner
from headway.agent.signals import Freeze, SignalProcess, TellNotices, TellReturned, TellStarted, Thaw
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import Control, Notice, Started

if TYPE_CHECKING:
    from headway.agent.machine import Machine

REMEMBER = 1_000  # attempts whose last control is remembered


@dataclass(slots=True)
class Frozen:
    """Since when an attempt is frozen, and what it gave back."""

    attempt: int
    since: float
    gave: Amounts
    runner: int  # 0: a program


class Steering:
    """What the machine does when it is told to steer an attempt."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.frozen: dict[int, Frozen] = {}  # by task
        self._wanted: list[Control] = []  # pauses of tasks in a runner that was asked for the rest of its batch
        self._last: dict[Any, int | None] = {}  # attempt -> number of its last control
        self._known: dict[Any, int | None] = {}  # numbers that were done, or are being done

    def control(self, controls: list[Control], now: float) -> None:
        for control in sorted(controls, key=lambda control: control.number):
            ref = (control.id, control.attempt)
            if control.number in self._known:
                continue  # a repeat: the answer is on its way
            for memory in (self._known, self._last):
                if len(memory) >= REMEMBER:
                    del memory[next(iter(memory))]
            self._known[control.number] = None
            if control.number < (self._last.get(ref) or 0):
                self._answer(control, "gone")
            else:
                self._last[ref] = control.number
                try:
                    self._do(control, now)
                except ValueError as error:
                    self._answer(control, f"refused: {error}")

    def _do(self, control: Control, now: float) -> None:
        if control.word == "pause":
            self._pause(control, now)
        elif control.word == "resume":
            self._resume(control, now)
        elif control.word == "signal":
            self._signal(control)
        else:
            self._yield(control, now)

    # --- pausing

    def _pause(self, control: Control, now: float) -> None:
        machine = self.machine
        task = control.id
        running = machine.running.get(task)
        if self._is_frozen(control):
            self._answer(control, "paused")
        elif running is not None and running.order.attempt == control.attempt:
            if running.ending is not None:
                self._answer(control, "gone")
                return
            if not running.announced:
                running.announced = True
                machine.out.append(TellStarted([Started(task, control.attempt, running.started_ms)]))
            self._freeze(control, Frozen(control.attempt, now, _given(running.recipe.need), 0))
        elif (runner := self._runner_of(control)) is not None:
            self._pause_in(runner, control, now)
        elif self._take_back(control):
            machine.out.append(TellReturned([(task, control.attempt)]))
            self._answer(control, "returned")
        else:
            self._answer(control, "gone")

    def _pause_in(self, runner: Runner, control: Control, now: float) -> None:
        if runner.ending is not None:
            self._answer(control, "gone")
        elif len(runner.batch) > 1 or runner.asked:
            self._wanted.append(control)
            self.machine.pool.ask_back(runner)
        else:
            started = [Started(control.id, control.attempt, self.machine.wall_ms())]
            if runner.announced <= runner.done:  # the first of its batch has not been told of
                runner.announced = runner.done + 1
                self.machine.out.append(TellStarted(started))
            runner.frozen = runner.stuck = True
            self._freeze(control, Frozen(control.attempt, now, _given(runner.need or (0,) * 6), runner.number))

    def _freeze(self, control: Control, frozen: Frozen) -> None:
        self.frozen[control.id] = frozen
        self.machine.release(frozen.gave)
        self.machine.out.append(Freeze(control.id, frozen.runner))
        self._answer(control, "paused")

    def came_back(self, now: float) -> None:
        """A runner has said what it had not begun, or has ended and can say nothing more: pauses that waited for it are decided."""
        wanted, self._wanted = self._wanted, []
        for control in wanted:
            self._pause(control, now)

    def _take_back(self, control: Control) -> bool:
        """Take an attempt that has not begun out of what waits here, for room or for its preparation."""
        machine, ref = self.machine, (control.id, control.attempt)
        for waiting in (machine.queue, machine.preparing):
            if any((order.id, order.attempt) == ref for order in waiting):
                waiting.remove({control.id})
                return True
        return machine.unpark(control.id, control.attempt)

    def _runner_of(self, control: Control) -> Runner | None:
        for runner in self.machine.pool.runners.values():
            if any(order.id == control.id and order.attempt == control.attempt for order in runner.batch):
                return runner
        return None

    # --- going on

    def _resume(self, control: Control, now: float) -> None:
        for waiting in [each for each in self._wanted if (each.id, each.attempt) == (control.id, control.attempt)]:
            self._wanted.remove(waiting)
            self._answer(waiting, "gone")
        running = self.machine.running.get(control.id)
        if self._is_frozen(control):
            self._thaw(control.id, now)
            self._answer(control, "resumed")
        elif (running is not None and running.order.attempt == control.attempt) or self._runner_of(control) is not None:
            self._answer(control, "resumed")
        else:
            self._answer(control, "gone")

    def _is_frozen(self, control: Control) -> bool:
        """Whether this attempt is; a control that was told again may be of an earlier one."""
        frozen = self.frozen.get(control.id)
        return frozen is not None and frozen.attempt == control.attempt

    def _thaw(self, task: int, now: float) -> None:
        """Let it go on; the time it was frozen does not count against its cap."""
        frozen = self.frozen.pop(task)
        self.machine.allocate(frozen.gave)
        rested = now - frozen.since
        if (running := self.machine.running.get(task)) is not None:
            running.since += rested
        elif (runner := self.machine.pool.runners.get(frozen.runner)) is not None:
            runner.frozen = False
            runner.rested += rested
        self.machine.out.append(Thaw(task, frozen.runner))

    def thaw_to_end(self, task: int, now: float) -> None:
        """It is being ended: a frozen process cannot hear a signal."""
        if task in self.frozen:
            self._thaw(task, now)

    def over(self, task: int) -> None:
        """The attempt has ended, however: it holds again what it gave back, so that all of it can be released."""
        if (frozen := self.frozen.pop(task, None)) is not None:
            self.machine.allocate(frozen.gave)
            self.machine.out.append(Thaw(task, frozen.runner))  # whoever gets its cgroup next must not be frozen

    def clear(self) -> None:
        for task in list(self.frozen):
            self.over(task)
        self._wanted.clear()
        self._last.clear()
        self._known.clear()

    # --- others

    def _signal(self, control: Control) -> None:
        running = self.machine.running.get(control.id)
        if running is not None and running.order.attempt == control.attempt and running.ending is None:
            self.machine.out.append(SignalProcess(control.id, control.argument))
            self._answer(control, "signalled")
        elif self._runner_of(control) is not None:
            self._answer(control, "refused: a function has no process of its own")
        else:
            self._answer(control, "gone")

    def _yield(self, control: Control, now: float) -> None:
        """Make room: end as pre-empted, with a grace in which a checkpoint can be written."""
        machine, grace = self.machine, float(control.argument or 0.0)
        running = machine.running.get(control.id)
        if running is not None and running.order.attempt == control.attempt:
            machine.end_running(running, Outcome.PRE_EMPTED, grace, now)
            self._answer(control, "yielding")
        elif machine.pool.end_task(control.id, Outcome.PRE_EMPTED, grace, now, attempt=control.attempt):
            self._answer(control, "yielding")
        elif self._take_back(control):
            machine.out.append(TellReturned([(control.id, control.attempt)]))
            self._answer(control, "returned")
        else:
            self._answer(control, "gone")

    def _answer(self, control: Control, kind: str) -> None:
        self.machine.out.append(TellNotices([Notice(control.id, control.attempt, kind, control.number)]))


def _given(need: Amounts) -> Amounts:
    """What a frozen process does not use: CPU time, IOPS, bandwidth."""
    cpus, _, _, iops, bandwidth, _ = need
    return (cpus, 0, 0, iops, bandwidth, 0)
