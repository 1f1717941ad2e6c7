"""The supervisor's hands for executables: start them, read what they print, end their trees, tell how they ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from headway.agent import tree
from headway.agent.clock import boottime, wall_ms
from headway.agent.interpreters import NotStartable
from headway.agent.loop import Loop
from headway.agent.meter import QUIET_S, Counts, Meter
from headway.agent.output import STDERR, Capture
from headway.agent.places import Place, Places
from headway.agent.process import LAST_WORDS, Process, Spawner, finish, not_started, read_available
from headway.agent.reports import Outbox, error_text
from headway.agent.spawn import Launch
from headway.agent.starts import Starts
from headway.agent.strays import Strays
from headway.agent.unforeseen import unforeseen
from headway.domain.lifecycle import Outcome
from headway.domain.task import Definition
from headway.wire.exchange import ErrorInfo, Finished, Order

Exit = tuple[int, int, Counts]  # process id, status, usage
FLOOD = 32 * 1024
_NOTHING_HEARD = Capture(0, 0, 0)  # of attempts that have no program yet


class Executables:
    def __init__(self, loop: Loop, outbox: Outbox, spawner: Spawner, places: Places, instance: str, max_output: int) -> None:
        self._loop, self._outbox, self._spawner = loop, outbox, spawner
        self._places, self._instance, self._max_output = places, instance, max_output
        self._meter = Meter(self._kill)
        self._by_pid: dict[int, Process] = {}
        self._by_task: dict[int, Process] = {}
        self.starts = Starts(places.slots.starter)
        self._starting: dict[Launch, tuple[Process, Definition]] = {}
        self._early: dict[int, tuple[int, Exit]] = {}  # ends of processes that may be starting: turn, and how
        self._strays = Strays(instance, self.starts)
        self._quiet: set[int] = set()  # paused descriptors
        # Whether the end of a program is told later, and its folder kept until then; set by who knows more (resuming).
        self.keep: Callable[[Process, Finished], bool] = lambda process, finished: False
        self.unable: Callable[[Process, Finished], None] = lambda process, finished: None  # told of those that cannot be started
        self.known: Callable[[], set[int]] = set  # the supervisor's other children

    @property
    def pids(self) -> list[int]:
        return list(self._by_pid)

    def spawn(self, wanted: list[tuple[Order, Definition]]) -> list[Finished]:
        """Start them. Those of which it is clear already that they cannot are finished; of the others `began` tells."""
        begun: list[tuple[Process, Definition]] = []
        failed: list[Finished] = []
        for order, definition in wanted:
            process, unable = self.begin(order, definition)
            if unable is None:
                begun.append((process, definition))
            else:
                failed.append(unable)
        return failed + self.start(begun)

    def begin(self, order: Order, definition: Definition) -> tuple[Process, Finished | None]:
        """An attempt with its place and without a program; finished already when the node has no place for it."""
        process = Process(order, _NOTHING_HEARD, boottime(), wall_ms())
        try:
            process.capture = self._spawner.granted.capture(order, definition, self._max_output)
            process.place = self._places.take(definition)
        except (NotStartable, OSError) as error:
            return process, not_started(process, error, wall_ms())
        except Exception as error:
            why = NotStartable(unforeseen(error, "making its place", task=order.id))
            return process, not_started(process, why, wall_ms())
        return process, None

    def start(self, begun: list[tuple[Process, Definition]], *, alone: bool = True) -> list[Finished]:
        """Start programs of attempts that have begun, the first or the next, as `spawn` does; `alone`: by compiled code, if it can be."""
        prepared: list[Launch] = []
        failed: list[Finished] = []
        for process, definition in begun:
            process.registered, process.heard = False, (b"", b"")
            try:
                self._places.make_ready(process.place)
                program = self._spawner.prepare(process, definition, alone=alone)
            except (NotStartable, OSError) as error:
                failed.append(self._not_started(process, error))
            except Exception as error:
                why = NotStartable(unforeseen(error, "preparing its program", task=process.order.id))
                failed.append(self._not_started(process, why))
            else:
                self._starting[program] = process, definition
                prepared.append(program)
        self._places.disk_watch.say()
        self.starts.give(prepared)
        return failed + self.began()

    def began(self) -> list[Finished]:
        """Look which of those that were being started have begun. Those that could not, or have ended already, are finished."""
        told: list[Finished] = []
        gone: list[tuple[Process, Exit]] = []
        again: list[tuple[Process, Definition]] = []
        for program in self.starts.take():
            process, definition = self._starting.pop(program)
            if (run := program.run) is not None:
                if run.error:
                    again.append((process, definition))  # by Python, which knows the reasons and their remedies
                    continue
                process.pid, process.heard, (process.stdout, process.stderr) = run.pid, run.heard, run.pipes
                if run.lost:
                    self._heard(process, STDERR, b"[headway: the agent has too many open files to read on what this prints]\n")
            elif (why := self._spawner.begun(process, definition, program)) is not None:
                told.append(self._not_started(process, NotStartable(why)))
                continue
            if (end := self._end_of(program, process)) is not None:
                gone.append((process, end))
                continue
            assert process.place is not None
            self._places.watch(process.place, process.pid)
            self._by_pid[process.pid] = self._by_task[process.order.id] = process
            if run is not None and run.lost:
                tree.send([process.pid], signal.SIGKILL)  # if it is not gone: better than by its next word; a group cannot be read now
        self._places.disk_watch.say()
        self._early = {pid: (turn, how) for pid, (turn, how) in self._early.items() if not self.starts.over(turn)}
        if gone or self._strays.suspected:
            self._strays.kill(self._by_pid, self.known() | self._places.removers)
        told += self._over(gone)
        return told + self.start(again, alone=False) if again else told

    def _end_of(self, program: Launch, process: Process) -> Exit | None:
        """How it has ended, if it has: its slot's thread has waited for it, or we have, before it was known to have begun."""
        if (run := program.run) is not None and run.status is not None:
            return run.pid, run.status, run.usage
        turn, early = self._early.pop(process.pid, (0, None))
        return early if turn >= program.turn else None

    def wait_for_starts(self) -> list[Finished]:
        """Until none is under way: what is asked for now may be for one of them."""
        told: list[Finished] = []
        self.starts.wait(lambda: told.extend(self.began()))
        return told

    def _not_started(self, process: Process, why: Exception) -> Finished:
        finished = not_started(process, why, wall_ms())
        process.close()
        self.leave(process)
        self.unable(process, finished)
        return finished

    def running(self) -> list[Process]:
        return list(self._by_pid.values())

    def end(self, task: int, *, force: bool) -> None:
        process = self._by_task.get(task)
        if process is None:
            return
        if force:
            self._kill(process)
        else:
            tree.send(self._members(process), signal.SIGTERM)

    def _kill(self, process: Process) -> None:
        """Every process of it. In a slot the group knows them all, and a container has groups of its own; elsewhere they are looked for."""
        slot = process.place.slot if process.place is not None else None
        if contained := self._contained(process):
            # Its launcher, which ends with it, cannot say it any more.
            process.used = self._spawner.granted.containers.used(process.order, contained) or process.used
            tree.send(contained, signal.SIGKILL)
        if slot is None or slot.group is None or not slot.kill():
            tree.kill([process.pid], process.marked(self._instance))
        tree.send([process.pid], signal.SIGKILL)  # without a descriptor nobody could be looked for; what it leaves ends with its place

    def _members(self, process: Process) -> set[int]:
        """Who is to be told: of an isolated task everyone but the sandbox itself, whose end would be theirs, without grace. The launcher of
        a container tells the engine's client, and that one the container: once."""
        if self._spawner.granted.contained(process.order.definition):
            return {process.pid}
        slot = process.place.slot if process.place is not None else None
        if slot is not None and slot.group is not None:
            found = set(slot.pids())
        else:
            found = tree.members([process.pid], process.marked(self._instance))
        return found - {process.pid, *tree.children(process.pid)} if process.isolated else found

    def _contained(self, process: Process) -> list[int]:
        """The processes of its container, if it is one."""
        granted = self._spawner.granted
        return granted.containers.members(process.order) if granted.contained(process.order.definition) else []

    def kill_all(self) -> None:
        for process in self._by_pid.values():
            self._kill(process)

    def place_of(self, task: int) -> Place | None:
        process = self._by_task.get(task)
        return process.place if process is not None else None

    def tree_of(self, task: int) -> tuple[list[int], tree.Marked | None]:
        """The processes of a task that are known, the first one first, and the marks of all of them; nothing when it has ended."""
        process = self._by_task.get(task)
        if process is None:
            return [], None
        slot = process.place.slot if process.place is not None else None
        inside = slot.pids() if slot is not None and slot.group is not None else []
        return [process.pid, *(pid for pid in inside if pid != process.pid), *self._contained(process)], process.marked(self._instance)

    def signal(self, task: int, name: str) -> None:
        """To the program itself: in a sandbox or a container that is the oldest process inside."""
        if (process := self._by_task.get(task)) is None:
            return
        # Not by marks in an environment: others could write the same there, and be told in its place.
        members = self._contained(process) or tree.members([process.pid], None)
        inside = {pid: of.start for pid in members if _is_inside(pid) and (of := tree.stat(pid)) is not None}
        target = min(inside, key=lambda pid: (inside[pid], pid), default=process.pid)
        tree.send([target], signal.Signals[f"SIG{name}"])

    def ended(self, exits: list[Exit]) -> list[Finished]:
        """These children were reaped."""
        told = self.began()
        gone: list[tuple[Process, Exit]] = []
        for ended in exits:
            pid = ended[0]
            if (process := self._by_pid.pop(pid, None)) is not None:
                del self._by_task[process.order.id]
                gone.append((process, ended))
            elif self._starting:
                self._early[pid] = self.starts.turn, ended
            self._places.removed(pid)
            self._meter.orphaned(pid, ended[2])
        self._strays.kill(self._by_pid, self.known() | self._places.removers)
        return told + self._over(gone)

    def _over(self, gone: list[tuple[Process, Exit]]) -> list[Finished]:
        told: list[Finished] = []
        for process, (_, status, usage) in gone:
            try:
                finished = self._finish(process, status, usage)
            except Exception as error:
                finished = self._unknown_end(process, error)
            if not self.keep(process, finished):
                self.leave(process)
                told.append(finished)
        self._meter.forget()
        return told

    def _unknown_end(self, process: Process, error: Exception) -> Finished:
        why = error_text(ErrorInfo("AgentError", unforeseen(error, "looking at its end", task=process.order.id)))
        process.close()
        return Finished(process.order.id, process.order.attempt, Outcome.ERROR, process.started_ms, wall_ms(), error=why)

    def _finish(self, process: Process, status: int, usage: Counts) -> Finished:
        for (stream, fd), heard in zip(process.fds, process.heard, strict=True):
            if heard:
                self._heard(process, stream, heard)
            read, closed = 0, fd < 0
            while not closed and read < LAST_WORDS:
                data, closed = read_available(fd)
                if not data:
                    break
                read += len(data)
                self._heard(process, stream, data)
        now = wall_ms()
        if last := process.capture.close(now):
            self._outbox.add("output", last)
        self._forget_pipes(process)
        box = process.told()
        process.close()
        finished = finish(process, status, now, self._meter.used(process, status, usage, box), box)
        if os.WIFSIGNALED(status) or box.left:
            self._forget_container(process)
        return finished

    def _forget_container(self, process: Process) -> None:
        """It was ended by force, if it is one."""
        if self._spawner.granted.contained(process.order.definition):
            self._spawner.granted.containers.left(process.order)

    def leave(self, process: Process) -> None:
        """Give its place back."""
        if process.place is not None:
            self._places.give_back(process.place)
            process.place = None

    # --- output

    def tick(self, now: float) -> None:
        for fd in self._quiet:
            self._loop.resume(fd)
        self._quiet.clear()
        self._meter.look(self._by_pid, now)
        self._places.tick()
        for process in self._by_pid.values():
            if not process.registered and now - process.since >= QUIET_S:  # of most others the pipes are read once, at their end
                process.registered = True
                for stream, fd in process.fds:
                    if fd >= 0:  # lost, or closed since its end was only a tracer's to see
                        self._loop.add(fd, self._reader(process, stream, fd))

    def _reader(self, process: Process, stream: int, fd: int) -> Callable[[], None]:
        def read() -> None:
            data, closed = read_available(fd)
            if data:
                self._heard(process, stream, data)
            if closed:
                self._quiet.discard(fd)
                self._loop.remove(fd)
            elif len(data) < FLOOD:  # the next piece after the next tick: at most 20 a second
                self._loop.pause(fd)
                self._quiet.add(fd)

        return read

    def _heard(self, process: Process, stream: int, data: bytes) -> None:
        output, progress = process.capture.feed(stream, data, wall_ms())
        if output:
            self._outbox.add("output", output)
        if progress is not None:
            self._outbox.add_progress(progress)

    def _forget_pipes(self, process: Process) -> None:
        if process.registered:
            for _, fd in process.fds:
                self._loop.remove(fd)
                self._quiet.discard(fd)

    def drop_all(self) -> None:
        """Forget everything: it has been killed."""
        for process in self._by_pid.values():
            self._forget_pipes(process)
            process.close()
            self.leave(process)
            self._forget_container(process)
        self._by_pid.clear()
        self._by_task.clear()


def reap() -> list[Exit]:
    """Every child that has ended."""
    found: list[Exit] = []
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, status, usage))


def _is_inside(pid: int) -> bool:
    """Whether a process has a process namespace of its own around it, and is not the sandbox that made it."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            sandbox = file.read().strip() == "bwrap"
        return not sandbox and os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False  # gone
