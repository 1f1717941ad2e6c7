"""Pausing inside the agent's brain: what is frozen, what is given back, and whose time stands still (H7)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from headway.agent.machine import GRACE_S, Machine
from headway.agent.signals import (
    AskBack,
    EndProcess,
    EndRunner,
    Fenced,
    Freeze,
    Instruction,
    ProcessEnded,
    RunnerDid,
    RunnerEnded,
    RunnerGaveBack,
    RunnerReady,
    SignalProcess,
    Stimulus,
    TellFinished,
    TellNotices,
    TellReturned,
    Thaw,
    Tick,
)
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import Cancel, Control, Finished
from tests.unit.test_agent_machine import CAPACITY, Promises, arrived, new_machine, order, spawned


def steer(machine: Machine, *controls: Control, now: float = 0.0) -> list[object]:
    stimulus = arrived(now=now)
    stimulus.controls = list(controls)
    return list(machine.handle(stimulus))


def answers(instructions: list[object]) -> list[str]:
    return [notice.kind for i in instructions if isinstance(i, TellNotices) for notice in i.notices]


def test_a_paused_program_is_frozen_once_and_gives_its_cpu_to_others_but_keeps_its_memory() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1, 2)))  # it takes the whole CPU
    assert spawned(machine.handle(arrived(order(2)))) == []
    out = steer(machine, Control(1, 1, 1, "pause"), Control(1, 1, 1, "pause"))
    assert [i for i in out if isinstance(i, Freeze)] == [Freeze(1, 0)]
    assert answers(out) == ["paused"]
    assert spawned(out) == [2]
    assert machine.free == (1500, 0, 0, 0, 0, 0)
    assert steer(machine, Control(1, 1, 1, "pause")) == []  # a repeat


def test_the_execution_cap_stands_still_while_a_program_is_paused() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1)))  # its cap is a second
    steer(machine, Control(1, 1, 1, "pause"), now=0.6)
    assert not any(isinstance(i, EndProcess) for i in machine.handle(Tick(500.0, {})))
    out = steer(machine, Control(2, 1, 1, "resume"), now=1000.0)
    assert Thaw(1, 0) in out
    assert answers(out) == ["resumed"]
    assert not any(isinstance(i, EndProcess) for i in machine.handle(Tick(1000.3, {})))
    assert EndProcess(1, force=False) in machine.handle(Tick(1000.5, {}))


def test_a_paused_program_that_is_cancelled_can_hear_it() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1)))
    steer(machine, Control(1, 1, 1, "pause"))
    out = machine.handle(arrived(now=1.0, cancels=[Cancel(1, 1)]))
    assert [i for i in out if isinstance(i, EndProcess | Thaw)] == [EndProcess(1, force=False), Thaw(1, 0)]
    assert EndProcess(1, force=True) in machine.handle(Tick(1.0 + GRACE_S, {}))
    machine.handle(ProcessEnded(Finished(1, 1, Outcome.SIGNAL, 0, 0), 8.0))
    assert machine.free == CAPACITY


def test_a_function_is_frozen_with_its_runner_after_the_rest_of_the_batch_came_back() -> None:
    machine = new_machine()
    machine.handle(arrived(order(100, 3)))
    machine.handle(RunnerReady(1, 0.0))
    machine.handle(RunnerDid(1, 1, 0.0001, 0.0001, False, 0.1))
    machine.handle(arrived(*(order(n, 3) for n in range(1, 4)), now=0.2))
    out = steer(machine, Control(1, 1, 1, "pause"), now=0.3)
    assert AskBack(1) in out
    assert answers(out) == []
    out = list(machine.handle(RunnerGaveBack(1, 2, 0.4)))
    assert Freeze(1, 1) in out
    assert answers(out) == ["paused"]
    late = machine.handle(Tick(900.0, {1: (2, 0.2)}))
    assert not any(isinstance(i, EndRunner) and i.runner == 1 for i in late)  # its cap of two seconds stands still
    steer(machine, Control(2, 1, 1, "resume"), now=1000.0)
    assert not any(isinstance(i, EndRunner) for i in machine.handle(Tick(1001.0, {1: (2, 0.2)})))
    assert any(isinstance(i, EndRunner) for i in machine.handle(Tick(1002.0, {1: (2, 0.2)})))


def test_a_pause_that_waits_for_a_runner_is_decided_when_that_runner_dies() -> None:
    """Nobody else would: the runner was asked what it had not begun, and a repeat of the control is not looked at."""
    machine = new_machine()
    machine.handle(arrived(order(100, 3)))
    machine.handle(RunnerReady(1, 0.0))
    machine.handle(RunnerDid(1, 1, 0.0001, 0.0001, False, 0.1))
    machine.handle(arrived(*(order(n, 3) for n in range(1, 4)), now=0.2))
    assert answers(steer(machine, Control(1, 1, 1, "pause"), Control(2, 3, 1, "pause"), now=0.3)) == []
    out = list(machine.handle(RunnerEnded(1, 2, 0, "killed", 0.4)))  # in the middle of task 1
    assert answers(out) == ["gone", "returned"]
    assert [i.refs for i in out if isinstance(i, TellReturned)] == [[(3, 1)]]


def test_two_pauses_that_wait_for_a_runner_are_both_answered() -> None:
    machine = new_machine()
    machine.handle(arrived(order(100, 3)))
    machine.handle(RunnerReady(1, 0.0))
    machine.handle(RunnerDid(1, 1, 0.0001, 0.0001, False, 0.1))
    machine.handle(arrived(order(1, 3), order(2, 3), now=0.2))
    assert answers(steer(machine, Control(1, 1, 1, "pause"), Control(2, 1, 1, "pause"), now=0.3)) == []
    assert answers(list(machine.handle(RunnerGaveBack(1, 1, 0.4)))) == ["paused", "paused"]


def test_what_has_not_begun_goes_back_instead_of_being_frozen() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1, 2), order(2, 2)))
    out = steer(machine, Control(1, 2, 1, "pause"))
    assert [i.refs for i in out if isinstance(i, TellReturned)] == [[(2, 1)]]
    assert answers(out) == ["returned"]
    assert answers(steer(machine, Control(2, 77, 1, "pause"))) == ["gone"]


def test_a_resume_of_an_earlier_attempt_lets_no_later_one_go_on() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1, attempt=2)))
    assert answers(steer(machine, Control(6, 1, 2, "pause"))) == ["paused"]
    out = steer(machine, Control(7, 1, 1, "resume"))
    assert answers(out) == ["gone"]
    assert not any(isinstance(i, Thaw) for i in out)


def test_a_control_older_than_the_last_one_changes_nothing() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1)))
    steer(machine, Control(5, 1, 1, "resume"))
    out = steer(machine, Control(4, 1, 1, "pause"))
    assert answers(out) == ["gone"]
    assert not any(isinstance(i, Freeze) for i in out)


def test_a_signal_goes_to_a_program_and_not_to_a_function() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1), order(2, 3)))
    machine.handle(RunnerReady(1, 0.0))
    out = steer(machine, Control(1, 1, 1, "signal", "USR1"), Control(2, 2, 1, "signal", "USR1"))
    assert SignalProcess(1, "USR1") in out
    assert answers(out)[0] == "signalled"
    assert answers(out)[1].startswith("refused")


def test_a_task_that_yields_ends_as_pre_empted_even_when_it_is_frozen() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1)))
    steer(machine, Control(1, 1, 1, "pause"))
    out = steer(machine, Control(2, 1, 1, "yield", "5"))
    assert [i for i in out if isinstance(i, EndProcess | Thaw)] == [EndProcess(1, force=False), Thaw(1, 0)]
    out = list(machine.handle(ProcessEnded(Finished(1, 1, 0, 0, 0), 1.0)))
    assert [i.finished.outcome for i in out if isinstance(i, TellFinished)] == [Outcome.PRE_EMPTED]


def test_a_function_that_shall_make_room_before_it_began_is_given_back() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1, 3)))
    machine.handle(RunnerReady(1, 0.0))
    machine.handle(RunnerDid(1, 1, 0.000002, 0.000002, False, 0.0))  # it is short: the next two share a batch
    machine.handle(arrived(order(2, 3), order(3, 3)))
    assert [i for i in steer(machine, Control(1, 3, 1, "yield", "5")) if isinstance(i, AskBack)] == [AskBack(1)]
    out = machine.handle(RunnerGaveBack(1, 1, 0.0))
    assert [i for i in out if isinstance(i, TellReturned)] == [TellReturned([(3, 1)])]
    assert machine.held() == [(2, 1)]


class Steered(Promises):
    """The same promises while tasks are paused, resumed and told to yield at random."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.frozen: set[int] = set()
        self.answered: dict[int, int] = {}
        self.before_fence = 0  # the last control before the last fence
        handle = self.machine.handle

        def watched(stimulus: Stimulus) -> list[Instruction]:
            out = handle(stimulus)
            self.watch(out)
            if isinstance(stimulus, Fenced):
                self.frozen.clear()
                self.before_fence = self.number
            return out

        self.machine.handle = watched  # type: ignore[method-assign]

    def watch(self, out: list[Instruction]) -> None:
        for i in out:
            if isinstance(i, Freeze):
                assert i.id not in self.frozen
                self.frozen.add(i.id)
            elif isinstance(i, Thaw):
                self.frozen.discard(i.id)
            elif isinstance(i, TellNotices):
                for notice in i.notices:
                    if notice.number:
                        self.answered[notice.number] = self.answered.get(notice.number, 0) + 1

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), word=st.sampled_from(["pause", "pause", "resume", "signal", "yield"]))
    def a_control_arrives(self, data: st.DataObject, word: str) -> None:
        task, attempt = data.draw(st.sampled_from(sorted(self.accepted)))
        self.number += 1
        stimulus = arrived(now=self.now)
        argument = {"signal": "USR1", "yield": "5"}.get(word, "")
        stimulus.controls = [Control(self.number, task, attempt, word, argument)]
        self.do(stimulus)

    @invariant()
    def nothing_exceeds_the_node(self) -> None:
        # What goes on takes its CPU back whoever has it meanwhile; memory is never promised twice.
        assert min(self.machine.free[1:]) >= 0
        assert all(a <= b for a, b in zip(self.machine.free, CAPACITY, strict=True))
        if not self.machine.running and not self.machine.pool.busy:
            assert self.machine.free == CAPACITY

    @invariant()
    def what_is_frozen_is_known_to_be(self) -> None:
        assert self.frozen == set(self.machine.steering.frozen)
        held = {task for task, _ in self.machine.held()}
        assert self.frozen <= held

    @invariant()
    def no_control_is_answered_twice(self) -> None:
        assert all(count == 1 for count in self.answered.values())

    @invariant()
    def a_control_without_an_answer_waits_for_a_runner_that_was_asked(self) -> None:
        silent = set(range(self.before_fence + 1, self.number + 1)) - self.answered.keys()
        assert silent == {control.number for control in self.machine.steering._wanted}
        assert not silent or any(runner.asked for runner in self.machine.pool.runners.values())


Steered.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestSteered = Steered.TestCase
