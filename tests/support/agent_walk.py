"""A walk by chance over an agent: what is asked of it, what happens to it, and the story of both."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from headway.agent import tree
from headway.wire.exchange import Order, Ref
from tests.support import walk_model
from tests.support.agents import AgentProcess, marked_processes
from tests.support.processes import command_line
from tests.support.waiting import until
from tests.support.walk_model import Attempt, Plan
from tests.support.walk_server import WalkServer

MOST_OPEN = 12
SHORT_S = 5.0  # the lease of every third walk
RUNNERS = (b"headway.agent.runner", b"headway.agent.bridge")
DISK_WATCH = b"headway.agent.disk_process"
HELPERS = (DISK_WATCH, b"headway.agent.relay", b'exec "$PYTHON"')
ADOPTING = b"headway.agent.main import adopt"


class Walk:
    def __init__(self, seed: int, server: WalkServer, folder: Path, shown: Path) -> None:
        """Where the lease is short, it passes now and then."""
        self.chance = random.Random(seed)
        self.server, self.folder, self.shown = server, folder, shown
        self.attempts: dict[Ref, Attempt] = {}
        self.orders: dict[Ref, Order] = {}
        self.forgotten: set[Ref] = set()
        self.story: list[str] = []
        self.began = time.monotonic()
        self.runners_harmed = False
        self.reasons_for_boots = 0
        self.short = server.fence_s == SHORT_S
        self.agent = self._start()

    def _start(self) -> AgentProcess:
        settings = {"cpus": 4.0, "max_processes": walk_model.MAX_PROCESSES, "max_output": walk_model.MAX_OUTPUT, "drain_s": 1.0}
        return AgentProcess(self.folder, self.server.url, paths=[str(self.shown)], runner_idle_s=1.0, **settings)

    def tell(self, seed: int) -> None:
        """The story, and who lives at its end."""
        print(f"seed {seed}", *self.story, sep="\n")
        for pid in sorted(marked_processes(self.agent)):
            with contextlib.suppress(OSError):
                print(pid, Path(f"/proc/{pid}/stat").read_text()[:60], Path(f"/proc/{pid}/wchan").read_text(), command_line(pid)[:150])

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
            (1, self.restart), (1, self.kill_both),
        ]  # fmt: skip
        if self.server.away and self.chance.random() < 0.2:
            self.be_away()  # not for as long as a lease
        if self.short:
            agent += [(2, self.cut_off), (2, self.stop_supervisor)]
        weights, acts = zip(*people, *agent, strict=True)
        self.chance.choices(acts, weights)[0]()
        if self.chance.random() < 0.7:
            self.server.hear_something(self.chance.choice((0.02, 0.1, 0.3)))
            self.server.hear_something(self.chance.choice((0.02, 0.1, 0.3)))

    def order(self) -> None:
        if len(self.open()) >= MOST_OPEN:
            self.cancel()
            return
        plan = walk_model.draw(self.chance, sandbox=True, perl=True)
        self.give(plan, self.server.new_task(), 1)
        if self.chance.random() < 0.05:
            self.cancel()

    def give(self, plan: Plan, task: int, attempt: int, *, supersede: bool = False) -> Ref:
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
            self.give(self.attempts[task, attempt].plan, task, attempt + 1)

    def supersede(self) -> None:
        if (ref := self._some()) is not None:
            self.note(f"supersede {ref}")
            self.runners_harmed |= self.attempts[ref].plan.function
            self.attempts[ref].yielded = True
            self.attempts[ref].cancelled_ns = time.monotonic_ns()
            self.give(self.attempts[ref].plan, ref[0], ref[1] + 1, supersede=True)

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

    def cut_off(self) -> None:
        """No server answers, perhaps for longer than the lease."""
        self.note("cut off")
        self.server.deaf = True
        self._wait(self.chance.choice((0.5, 1.0, 1.5)) * SHORT_S)
        self.server.deaf = False
        self.note("reached again")

    def stop_supervisor(self) -> None:
        if (pid := self.supervisor()) is not None:
            self.note("stop the supervisor")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._wait(self.chance.choice((0.1, 0.5, 1.5)) * SHORT_S)
                os.kill(pid, signal.SIGCONT)

    def _wait(self, seconds: float) -> None:
        """Orders and wishes go on coming meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.chance.choice((self.order, self.cancel, self.pause, self.resume))()
            self.server.hear_something(0.5)

    def kill_supervisor(self) -> None:
        if (pid := self.supervisor()) is not None:
            self.reasons_for_boots += 1
            self._kill(pid, "supervisor")

    def kill_both(self) -> None:
        """So that neither can end what the other leaves."""
        both = [pid for pid in (self.exchange(), self.supervisor()) if pid is not None]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            tree.send(both, number)
        self.reasons_for_boots += 1
        self.note(f"kill both sides {both}")

    def kill_runner(self) -> None:
        if found := self.children(*RUNNERS):
            self.runners_harmed = True
            self._kill(self.chance.choice(found), "runner")

    def kill_helper(self) -> None:
        if found := self.children(*HELPERS, b"headway.agent.carry"):
            self._kill(self.chance.choice(found), "helper")

    def _kill(self, pid: int, what: str) -> None:
        self.note(f"kill {what} {pid}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def children(self, *words: bytes) -> list[int]:
        """Children of the supervisor with one of these words in their command lines."""
        supervisor = self.supervisor()  # most are started by its other threads
        found = [pid for pid, of in tree.table().items() if of.ppid == supervisor and not of.zombie]
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
        for ref in self.open():
            self.attempts[ref].ended_with_agent = True
            self.attempts[ref].cancelled_ns = min(self.attempts[ref].cancelled_ns, time.monotonic_ns())
        ours = self.agent.process.poll() is None
        asked: set[int] = set()

        def ended() -> bool:
            pid = self.exchange()
            if pid is not None and pid not in asked and _listens(pid):
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    for _ in range(1 + hurry):
                        os.kill(pid, signal.SIGTERM)
            return self.agent.process.poll() is not None and not marked_processes(self.agent)

        until(ended, seconds=90, what="the agent ends with all it started")
        code = self.agent.process.wait(10)
        assert not ours or code == 0, f"the agent ended with {code}"

    def revive(self) -> None:
        """When both sides are dead, somebody starts the agent again."""
        if self.exchange() is None and self.supervisor() is None:
            self.agent.process.wait(60)
            self.note("start a dead agent")
            self.reasons_for_boots += 1
            self.agent = self._start()

    def open(self) -> list[Ref]:
        return [ref for ref in self.attempts if not self.server.settled(ref)]

    def _some(self) -> Ref | None:
        found = self.open()
        return self.chance.choice(found) if found else None

    # --- afterwards

    def calm_down(self) -> None:
        """Everybody behaves; what does not end by itself is cancelled. Each attempt ends."""
        server = self.server
        server.away = server.drains = server.unsteady = False
        self.note("calm down")
        self.revive()
        for ref in self.open():
            self._cancel(ref)

        def over() -> bool:
            self.revive()
            with server._changed:
                return not self.open() and all(steered.answer for steered in server.steered.values())

        try:
            until(over, seconds=90)
        except AssertionError:
            left = [(ref, self.attempts[ref].plan.kind) for ref in self.open()]
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
        if not self.short and len(server.boots) > 1 + self.reasons_for_boots:
            found.append(f"there were {len(server.boots)} boots for {self.reasons_for_boots} reasons")
        return found


def _listens(pid: int) -> bool:
    """Whether SIGTERM is heard already, and does not simply end it: then another one would be started in its place."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        caught = next((int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")), 0)
        return bool(caught & 1 << signal.SIGTERM - 1)
    return False
