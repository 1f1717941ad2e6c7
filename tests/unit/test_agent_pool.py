"""Warm runners of many kinds on one node: few start at once, few rest in vain, and every kind has its turn (H3)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headway.agent.local_queue import FEW, PASSES, Estimate
from headway.agent.machine import Machine
from headway.agent.pool import A_CORE, IDLE
from headway.agent.signals import (
    BatchNotGiven,
    EndRunner,
    GiveBatch,
    Instruction,
    OrdersArrived,
    RunnerDid,
    RunnerEnded,
    RunnerReady,
    StartRunner,
    Stimulus,
    StopRunner,
    TellFinished,
    TellReturned,
    Tick,
)
from headway.agent.starting import READY_S, SLOW_START_S, STARTING
from headway.agent.supervisor import TICK_S
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from headway.domain.task import Definition
from headway.wire.exchange import Order

TENANTS = 100
ROOM = (100_000, 2**40, 2**40, 0, 0, 0)
DEFINITIONS = {
    tenant: Definition(name="f", function="m:f", isolation="sandbox", tenant=tenant, resources=Resources(cpus_milli=10))
    for tenant in range(1, TENANTS + 1)
}


class Shell:
    """Does what the machine says: runners start, do their work, and end, one event at a time."""

    def __init__(self, room: tuple[int, ...] = ROOM, takes_s: float = 0.001, stops_s: Sequence[float] = (0.0,)) -> None:
        self.machine = Machine(room, wall_ms=lambda: 0)
        self.takes_s, self.stops_s = takes_s, itertools.cycle(stops_s)  # a function; and a runner that must wait in the middle of a batch
        self.now = 0.0
        self.coming: list[Stimulus] = []
        self.starting = self.most_starting = self.stopped = 0
        self.at_work: list[int] = []  # runners with a batch, after each event
        self.started = self.given = 0
        self.done: list[int] = []
        self.did: dict[int, int] = {}

    def hear(self, stimulus: Stimulus) -> None:
        self.starting -= isinstance(stimulus, RunnerReady)
        for i in self.machine.handle(stimulus):
            if isinstance(i, StartRunner):
                self.starting += 1
                self.started += 1
                self.did[i.runner] = 0
                self.coming.append(RunnerReady(i.runner, self.now))
            elif isinstance(i, GiveBatch):
                self.given += 1
                self.did[i.runner] += len(i.orders)
                self.done += [order.id for order in i.orders]
                busy_s = self.takes_s * len(i.orders) + next(self.stops_s)
                self.coming.append(RunnerDid(i.runner, len(i.orders), busy_s, self.takes_s, False, self.now))
            elif isinstance(i, StopRunner):
                self.stopped += 1
                self.coming.append(RunnerEnded(i.runner, self.did[i.runner], 0, "stopped", self.now))
        self.most_starting = max(self.most_starting, self.starting)
        self.at_work.append(sum(bool(runner.batch) for runner in self.machine.pool.runners.values()))

    def play(self) -> None:
        for _ in range(100 * TENANTS):
            if not self.coming:
                return
            self.now += 0.001
            self.hear(self.coming.pop(0))
        raise AssertionError("it never comes to rest")


def test_a_hundred_tenants_at_once_all_have_their_turn_and_few_sandboxes_start_together() -> None:
    shell = Shell()
    shell.hear(OrdersArrived([Order(tenant, 1, tenant, b"") for tenant in DEFINITIONS], DEFINITIONS, [], 0.0))
    assert shell.starting == STARTING
    shell.play()
    assert sorted(shell.done) == sorted(DEFINITIONS)
    assert shell.most_starting <= STARTING
    assert len(shell.machine.pool.runners) <= IDLE + STARTING


TWO_CORES = (2_000, *ROOM[1:])
SMALL = {shape: Definition(name="f", function="m:f", tenant=1, resources=Resources(cpus_milli=100 + shape)) for shape in range(3)}


def after_many(stops_s: Sequence[float] = (0.0,)) -> Shell:
    """A node of two cores with room for nineteen has seen tiny functions of three shapes; then come more."""
    shell = Shell(TWO_CORES, 0.00002, stops_s)
    for wave in range(40):
        if wave == 10:  # how long they take is known by now
            shell.at_work.clear()
            shell.started = 0
        orders = [Order(3_000 * wave + at, 1, at % 3, b"") for at in range(3_000)]
        shell.hear(OrdersArrived(orders, SMALL, [], shell.now))
        shell.play()
    assert len(shell.done) == 40 * 3_000
    return shell


def test_tiny_functions_keep_two_runners_a_core_at_work() -> None:
    shell = after_many()
    assert max(shell.at_work) == A_CORE * 2
    assert shell.started == 0


def test_a_runner_that_is_stopped_by_a_busy_core_now_and_then_is_no_reason_for_more() -> None:
    shell = after_many([0.0, 0.0, 0.0, 0.0, 0.05])
    assert max(shell.at_work) == A_CORE * 2
    assert shell.started == 0
    assert len(shell.done) / shell.given > 100, "nor for small batches, when a runner comes to its turn seldom"


def test_a_function_that_waits_every_second_time_is_not_tiny() -> None:
    estimate = Estimate()
    for _ in range(20):
        estimate.learn(0.00002)
        estimate.learn(0.04)
    assert not estimate.tiny
    assert not estimate.brief


def test_functions_that_wait_have_a_runner_for_each_slot() -> None:
    shell = Shell(TWO_CORES, 0.5)
    for wave in range(10):
        orders = [Order(100 * wave + at, 1, at % 3, b"") for at in range(60)]
        shell.hear(OrdersArrived(orders, SMALL, [], shell.now))
        shell.play()
    assert max(shell.at_work) == 19  # of 100, 101 and 102 thousandths of a CPU each


def test_tiny_functions_do_not_wait_behind_those_that_wait() -> None:
    shell = after_many()
    waits = Definition(name="g", function="m:g", tenant=1, resources=Resources(cpus_milli=200))
    machine = shell.machine
    shell.takes_s = 0.5
    shell.hear(OrdersArrived([Order(10**6 + at, 1, 7, b"") for at in range(FEW)], {7: waits}, [], shell.now))
    shell.play()  # now it is known to wait
    machine.handle(OrdersArrived([Order(10**7 + at, 1, 7, b"") for at in range(A_CORE * 2)], {7: waits}, [], shell.now))
    assert all(runner.batch for runner in machine.pool.runners.values() if runner.ready)
    [started] = [i for i in machine.handle(OrdersArrived([Order(10**8, 1, 0, b"")], SMALL, [], shell.now)) if isinstance(i, StartRunner)]
    out = machine.handle(RunnerReady(started.runner, shell.now))
    assert [order.id for i in out if isinstance(i, GiveBatch) for order in i.orders] == [10**8]


NEW = {at: Definition(name="f", function=f"m:f{at}", tenant=1, resources=Resources(cpus_milli=100 + at % 3)) for at in range(300)}


def test_three_hundred_new_functions_that_are_tiny_take_two_runners_a_core() -> None:
    shell = Shell(TWO_CORES, 0.00002)
    shell.hear(OrdersArrived([Order(at, 1, at % 300, b"") for at in range(1_200)], NEW, [], 0.0))
    shell.play()
    assert len(shell.done) == 1_200
    assert shell.started == A_CORE * 2


def test_a_tiny_function_whose_first_call_took_long_takes_two_runners_a_core() -> None:
    shell = Shell(TWO_CORES, 0.005)
    shell.hear(OrdersArrived([Order(1, 1, 0, b"")], SMALL, [], 0.0))
    shell.play()
    shell.takes_s = 0.00002
    shell.hear(OrdersArrived([Order(10 + at, 1, at % 3, b"") for at in range(1_200)], SMALL, [], shell.now))
    shell.play()
    assert len(shell.done) == 1_201
    assert shell.started == A_CORE * 2


def test_new_functions_that_take_long_have_a_runner_for_each_slot_once_they_are_seen_to() -> None:
    shell = Shell(TWO_CORES)
    machine = shell.machine
    out = machine.handle(OrdersArrived([Order(at, 1, at, b"") for at in range(60)], NEW, [], 0.0))
    begun: set[int] = set()
    for beat in range(1, 60):
        for i in out:
            if isinstance(i, StartRunner):
                out = [*out, *machine.handle(RunnerReady(i.runner, shell.now))]
        begun |= {i.runner for i in out if isinstance(i, GiveBatch)}
        assert len(begun) <= A_CORE * 2 * beat, "a few with each look, in case that they are tiny"
        shell.now += TICK_S
        out = machine.handle(Tick(shell.now, dict.fromkeys(begun, (1, shell.now - TICK_S))))
    assert len(begun) == 19  # of 100, 101 and 102 thousandths of a CPU each


def test_the_one_that_rests_longest_goes_first() -> None:
    shell = Shell()
    for tenant in range(1, IDLE + 1):
        shell.hear(OrdersArrived([Order(tenant, 1, tenant, b"")], DEFINITIONS, [], shell.now))
        shell.play()
    assert shell.stopped == 0
    first = min(shell.machine.pool.runners)
    shell.hear(OrdersArrived([Order(99, 1, 99, b"")], DEFINITIONS, [], shell.now))
    shell.play()
    assert shell.stopped == 1
    assert first not in shell.machine.pool.runners


def test_runners_that_die_before_they_are_ready_are_told_once_though_several_were_started() -> None:
    machine = Machine(ROOM, wall_ms=lambda: 0)
    definition = Definition(name="f", function="m:f", interpreter="broken", tenant=1, resources=Resources(cpus_milli=10))
    out = machine.handle(OrdersArrived([Order(task, 1, 1, b"") for task in (1, 2, 3)], {1: definition}, [], 0.0))
    runners = [i.runner for i in out if isinstance(i, StartRunner)]
    assert len(runners) == 3
    told = [i for runner in runners for i in machine.handle(RunnerEnded(runner, 0, 0, "died", 0.1))]
    assert [i.finished.id for i in told if isinstance(i, TellFinished)] == [1, 2, 3]
    assert len([i for i in told if isinstance(i, StartRunner)]) == 1, "after the first, who may have been killed"


def test_what_was_beside_one_that_cannot_be_started_goes_out_again_without_it() -> None:
    same = {number: Definition(name=f"f{number}", function="m:f", tenant=1, resources=Resources(cpus_milli=2_000)) for number in (1, 2)}
    shell = Shell(TWO_CORES, 0.00002)
    shell.hear(OrdersArrived([Order(1, 1, 1, b""), Order(2, 1, 2, b"")], same, [], 0.0))
    shell.play()  # they are short, and share batches from now on
    orders = [Order(10 + at, 1, 1 + at % 2, b"") for at in range(6)]
    (given,) = [i for i in shell.machine.handle(OrdersArrived(orders, same, [], shell.now)) if isinstance(i, GiveBatch)]
    assert [order.id for order in given.orders] == [10, 11, 12, 13, 14, 15]
    out = list(shell.machine.handle(BatchNotGiven(given.runner, 6, "the secret is gone", shell.now, unstarted=1)))
    assert [i.finished.id for i in out if isinstance(i, TellFinished)] == [10, 12, 14]
    (again,) = [i for i in out if isinstance(i, GiveBatch)]
    assert [order.id for order in again.orders] == [11, 13, 15]


SLEEPY = {
    at: Definition(name="s", function="m:s", isolation="sandbox", tenant=1, network=(f"10.0.0.{at}",)) for at in (1, 2)
}  # of two kinds


def starts(machine: Machine, orders: Sequence[Order], definitions: dict[int, Definition], now: float) -> list[StartRunner]:
    return [i for i in machine.handle(OrdersArrived(list(orders), definitions, [], now)) if isinstance(i, StartRunner)]


def test_runners_that_sleep_before_they_are_ready_keep_no_others_from_starting_for_long() -> None:
    machine = Machine(ROOM, wall_ms=lambda: 0)
    sleeping = starts(machine, [Order(at, 1, at % 2 + 1, b"") for at in range(40)], SLEEPY, 0.0)
    assert len(sleeping) == STARTING // 2, "one tenant leaves half of the places to others"
    [other] = starts(machine, [Order(100, 1, 3, b"")], {3: SMALL[0]}, 1.0)
    assert other.definition == 3


def test_the_slow_runners_of_many_tenants_keep_no_others_from_starting_for_long() -> None:
    machine = Machine(ROOM, wall_ms=lambda: 0)
    tenants = {at: Definition(name="s", function="m:s", isolation="sandbox", tenant=at) for at in range(1, 5)}
    sleeping = starts(machine, [Order(at, 1, at % 4 + 1, b"") for at in range(80)], tenants, 0.0)
    assert len(sleeping) == STARTING
    assert not starts(machine, [Order(100, 1, 9, b"")], {9: SMALL[0]}, 1.0)
    began: list[Instruction] = []
    for beat in range(1, int(READY_S / TICK_S)):
        began += machine.handle(Tick(beat * TICK_S, {}))
        if beat * TICK_S >= 2 * SLOW_START_S + TICK_S:
            assert [i.definition for i in began if isinstance(i, StartRunner) and i.kind == "python"] == [9]
    assert not any(isinstance(i, TellReturned) for i in began)
    assert sum(isinstance(i, StartRunner) for i in began) + STARTING == 4 * STARTING // 2 + 1, "they do not become more and more"


def test_runners_that_are_never_ready_are_ended_and_their_tasks_told() -> None:
    machine = Machine(ROOM, wall_ms=lambda: 0)
    alive = {i.runner for i in starts(machine, [Order(1, 1, 1, b"")], SLEEPY, 0.0)}
    told: list[TellFinished] = []
    now = 0.0
    while not told and now < 4 * READY_S:
        now += 5.0
        out = machine.handle(Tick(now, {}))
        assert not any(isinstance(i, TellReturned) for i in out), "it waits for its runner"
        for runner in [i.runner for i in out if isinstance(i, EndRunner)]:
            alive.remove(runner)
            out += machine.handle(RunnerEnded(runner, 0, 0, "its runner was killed by SIGKILL", now))
        alive |= {i.runner for i in out if isinstance(i, StartRunner)}
        told = [i for i in out if isinstance(i, TellFinished)]
    assert told[0].finished.outcome == Outcome.NOT_STARTABLE
    assert f"not ready within {READY_S:g} s" in str(told[0].finished.error)
    assert not alive


def test_what_waits_for_a_runner_holds_up_nobody_though_it_was_passed_often() -> None:
    machine = Machine(TWO_CORES, wall_ms=lambda: 0)
    tiny = starts(machine, [Order(1, 1, 0, b"")], SMALL, 0.0)
    machine.handle(RunnerReady(tiny[0].runner, 0.0))
    machine.handle(RunnerDid(tiny[0].runner, 1, 0.00002, 0.00002, False, 0.0))
    assert starts(machine, [Order(2, 1, 7, b"")], {7: SLEEPY[1]}, 0.1)
    given = 0
    for wave in range(4):
        orders = [Order(10_000 * (wave + 1) + at, 1, 0, b"") for at in range(PASSES)]
        out = machine.handle(OrdersArrived(orders, SMALL, [], 0.2))
        while batches := [i for i in out if isinstance(i, GiveBatch)]:
            given += len(batches[0].orders)
            out = machine.handle(RunnerDid(batches[0].runner, len(batches[0].orders), 0.001, 0.00001, False, 0.2))
    assert given == 4 * PASSES
