"""The supervisor: parent of every task, keeper of the lease, and the shell around the machine.

One thread and few imports, in a session of its own, so that nothing but a signal meant for it can disturb it. It is
child subreaper: whatever its tasks start ends up below it. When the lease passes, it kills everything at once and
goes on under a new boot id. When the exchange side dies, the tasks go on, and it starts another one, which adopts
them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from headway.agent import tree
from headway.agent.carriers import Carriers
from headway.agent.clock import boottime, wall_ms
from headway.agent.coalesce import Coalesce
from headway.agent.containers import Containers, engine_words, removal
from headway.agent.door import Door
from headway.agent.executables import Executables, reap
from headway.agent.freeze import Freezer
from headway.agent.granted import Granted
from headway.agent.kept_code import OWN
from headway.agent.link import (
    Adopt,
    Answer,
    Ask,
    Channel,
    Drain,
    EndAll,
    Lease,
    Lost,
    NewBoot,
    Quit,
    Reported,
    Setup,
    State,
    Taken,
    Terms,
    ToSupervisor,
)
from headway.agent.loggers import Loggers
from headway.agent.loop import Loop
from headway.agent.machine import Machine
from headway.agent.places import Places
from headway.agent.preparations import PASSED_ON as BUILD_ENVIRONMENT
from headway.agent.preparations import Preparations
from headway.agent.process import Spawner, clean_environment
from headway.agent.reports import Outbox
from headway.agent.resuming import Resuming
from headway.agent.runner_box import RunnerBoxes
from headway.agent.runners import Runners
from headway.agent.signals import (
    AskBack,
    DrainAsked,
    EndAllAsked,
    EndProcess,
    EndRunner,
    Fenced,
    Freeze,
    GiveBatch,
    Instruction,
    Nudge,
    OrdersArrived,
    Prepare,
    ProcessEnded,
    SignalProcess,
    Spawn,
    StartRunner,
    Stimulus,
    StopRunner,
    Take,
    TellAgain,
    TellFinished,
    TellNotices,
    TellReturned,
    TellStarted,
    Thaw,
    Tick,
)
from headway.agent.spools import Spools
from headway.agent.survivor import Survivors
from headway.agent.tokens import Tokens
from headway.agent.unforeseen import unforeseen
from headway.agent.uplink import Uplink
from headway.agent.variables import INSTANCE
from headway.domain.languages import PYTHON
from headway.wire.exchange import Finished, Orders, decode_orders, encode_msgpack
from headway.wire.objects import CREDENTIALS

PROCESS = "HEADWAY_AGENT_PROCESS"  # marks supervisors, and exchange sides that they started
TICK_S = 0.05
CLOSE_TICK_S = 0.005
IDLE_TICK_S = 5.0
GATHERED = 100  # or as soon as so many have come back
GATHER_S = 0.003  # while orders wait and programs end, they are looked after this often: what follows them is started side by side
decode = msgspec.msgpack.Decoder(ToSupervisor).decode


class Supervisor:
    def __init__(self, setup: Setup, channel: Channel, exchange: int) -> None:
        terms = msgspec.msgpack.decode(setup.settings, type=Terms)
        self.setup = setup
        _limit_files(terms.open_files)
        self.boot = _new_boot()
        engine = engine_words(terms.container_engine)
        self.survivor = Survivors(setup.instance, setup.work_dir, removal(engine, self.boot, setup.work_dir))
        self.lease: float | None = None  # CLOCK_BOOTTIME; None: no lease, nothing may run
        self.loop, self.outbox, self.coalesce = Loop(), Outbox(), Coalesce()
        self.machine = Machine(tuple(setup.capacity), wall_ms=wall_ms, idle_s=terms.runner_idle_s)
        self.places = Places(setup.work_dir, setup.instance, terms, ports=setup.capacity[-1])
        self.door = Door(self.loop, terms)
        self.places.opened = self.door.open
        self._make_parts(terms, engine)
        self.quitting = False
        self._asked = 0  # to end
        self._tick_at = self._ship_at = self._reap_at = 0.0
        self._ended_children, self._gathering = True, False  # a child may have ended before signals were listened to
        self._taken: Take | None = None
        self._stimuli: deque[Stimulus] = deque()
        self._doing = False
        self._handlers, self._hands = self._heard(), self._done()
        self.uplink = Uplink(self.loop, channel, exchange, self.hear)

    def _make_parts(self, terms: Terms, engine: list[str]) -> None:
        """Those who do what the machine decides."""
        setup = self.setup
        env = clean_environment(os.environ, setup.instance)
        build_env = env | {name: os.environ[name] for name in BUILD_ENVIRONMENT if name in os.environ}
        self.preparations = Preparations(terms, setup.work_dir, build_env, engine, self.places, self.handle)
        self.preparations.in_use = self.machine.definitions_held
        self.containers = Containers(engine, terms, setup.instance, env, setup.work_dir, self.boot)
        self.containers.remove_leftovers()
        unmarked = {name: value for name, value in env.items() if name != INSTANCE}
        self.loggers = Loggers(terms, setup.work_dir, unmarked, self.loop, self.outbox)
        credentials = {name: os.environ[name] for name in CREDENTIALS if name in os.environ}
        self.spools = Spools(terms, setup.work_dir, unmarked | credentials)
        self.granted = Granted(self.preparations.ready, terms.volumes, self.containers, self.loggers, self.spools)
        spawner = Spawner(env, self.granted, self.places)
        self.executables = Executables(self.loop, self.outbox, spawner, self.places, setup.instance, terms.max_output)
        self.runners = Runners(self.loop, self.outbox, terms, env, self.granted, RunnerBoxes(self.places, self.granted), self.handle)
        self.executables.known = self._own_children
        self.loop.add(self.executables.starts.woken, self._began)
        self.runners.running_task = self._running_task
        self.runners.batch_of = lambda number: self.machine.pool.runners[number].batch if number in self.machine.pool.runners else ()
        self.tokens = spawner.tokens = self.runners.tokens = Tokens(terms.url, terms.tls_ca)
        self.carriers = Carriers(terms, setup.work_dir, env)
        self.resuming = Resuming(
            self.executables, self.carriers, self.outbox, lambda finished: self.handle(ProcessEnded(finished, boottime()))
        )
        self.freezer = Freezer()

    def _heard(self) -> dict[type, Callable[[Any], None]]:
        """What the exchange side says, and who hears it."""
        return {
            Ask: self._ask,
            Lease: self._lease,
            Answer: self._answer,
            Lost: self._lost,
            Reported: self._reported,
            Drain: self._drain,
            EndAll: lambda message: self.handle(EndAllAsked(message.grace_s, boottime())),
            Quit: lambda message: self._quit(),
        }

    def _done(self) -> dict[type, Callable[[Any], None]]:
        """What the machine decides, and who does it."""
        return {
            Take: self._take,
            EndProcess: lambda i: self.resuming.end(i.id, force=i.force),
            Freeze: self._freeze,
            Thaw: self._thaw,
            SignalProcess: lambda i: self.executables.signal(i.id, i.signal),
            Prepare: lambda i: self.preparations.prepare(i.number, i.definition),
            StartRunner: lambda i: self.runners.start(i.runner, i.kind, i.definition, self.machine.recipes),
            GiveBatch: lambda i: self.runners.give(i.runner, i.orders, self.machine.recipes),
            AskBack: lambda i: self.runners.say(i.runner, "back"),
            Nudge: lambda i: self.runners.say(i.runner, "nudge"),
            StopRunner: lambda i: self.runners.say(i.runner, "stop"),
            EndRunner: lambda i: self.runners.end(i.runner, force=i.force),
            TellStarted: lambda i: self.outbox.add("started", i.started),
            TellReturned: lambda i: self.outbox.add("returned", i.refs),
            TellNotices: lambda i: self.outbox.add("notices", i.notices),
            TellAgain: lambda i: self.outbox.tell_again(i.refs, wall_ms()),
        }

    # --- the loop

    def run(self) -> None:
        self.loop.on_signals((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT), self._signalled)
        while not self.quitting:
            come = self.executables.starts.listen_for(GATHERED if self._gathering else 1)
            self.loop.poll(0.0 if come else self._timeout(), deaf=self._gathering)
            now = boottime()
            if self.lease is not None and now >= self.lease:
                self.fence()
            if come or self._ended_children or (self._gathering and now >= self._reap_at):
                self._reap(now)
            if now >= self._tick_at:
                self._tick(now)
            self._ship()
            if self.uplink.down and now >= self.uplink.restart_at:
                self._start_exchange(now)
        self._kill_everything()
        self.containers.remove_all()
        self.places.close()
        self.door.close()
        self.loggers.close()
        self.survivor.dismiss()

    def _timeout(self) -> float:
        now, machine = boottime(), self.machine
        wait = CLOSE_TICK_S if machine.pool.impatient else TICK_S if machine.busy or self.places.waiting else IDLE_TICK_S
        self._tick_at = min(self._tick_at, now + wait) if self._tick_at > now else now + wait
        until = self._tick_at
        if self.lease is not None:
            until = min(until, self.lease)
        if self.uplink.down:
            until = min(until, self.uplink.restart_at)
        if now < self._ship_at:
            until = min(until, self._ship_at)
        if self._gathering:
            until = min(until, self._reap_at)
        return max(until - now, 0.0)

    def _tick(self, now: float) -> None:
        self.executables.tick(now)
        self.resuming.tick(now)
        self.outbox.tick()
        self.loggers.flush()
        self.spools.tick(now)
        self.door.tick(now)
        self.survivor.look_after(now)
        self.handle(Tick(now, self.runners.current()))

    def handle(self, *stimuli: Stimulus) -> None:
        """Let the machine think, then do what it says. What the doing brings about is handled after it, not inside it."""
        begun = bool(self._stimuli) or self._doing
        self._stimuli.extend(stimuli)
        if begun:
            return
        self._doing = True
        while self._stimuli:
            instructions = self.machine.handle(self._stimuli.popleft())
            while self._stimuli:  # think about all that is known before doing: programs are started side by side
                instructions += self.machine.handle(self._stimuli.popleft())
            self._do(instructions)
        self._doing = False

    def _do(self, instructions: list[Instruction]) -> None:
        spawns: list[Spawn] = []
        ends = [instruction.finished for instruction in instructions if isinstance(instruction, TellFinished)]
        if ends:
            self.outbox.add("finished", ends)
        for instruction in instructions:
            if isinstance(instruction, Spawn):
                spawns.append(instruction)
                continue
            if isinstance(instruction, TellFinished):
                continue
            if isinstance(instruction, EndProcess | Freeze | Thaw | SignalProcess):
                self._spawn(spawns)  # it may be one of these that shall end
                spawns = []
                self._ended(self.executables.wait_for_starts())
            try:
                self._hands[type(instruction)](instruction)
            except Exception as error:  # of one task: the others go on
                unforeseen(error, f"doing {type(instruction).__name__}", instruction=repr(instruction)[:200])
        self._spawn(spawns)

    def _spawn(self, spawns: list[Spawn]) -> None:
        if spawns:
            self._ended(self.resuming.spawn([(spawn.order, spawn.definition) for spawn in spawns]))

    def _began(self) -> None:
        """Programs that were being started have begun."""
        self.executables.starts.hush()
        self._ended_children = True

    def _ended(self, finished: list[Finished]) -> None:
        self.handle(*(ProcessEnded(one, boottime()) for one in finished))

    def _freeze(self, instruction: Freeze) -> None:
        self.resuming.pause(instruction.id)
        self._tell_watch(instruction, paused=True, by_signals=False)
        self.freezer.freeze(*self._tree_of(instruction), lambda: self._tell_watch(instruction, paused=True))

    def _thaw(self, instruction: Thaw) -> None:
        self._tell_watch(instruction, paused=False)
        self.freezer.thaw(*self._tree_of(instruction))
        self.resuming.go_on(instruction.id)

    def _tell_watch(self, instruction: Freeze | Thaw, *, paused: bool, by_signals: bool = True) -> None:
        """The watch on its disk may have stopped it for a look, and would let it go on."""
        place = self.runners.place_of(instruction.runner) if instruction.runner else self.executables.place_of(instruction.id)
        if place is not None and place.disk is not None:
            place.disk.pause(paused, by_signals=by_signals)

    def _tree_of(self, instruction: Freeze | Thaw) -> tuple[str, list[int], tree.Marked | None]:
        """What to freeze or thaw: a name for it, its first processes, and the marks of others that belong to it."""
        if instruction.runner:
            return f"runner {instruction.runner}", self.runners.roots(instruction.runner), None
        return f"task {instruction.id}", *self.executables.tree_of(instruction.id)

    def _take(self, instruction: Take) -> None:
        self._taken = instruction

    def _signalled(self, numbers: set[int]) -> None:
        if signal.SIGCHLD in numbers:
            self._ended_children = True
        if numbers & {signal.SIGTERM, signal.SIGINT}:
            self._asked += 1  # where there is no exchange side now, or one that does not hear yet, the next one is told
            if self.uplink.exchange:
                with contextlib.suppress(ProcessLookupError):  # its end is noticed by the link
                    os.kill(self.uplink.exchange, signal.SIGTERM)

    def _reap(self, now: float) -> None:
        self._ended_children = False
        exits = reap()
        for pid, status, _ in exits:
            self.runners.ended(pid, status)
            self.preparations.ended(pid, status)
            self.carriers.ended(pid, status)
            self.containers.ended(pid)
            self.door.ended(pid)
            self.survivor.ended(pid)
            self.places.disk_watch.ended(pid)
            self.loggers.ended(pid)
            self.spools.ended(pid, status, boottime())
        ended = self.executables.ended(exits)
        self._ended(ended)
        self._gathering, self._reap_at = bool(exits or ended) and len(self.machine.queue) > 0, now + GATHER_S

    def _own_children(self) -> set[int]:
        """All that are no programs of tasks."""
        others = self.containers.pids | self.carriers.pids | self.loggers.pids | self.spools.pids
        single = {self.uplink.exchange, self.survivor.pid, self.door.pid, self.places.disk_watch.pid}
        return self.runners.pids | self.preparations.pids | others | single

    def _running_task(self, number: int) -> tuple[int, int] | None:
        """The task a runner is in the middle of."""
        runner = self.machine.pool.runners.get(number)
        begun = self.runners.current().get(number, (0, 0.0))[0]
        if runner is None or not 0 <= (at := begun - runner.done - 1) < len(runner.batch):
            return None
        return runner.batch[at].id, runner.batch[at].attempt

    # --- the lease

    def fence(self) -> None:
        """The lease is over: kill everything, then be someone new, to whom no old order is addressed."""
        self._kill_everything()
        self.resuming.drop_all()
        self.executables.drop_all()
        self.runners.drop_all()
        self.preparations.drop_all()
        self.handle(Fenced())
        self.boot, self.lease = _new_boot(), None
        self.survivor.expect(None)
        self.say_boot()

    def _kill_everything(self) -> None:
        self.executables.wait_for_starts()  # what has ended by now is nobody's news any more
        self.executables.kill_all()
        roots = [*self.executables.pids, *self.runners.pids, *self.preparations.pids, *self.carriers.pids]
        tree.kill(roots, tree.carries(f"{INSTANCE}={self.setup.instance}"), spare=[self.uplink.exchange])
        self.freezer.thaw_all()

    def _lease(self, message: Lease) -> None:
        if message.boot != self.boot or message.until <= boottime():
            return
        self.tokens.key, self.carriers.node = message.task_key, message.node
        first = self.lease is None
        self.lease = max(self.lease or 0.0, message.until)
        self.survivor.expect(self.lease)
        if first and not self.machine.pool.runners:
            self.machine.pool.start(PYTHON.name, None, boottime())  # one warm runner waits for the first function
            self.handle(Tick(boottime(), {}))

    def _reported(self, message: Reported) -> None:
        self.outbox.answered(message.number)
        self.resuming.answered(message.number)

    def _lost(self, message: Lost) -> None:
        if message.boot == self.boot:
            self.fence()

    # --- the link

    def hear(self, frames: list[bytes]) -> None:
        for body in frames:
            message = decode(body)
            if self.lease is not None and boottime() >= self.lease:
                self.fence()  # before anything is believed: this process may have been frozen
            self._handlers[type(message)](message)

    def say_boot(self) -> None:
        self.uplink.send(NewBoot(self.boot))

    def _ship(self) -> None:
        """Send the news: at once when there is nothing else to do here, together with what follows while orders wait anyway."""
        now, count = boottime(), self.outbox.count
        self._ship_at = self.coalesce.due(count, now, waiting=len(self.machine.queue))
        if now >= self._ship_at and (report := self.outbox.take()) is not None:
            self.coalesce.sent(count, now)
            self.uplink.send(report)

    def _ask(self, message: Ask) -> None:
        held = self.machine.held() + self.outbox.refs()
        settled = not held and self.outbox.clear
        self.uplink.send(State(message.number, self.boot, encode_msgpack(held), settled))

    def _answer(self, message: Answer) -> None:
        """Orders count only under the boot they were given to, and only while there is a lease."""
        self._taken = None
        if message.boot == self.boot and self.lease is not None:
            try:
                answer = decode_orders(message.body)
            except msgspec.DecodeError as error:  # it comes again, perhaps from a server that speaks as we do
                unforeseen(error, "reading the answer of a server")
                answer = Orders(0)
            self.granted.tell_secrets(answer.secrets)
            self.handle(OrdersArrived(answer.orders, answer.definitions, answer.cancels, boottime(), answer.controls))
        taken = self._taken or Take([], [])
        self.uplink.send(Taken(message.number, encode_msgpack(taken.refs), taken.unknown))

    def _drain(self, message: Drain) -> None:
        self._asked = max(self._asked, message.asked)  # most are asked there: it is the process that was started
        self.handle(DrainAsked(message.on, boottime()))

    def _quit(self) -> None:
        self.quitting = True

    def _start_exchange(self, now: float) -> None:
        """The exchange side died: another one goes on with what runs here. One that cannot be started now is tried again."""
        if not self.uplink.start(now):
            return
        self.uplink.send(Adopt(self.setup.settings, os.getpid(), *OWN, kept=self.uplink.kept, asked=self._asked))
        self.say_boot()
        for report in self.outbox.unanswered():
            self.uplink.send(report)


def _limit_files(most: int) -> None:
    """Ours is everyone's: tasks inherit it. And nobody leaves core files behind."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _new_boot() -> str:
    return os.urandom(8).hex()
