"""The agent's brain: whatever happens in whatever order, it keeps its promises."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.agent.local_queue import PASSES, Estimate, LocalQueue, Recipe
from headway.agent.machine import GRACE_S, Machine
from headway.agent.signals import (
    AskBack,
    DrainAsked,
    EndAllAsked,
    EndProcess,
    EndRunner,
    Fenced,
    GiveBatch,
    OrdersArrived,
    ProcessEnded,
    RunnerDid,
    RunnerEnded,
    RunnerGaveBack,
    RunnerReady,
    Spawn,
    StartRunner,
    Stimulus,
    StopRunner,
    Take,
    TellAgain,
    TellFinished,
    TellReturned,
    Tick,
)
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from headway.domain.task import Definition
from headway.wire.exchange import Cancel, Finished, Order

CAPACITY = (2000, 1000, 0, 0, 0, 0)
SMALL = Resources(cpus_milli=500, memory=100)
LARGE = Resources(cpus_milli=2000, memory=900)
PROGRAM = Definition(name="program", command=("true",), resources=SMALL, cap_ms=1000)
WIDE = Definition(name="wide", command=("true",), resources=LARGE)
FUNCTION = Definition(name="function", function="m:f", resources=SMALL, cap_ms=2000)
HEAVY = Definition(name="heavy", function="m:heavy", resources=LARGE)
DEFINITIONS = {1: PROGRAM, 2: WIDE, 3: FUNCTION, 4: HEAVY}


def new_machine() -> Machine:
    return Machine(CAPACITY, wall_ms=lambda: 1_000_000)


def arrived(*orders: Order, now: float = 0.0, cancels: list[Cancel] | None = None) -> OrdersArrived:
    return OrdersArrived(list(orders), DEFINITIONS, cancels or [], now)


def order(task: int, definition: int = 1, attempt: int = 1) -> Order:
    return Order(task, attempt, definition, b"")


def spawned(instructions: list[object]) -> list[int]:
    return [i.order.id for i in instructions if isinstance(i, Spawn)]


def test_a_repeated_order_is_received_again_and_started_once() -> None:
    machine = new_machine()
    assert spawned(machine.handle(arrived(order(1)))) == [1]
    again = machine.handle(arrived(order(1)))
    assert spawned(again) == []
    assert [i.refs for i in again if isinstance(i, Take)] == [[(1, 1)]]


def test_an_order_for_an_attempt_that_has_ended_is_answered_by_its_end() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1), order(2)))
    machine.handle(ProcessEnded(Finished(1, 1, 0, 0, 0), 1.0))
    again = machine.handle(arrived(order(1), order(2), now=2.0))
    assert spawned(again) == []
    assert [i.refs for i in again if isinstance(i, TellAgain)] == [[(1, 1)]]  # the other one runs


def test_an_order_for_an_older_attempt_than_the_last_is_answered_by_its_end_too() -> None:
    machine = new_machine()
    for attempt in (1, 2):
        machine.handle(arrived(order(1, attempt=attempt)))
        machine.handle(ProcessEnded(Finished(1, attempt, 1, 0, 0), 1.0))
    again = machine.handle(arrived(order(1), now=2.0))
    assert spawned(again) == []
    assert [i.refs for i in again if isinstance(i, TellAgain)] == [[(1, 1)]]


def test_orders_behind_tasks_that_turn_out_long_go_back() -> None:
    machine = new_machine()
    orders = [order(task) for task in range(1, 11)]
    running = spawned(machine.handle(arrived(*orders)))
    assert running == [1, 2, 3, 4]
    early = [i for t in range(18) for i in machine.handle(Tick(t * 0.05, {})) if isinstance(i, TellReturned)]
    assert early == []
    late = [i for t in range(18, 24) for i in machine.handle(Tick(t * 0.05, {})) if isinstance(i, TellReturned)]
    assert [i.refs for i in late] == [[(task, 1) for task in range(5, 11)]]
    assert sorted(ref[0] for ref in machine.held()) == running


def test_an_order_whose_definition_is_unknown_is_not_received() -> None:
    machine = new_machine()
    out = machine.handle(OrdersArrived([order(1, 9)], {}, [], 0.0))
    assert out == [Take([], [9])]
    assert machine.held() == []


def test_a_lower_attempt_is_never_started_after_a_higher_one() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1, attempt=2)))
    machine.handle(ProcessEnded(Finished(1, 2, 0, 0, 0), 1.0))
    assert spawned(machine.handle(arrived(order(1, attempt=1), now=2.0))) == []


def test_a_cancel_of_another_attempt_ends_nothing() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1, attempt=2), order(2, definition=3, attempt=2)))
    machine.handle(RunnerReady(1, 0.5))
    told = machine.handle(arrived(now=1.0, cancels=[Cancel(task, attempt) for task in (1, 2) for attempt in (1, 3)]))
    assert not [i for i in told if isinstance(i, AskBack | EndProcess | EndRunner | TellFinished)]
    assert sorted(machine.held()) == [(1, 2), (2, 2)]
    told = machine.handle(arrived(now=2.0, cancels=[Cancel(1, 2)]))
    assert [i.id for i in told if isinstance(i, EndProcess)] == [1]


def test_an_attempt_that_waited_for_the_end_of_a_lower_one_is_not_begun_on_a_node_that_drains() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1)))
    machine.handle(arrived(order(1, attempt=2), now=1.0))
    machine.handle(DrainAsked(True, 2.0))
    assert spawned(machine.handle(ProcessEnded(Finished(1, 1, 0, 0, 0), 3.0))) == []
    ends = [machine.handle(Tick(now, {})) for now in (3.0, 5.0)]
    assert [i.refs for out in ends for i in out if isinstance(i, TellReturned)] == [[(1, 2)]]


def test_a_small_task_passes_a_large_one_that_does_not_fit_but_not_for_ever() -> None:
    queue = LocalQueue()
    wide = Recipe(WIDE, LARGE.amounts(), 1.0, "", Estimate())
    small = Recipe(PROGRAM, SMALL.amounts(), 1.0, "", Estimate())
    queue.add(queue.group(wide), [order(1, 2)])
    queue.add(queue.group(small), [order(n) for n in range(2, 2 * PASSES)])
    free, started = (500, 1000, 0, 0, 0, 0), 0
    while (group := queue.next(free)) is not None:
        group.orders.popleft()
        queue.took(group, 1)
        started += 1
    assert started == PASSES


def test_at_the_cap_comes_a_warning_and_after_the_grace_the_end() -> None:
    machine = new_machine()
    machine.handle(arrived(order(1)))
    assert EndProcess(1, force=False) not in machine.handle(Tick(0.9, {}))
    assert EndProcess(1, force=False) in machine.handle(Tick(1.0, {}))
    assert EndProcess(1, force=True) in machine.handle(Tick(1.0 + GRACE_S, {}))
    out = machine.handle(ProcessEnded(Finished(1, 1, Outcome.SIGNAL, 0, 0), 7.0))
    assert [i.finished.outcome for i in out if isinstance(i, TellFinished)] == [Outcome.CAP_EXCEEDED]


def test_when_a_runner_dies_only_the_task_that_ran_is_blamed() -> None:
    machine = new_machine()
    machine.handle(arrived(order(100, 3)))
    machine.handle(RunnerReady(1, 0.0))
    machine.handle(RunnerDid(1, 1, 0.0001, 0.0001, False, 0.1))  # now it is known to be short
    machine.handle(arrived(*(order(n, 3) for n in range(1, 6)), now=0.2))
    # two of the five were done without a word, the third was running
    out = machine.handle(RunnerEnded(1, begun=4, started_ms=0, why="killed", now=0.3))
    ends = {i.finished.id: i.finished.outcome for i in out if isinstance(i, TellFinished)}
    assert ends == {1: Outcome.PRE_EMPTED, 2: Outcome.PRE_EMPTED, 3: Outcome.RUNNER_CRASHED}
    assert sorted(machine.held()) == [(4, 1), (5, 1)]


class Promises(RuleBasedStateMachine):
    """Plays server and shell at random and keeps the books."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = new_machine()
        self.machine.handle(arrived())
        self.machine.recipes[3].estimate.learn(0.0001)  # known to be short, so that it goes out in batches
        self.now = 0.0
        self.next_id = 0
        self.accepted: set[tuple[int, int]] = set()
        self.over: dict[tuple[int, int], int] = {}  # how often an attempt was finished or returned
        self.begun: dict[tuple[int, int], int] = {}
        self.processes: dict[int, Order] = {}
        self.batches: dict[int, deque[Order]] = {}
        self.starting: list[int] = []
        self.did: dict[int, int] = {}
        self.asked: set[int] = set()
        self.fenced: set[tuple[int, int]] = set()

    def do(self, stimulus: Stimulus) -> None:
        for i in self.machine.handle(stimulus):
            if isinstance(i, Spawn):
                ref = (i.order.id, i.order.attempt)
                self.begun[ref] = self.begun.get(ref, 0) + 1
                assert i.order.id not in self.processes, "two attempts of one task at once"
                self.processes[i.order.id] = i.order
            elif isinstance(i, StartRunner):
                self.starting.append(i.runner)
                self.batches[i.runner] = deque()
                self.did[i.runner] = 0
            elif isinstance(i, GiveBatch):
                self.batches[i.runner].extend(i.orders)
            elif isinstance(i, AskBack):
                self.asked.add(i.runner)
            elif isinstance(i, StopRunner):
                self._runner_gone(i.runner)
            elif isinstance(i, TellFinished):
                self._over((i.finished.id, i.finished.attempt))
            elif isinstance(i, TellReturned):
                for ref in i.refs:
                    self._over(ref)

    def _over(self, ref: tuple[int, int]) -> None:
        self.over[ref] = self.over.get(ref, 0) + 1

    def _runner_gone(self, runner: int) -> None:
        assert not self.batches[runner], "a runner with work was stopped"
        del self.batches[runner]
        self.do(RunnerEnded(runner, self.did[runner], 0, "stopped", self.now))

    @rule(kinds=st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def orders_arrive(self, kinds: list[int]) -> None:
        orders = []
        for kind in kinds:
            self.next_id += 1
            orders.append(order(self.next_id, kind))
        self.accepted |= {(o.id, o.attempt) for o in orders}
        self.do(arrived(*orders, now=self.now))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def an_order_is_repeated(self, data: st.DataObject) -> None:
        task, attempt = data.draw(st.sampled_from(sorted(self.accepted)))
        self.do(arrived(order(task, 1, attempt), now=self.now))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def a_higher_attempt_arrives(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.processes)))
        attempt = max(a for t, a in self.accepted if t == task) + 1
        self.accepted.add((task, attempt))
        self.do(arrived(order(task, 1, attempt), now=self.now))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def a_program_ends(self, data: st.DataObject) -> None:
        ended = self.processes.pop(data.draw(st.sampled_from(sorted(self.processes))))
        self.do(ProcessEnded(Finished(ended.id, ended.attempt, 0, 0, 0), self.now))

    @precondition(lambda self: self.starting)
    @rule()
    def a_runner_is_ready(self) -> None:
        self.do(RunnerReady(self.starting.pop(0), self.now))

    def _busy(self) -> list[int]:
        return sorted(number for number, batch in self.batches.items() if batch)

    @precondition(lambda self: self._busy())
    @rule(data=st.data(), seconds=st.sampled_from([0.000002, 0.001, 0.2]), tired=st.booleans())
    def a_runner_did_some(self, data: st.DataObject, seconds: float, tired: bool) -> None:
        number = data.draw(st.sampled_from(self._busy()))
        count = data.draw(st.integers(1, len(self.batches[number])))
        for _ in range(count):
            done = self.batches[number].popleft()
            self.begun[done.id, done.attempt] = self.begun.get((done.id, done.attempt), 0) + 1
            self._over((done.id, done.attempt))
        self.did[number] += count
        self.do(RunnerDid(number, count, seconds * count, seconds, tired, self.now))

    @precondition(lambda self: self.asked & self.batches.keys())
    @rule(data=st.data())
    def a_runner_gives_back(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.asked & self.batches.keys())))
        self.asked.discard(number)
        batch = self.batches[number]
        count = max(len(batch) - 1, 0)
        for _ in range(count):
            batch.pop()
        self.do(RunnerGaveBack(number, count, self.now))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def a_runner_dies(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.batches)))
        batch = self.batches.pop(number)
        self.asked.discard(number)
        if number in self.starting:
            self.starting.remove(number)
        begun = data.draw(st.integers(0, len(batch)))
        for o in list(batch)[:begun]:
            self.begun[o.id, o.attempt] = self.begun.get((o.id, o.attempt), 0) + 1
        self.do(RunnerEnded(number, self.did[number] + begun, 0, "died", self.now))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), grace=st.sampled_from([0.0, 5.0]))
    def a_cancel_arrives(self, data: st.DataObject, grace: float) -> None:
        ref = data.draw(st.sampled_from(sorted(self.accepted)))
        self.do(arrived(now=self.now, cancels=[Cancel(*ref, grace)]))

    @rule(seconds=st.sampled_from([0.004, 0.06, 3.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        current = {n: (self.did[n] + 1, self.now - seconds) for n in self._busy()}
        self.do(Tick(self.now, current))

    @rule(on=st.booleans())
    def draining(self, on: bool) -> None:
        self.do(DrainAsked(on, self.now))

    @rule()
    def everything_is_ended(self) -> None:
        self.do(EndAllAsked(0.0, self.now))

    @rule()
    def the_lease_passes(self) -> None:
        self.fenced |= set(self.machine.held())
        self.processes.clear()
        self.batches.clear()
        self.starting.clear()
        self.asked.clear()
        self.do(Fenced())
        self.accepted.clear()  # the next boot is told of none of them again

    @invariant()
    def nothing_exceeds_the_node(self) -> None:
        assert min(self.machine.free) >= 0
        used = [0] * 6
        for o in [*self.processes.values(), *(batch[0] for batch in self.batches.values() if batch)]:
            used = [a + b for a, b in zip(used, DEFINITIONS[o.definition].resources.amounts(), strict=True)]
        assert all(a <= b for a, b in zip(used, CAPACITY, strict=True))

    @invariant()
    def every_attempt_is_held_or_over_exactly_once(self) -> None:
        held = self.machine.held()
        assert len(held) == len(set(held))
        for ref in self.accepted:
            superseded = (ref[0], ref[1] + 1) in self.accepted
            times = self.over.get(ref, 0) + (ref in held)
            assert times == 1 or (superseded and times == 0), ref
        assert all(count == 1 for count in self.over.values())

    @invariant()
    def nothing_begins_twice(self) -> None:
        assert all(count <= 1 for count in self.begun.values())


Promises.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPromises = Promises.TestCase


def test_after_a_fence_all_resources_are_free_again() -> None:
    machine = new_machine()
    machine.handle(arrived(*(order(n) for n in range(1, 4)), order(9, 3)))
    machine.handle(RunnerReady(1, 0.0))
    machine.handle(Fenced())
    assert machine.free == CAPACITY
    assert machine.held() == []
    assert not any(isinstance(i, EndRunner) for i in machine.handle(Tick(1.0, {})))
