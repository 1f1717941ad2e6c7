"""An agent, real tasks, and everything that can happen to them, by chance (G2 G3 H1 H6 H7 H9 H11 I1).

Programs and functions end well, fail, die, stay, escape and take too much, while they are cancelled, paused, signalled and superseded,
the server repeats itself, loses answers and forgets, and the agent's own processes are killed and stopped. Afterwards each attempt has one
end that a model of what was done to it allows, its output is whole, and nothing is left.

HEADWAY_WALK_SEEDS=100-140 walks other ways than CI does, HEADWAY_WALK_STEPS longer ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.agent import cgroups, cgroups_v1, tree
from headway.agent.main import Agent
from headway.wire.exchange import Order, Ref
from tests.support import walk_model
from tests.support.agents import AgentProcess, marked_processes
from tests.support.confined import need_groups, need_sandbox
from tests.support.packages import need
from tests.support.processes import command_line
from tests.support.waiting import until
from tests.support.walk_model import Attempt, Plan
from tests.support.walk_server import WalkServer

STEPS = int(os.environ.get("HEADWAY_WALK_STEPS", "60"))
QUICK = int(os.environ.get("HEADWAY_WALK_TASKS", "30"))  # after the walk, to see whether anything grows
MOST_OPEN = 12
THREADS = 4 * MOST_OPEN  # of a supervisor: one for each slot that was ever needed at once, and a few
RUNNERS = (b"headway.agent.runner", b"headway.agent.bridge")
HELPERS = (b"headway.agent.disk_process", b"headway.agent.relay", b'exec "$PYTHON"')
ADOPTING = b"headway.agent.main import adopt"


def seeds() -> list[int]:
    """Those of CI, or as it was asked for."""
    first, _, last = os.environ.get("HEADWAY_WALK_SEEDS", "1-2").partition("-")
    return list(range(int(first), int(last or first) + 1))


class Walk:
    def __init__(self, seed: int, server: WalkServer, folder: Path, shown: Path) -> None:
        self.chance = random.Random(seed)
        self.server, self.folder, self.shown = server, folder, shown
        self.attempts: dict[Ref, Attempt] = {}
        self.orders: dict[Ref, Order] = {}
        self.forgotten: set[Ref] = set()
        self.story: list[str] = []
        self.began = time.monotonic()
        self.runners_harmed = False
        self.reasons_for_boots = 0
        self.agent = self._start()

    def _start(self) -> AgentProcess:
        self._registered = len(self.server.registered)
        settings = {"cpus": 4.0, "max_processes": walk_model.MAX_PROCESSES, "max_output": walk_model.MAX_OUTPUT, "drain_s": 1.0}
        return AgentProcess(self.folder, self.server.url, paths=[str(self.shown)], runner_idle_s=1.0, **settings)

    def note(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self.began:7.3f} {what}")

    # --- steps

    def step(self) -> None:
        people: list[tuple[int, Callable[[], None]]] = [
            (30, self.order), (6, self.order_again), (4, self.repeat), (4, self.forget), (2, self.supersede), (10, self.cancel),
            (12, self.pause), (10, self.resume), (4, self.signal), (3, self.make_room), (2, self.drain), (2, self.be_away),
        ]  # fmt: skip
        agent: list[tuple[int, Callable[[], None]]] = [
            (3, self.kill_exchange), (2, self.stop_exchange), (1, self.kill_supervisor), (3, self.kill_runner), (2, self.kill_helper),
            (1, self.restart),
        ]  # fmt: skip
        if self.server.away and self.chance.random() < 0.2:
            self.be_away()  # not for as long as a lease
        weights, acts = zip(*people, *agent, strict=True)
        self.chance.choices(acts, weights)[0]()
        if self.chance.random() < 0.7:
            self.server.hear_something(self.chance.choice((0.02, 0.1, 0.3)))
            self.server.hear_something(self.chance.choice((0.02, 0.1, 0.3)))

    def order(self) -> None:
        if len(self._open()) >= MOST_OPEN:
            self.cancel()
            return
        plan = walk_model.draw(self.chance, sandbox=True, perl=True)
        self.server._number += 1
        self._give(plan, self.server._number, 1)
        if self.chance.random() < 0.05:
            self.cancel()

    def _give(self, plan: Plan, task: int, attempt: int, *, supersede: bool = False) -> Ref:
        lock = self.shown / f"lock-{task}"
        lock.touch()
        definition, data = walk_model.definition(plan, str(lock), self.shown)
        order, ref = Order(task, attempt, self.server.add_definition(definition), data), (task, attempt)
        self.attempts[ref], self.orders[ref] = Attempt(ref, plan), order
        self.runners_harmed |= plan.function and plan.kind in ("die", "swells", "capped", "perl die")
        self.note(f"order {ref} {plan.form} {plan.isolation} {plan.kind} {plan.steps}")
        if self.chance.random() < 0.05:
            self._cancel(ref)  # comes first, perhaps
        if supersede:
            self.server.supersede(order)
        else:
            self.server.order_these([order])
        return ref

    def order_again(self) -> None:
        """The next attempt of a task whose last one is over."""
        last = dict(sorted(self.attempts))
        over = [ref for ref in last.items() if self.server.settled(ref)]
        if over:
            task, attempt = self.chance.choice(over)
            self._give(self.attempts[task, attempt].plan, task, attempt + 1)

    def supersede(self) -> None:
        if (ref := self._some()) is not None:
            self.note(f"supersede {ref}")
            self.runners_harmed |= self.attempts[ref].plan.function
            self.attempts[ref].yielded = True
            self.attempts[ref].cancelled_ns = time.monotonic_ns()
            self._give(self.attempts[ref].plan, ref[0], ref[1] + 1, supersede=True)

    def repeat(self) -> None:
        if (ref := self._some()) is not None:
            self.note(f"the same order again {ref}")
            self.server.repeat(ref)

    def forget(self) -> None:
        ended = [ref for ref in self.server.finished.copy() if ref not in self.server.gone and (ref[0], ref[1] + 1) not in self.attempts]
        if ended:
            ref = self.chance.choice(ended)
            self.note(f"forget {ref}")
            self.forgotten.add(ref)
            self.server.forget(ref, self.orders[ref])

    def cancel(self) -> None:
        if (ref := self._some()) is not None:
            self._cancel(ref)

    def _cancel(self, ref: Ref) -> None:
        grace = self.chance.choice((0.0, 0.2, 1.0))
        self.note(f"cancel {ref} {grace}")
        attempt = self.attempts[ref]
        attempt.cancelled, attempt.cancelled_ns = True, min(attempt.cancelled_ns, time.monotonic_ns())
        self.runners_harmed |= attempt.plan.function
        self.server.wish(ref, grace)

    def _steer(self, word: str, argument: str = "") -> Ref | None:
        ref = self._some()
        if ref is not None:
            self.note(f"{word} {ref} {argument}")
            self.attempts[ref].steered.append(self.server.steer(ref, word, argument))
        return ref

    def pause(self) -> None:
        self._steer("pause")

    def resume(self) -> None:
        self._steer("resume")

    def signal(self) -> None:
        if (ref := self._steer("signal", self.chance.choice(("USR1", "TERM", "HUP")))) is not None:
            self.attempts[ref].signalled = True

    def make_room(self) -> None:
        if (ref := self._steer("yield", self.chance.choice(("0", "0.3")))) is not None:
            attempt = self.attempts[ref]
            attempt.yielded, attempt.cancelled_ns = True, min(attempt.cancelled_ns, time.monotonic_ns())
            self.runners_harmed |= attempt.plan.function

    def drain(self) -> None:
        self.server.drains = not self.server.drains
        self.note(f"drain {self.server.drains}")

    def be_away(self) -> None:
        self.server.away = not self.server.away
        self.note(f"away {self.server.away}")

    # --- what happens to the agent

    def exchange(self) -> int | None:
        if self.agent.process.poll() is None:
            return self.agent.pid
        return next((pid for pid in marked_processes(self.agent) if ADOPTING in command_line(pid)), None)

    def supervisor(self) -> int | None:
        return next((pid for pid in marked_processes(self.agent) if b"begin_supervisor" in command_line(pid)), None)

    def kill_exchange(self) -> None:
        if (pid := self.exchange()) is not None and self.supervisor() is not None:
            self._kill(pid, "exchange side")

    def stop_exchange(self) -> None:
        if (pid := self.exchange()) is not None:
            self.note("stop the exchange side")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                for _ in range(self.chance.randrange(3)):
                    self.order()
                self.server.hear_something(self.chance.choice((0.1, 0.5)))
                os.kill(pid, signal.SIGCONT)

    def kill_supervisor(self) -> None:
        if (pid := self.supervisor()) is not None:
            self.reasons_for_boots += 1
            self._kill(pid, "supervisor")

    def kill_runner(self) -> None:
        if found := self._children(*RUNNERS):
            self.runners_harmed = True
            self._kill(self.chance.choice(found), "runner")

    def kill_helper(self) -> None:
        if found := self._children(*HELPERS):
            self._kill(self.chance.choice(found), "helper")

    def _kill(self, pid: int, what: str) -> None:
        self.note(f"kill {what} {pid}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _children(self, *words: bytes) -> list[int]:
        """Children of the supervisor with one of these words in their command lines."""
        supervisor = self.supervisor()
        found = tree.children(supervisor) if supervisor is not None else []
        return [pid for pid in found if any(word in command_line(pid) for word in words)]

    def restart(self) -> None:
        self.stop(hurry=self.chance.random() < 0.3)
        self.note("start")
        self.agent = self._start()

    def stop(self, *, hurry: bool = False) -> None:
        """Ask it to end, and wait until it has."""
        self.note("ask the agent to end")
        self.reasons_for_boots += 1
        self.server.away = False
        for ref in self._open():
            self.attempts[ref].ended_with_agent = True
            self.attempts[ref].cancelled_ns = min(self.attempts[ref].cancelled_ns, time.monotonic_ns())
        ours = self.agent.process.poll() is None
        asked: set[int] = set()

        def ended() -> bool:
            pid = self.exchange()  # one that is only being started does not listen yet, and another one follows it
            if pid is not None and pid not in asked:
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    for _ in range(1 + hurry):
                        os.kill(pid, signal.SIGTERM)
            return not marked_processes(self.agent)

        until(ended, seconds=90, what="the agent ends with all it started")
        code = self.agent.process.wait(10)
        early = len(self.server.registered) == self._registered  # it may not have listened to signals yet
        assert not ours or code == 0 or (early and code == -signal.SIGTERM), f"the agent ended with {code}"

    def revive(self) -> None:
        """When both sides are dead, somebody starts the agent again."""
        if self.exchange() is None and self.supervisor() is None:
            self.agent.process.wait(60)
            self.note("start a dead agent")
            self.reasons_for_boots += 1
            self.agent = self._start()

    def _open(self) -> list[Ref]:
        return [ref for ref in self.attempts if not self.server.settled(ref)]

    def _some(self) -> Ref | None:
        found = self._open()
        return self.chance.choice(found) if found else None

    # --- afterwards

    def calm_down(self) -> None:
        """Everybody behaves; what does not end by itself is cancelled. Each attempt ends."""
        server = self.server
        server.away = server.drains = server.unsteady = False
        self.note("calm down")
        self.revive()
        for ref in self._open():
            self._cancel(ref)

        def over() -> bool:
            self.revive()
            with server._changed:
                return not self._open() and all(steered.answer for steered in server.steered.values())

        try:
            until(over, seconds=90)
        except AssertionError:
            left = [(ref, self.attempts[ref].plan.kind) for ref in self._open()]
            silent = [steered.control for steered in server.steered.values() if not steered.answer]
            raise AssertionError(f"these have not ended: {left}; these were not answered: {silent}") from None

    def complaints(self) -> list[str]:
        server, found = self.server, list(self.server.wrong)
        for ref, attempt in self.attempts.items():
            if (end := server.finished.get(ref) or server.remembered.get(ref)) is None:
                continue
            pieces = server.pieces.get(ref, {})
            for each in walk_model.complaints(attempt, end, pieces, runners_harmed=self.runners_harmed):
                found.append(f"{ref} {attempt.plan}: {each}; {end}")
        if len(server.boots) > 1 + self.reasons_for_boots:
            found.append(f"there were {len(server.boots)} boots for {self.reasons_for_boots} reasons")
        return found


# --- what is left


def left_by(walk: Walk) -> list[str]:
    """What tasks have left behind while the agent has nothing to do."""
    found = []
    for lock in walk.shown.glob("lock-*"):
        with open(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(f"processes of task {lock.name}")
    if (supervisor := walk.supervisor()) is None:
        return ["no supervisor"]
    for pid in tree.children(supervisor):
        of, words = tree.stat(pid), command_line(pid)
        if of is not None and (of.zombie or not any(own in words for own in (*RUNNERS, *HELPERS, ADOPTING))):
            found.append(f"{'zombie' if of.zombie else 'process'} {pid} {words[:300]!r}")
    for scratch in (Path(walk.folder, "agent", "test-node", "scratch"), Path(f"/var/tmp/headway-{instance(walk)}/scratch")):
        for folder, folders, files in os.walk(scratch):
            if Path(folder) != scratch:
                found += [f"{folder}/{name}" for name in (*folders, *files) if name not in ("checkpoint", "work", "tmp")]
    return found


def instance(walk: Walk) -> str:
    return Agent(walk.agent.settings).instance


def descriptors(pid: int) -> Counter[str]:
    """What a process has open, by kind. Groups are pooled, with their files."""
    found: Counter[str] = Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = re.sub(r"\d+", "N", os.readlink(f"/proc/{pid}/fd/{name}"))
            if not target.startswith("/sys/fs/cgroup"):
                found[target] += 1
    return found


def until_none(look: Callable[[], object], what: str) -> None:
    """Wait until a look finds nothing; else it is said what it found."""
    found: object = None

    def none() -> bool:
        nonlocal found
        found = look()
        return not found

    try:
        until(none, seconds=30)
    except AssertionError:
        raise AssertionError(f"{what}: {found}") from None


def nothing_grows(walk: Walk) -> None:
    """Many tasks more, and afterwards the supervisor has as much open as before."""
    run_quick(walk, 10)
    supervisor = until(walk.supervisor)
    before = at_rest(walk, supervisor)
    run_quick(walk, QUICK)
    until_none(lambda: at_rest(walk, supervisor) - before, "the supervisor has opened, and not closed")
    until_none(lambda: left_by(walk), "left behind by quick tasks")
    assert len(os.listdir(f"/proc/{supervisor}/task")) < THREADS


def at_rest(walk: Walk, supervisor: int) -> Counter[str]:
    until(lambda: len(walk._children(*RUNNERS)) <= 1, what="idle runners end")
    return descriptors(supervisor)


def run_quick(walk: Walk, count: int) -> None:
    chance = random.Random(count)
    for _ in range(count):
        plan = walk_model.draw(chance, sandbox=True, perl=True)
        while plan.outcome is None or plan.kind == "capped":
            plan = walk_model.draw(chance, sandbox=True, perl=True)
        until(lambda: len(walk._open()) < MOST_OPEN)
        walk.server._number += 1
        walk._give(plan, walk.server._number, 1)
    until(lambda: not walk._open(), what="quick tasks end")


@contextlib.contextmanager
def walking(seed: int, folder: Path) -> Iterator[Walk]:
    shown = Path(tempfile.mkdtemp(prefix="headway-walk-"))  # not below a folder that only we may enter
    walk_model.prepare(shown)
    with WalkServer(seed, fence_s=30.0) as server:
        walk = Walk(seed, server, folder, shown)
        try:
            yield walk
        except BaseException:
            print(f"seed {seed}", *walk.story, sep="\n")
            raise
        finally:
            walk.agent.clean_up()
            shutil.rmtree(shown)


@pytest.mark.parametrize("seed", seeds())
def test_after_any_walk_each_attempt_has_one_possible_end_and_nothing_is_left(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    need_groups()
    need_sandbox(tmp_path)
    need("perl")
    with walking(seed, tmp_path / "agent") as walk:
        walk.server.wait(lambda: walk.server.heartbeats)
        for _ in range(STEPS):
            walk.revive()
            walk.step()
        walk.calm_down()
        until_none(lambda: left_by(walk), "left behind")
        nothing_grows(walk)
        walk.stop()
        assert walk.complaints() == []
        assert left_behind(walk) == []
        assert surprises(capfd.readouterr().err) == []


def surprises(log: str) -> list[str]:
    """What the agent's own processes had not foreseen."""
    return [line for line in log.splitlines() if "agent.unforeseen" in line or line.startswith(("Traceback", "Exception"))]


def left_behind(walk: Walk) -> list[str]:
    """What an agent that has ended has left."""
    name = f"headway-{instance(walk)}"
    there = cgroups.available()
    folders = cgroups_v1.own_folders() if there is not None and there[0] == 1 else {}
    found = [f"{path}/{name}" for path in folders.values() if os.path.exists(f"{path}/{name}")]
    found += [path for path in (f"/var/tmp/{name}", f"{walk.folder}/agent/test-node/scratch") if os.path.exists(path)]
    with open("/proc/self/mountinfo") as mounts:
        found += [line for line in mounts if name in line or str(walk.folder) in line]
    return found
