"""The supervisor's hands for executables: start them, read what they print, end their trees, tell how they ended."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable

from headway.agent import tree, watcher
from headway.agent.clock import boottime, wall_ms
from headway.agent.group import Limits, Used
from headway.agent.interpreters import NotStartable
from headway.agent.loop import Loop
from headway.agent.output import STDERR, Capture
from headway.agent.places import OWN_PROCESSES, Place, Places
from headway.agent.process import LAST_WORDS, Process, Spawner, exit_code, finish, not_started, read_available
from headway.agent.reports import Outbox, error_text
from headway.agent.sandbox import Told, Usage
from headway.agent.spawn import Launch
from headway.agent.starter import Counted
from headway.agent.starts import Starts
from headway.agent.strays import Strays
from headway.agent.unforeseen import unforeseen
from headway.domain.lifecycle import Outcome
from headway.domain.task import Definition
from headway.wire.exchange import ErrorInfo, Excess, Finished, Order

Counts = resource.struct_rusage | Counted
Exit = tuple[int, int, Counts]  # process id, status, usage
QUIET_S = 0.02  # a process that lives longer has its pipes watched; most end before and are read once, at their end
FLOOD = 32 * 1024
ORPHANS = 1000
LINGER_S = 0.02  # between the end of a sandbox and the end of the first process in it
_NOTHING_HEARD = Capture(0, 0, 0)  # of attempts that have no program yet


class Executables:
    def __init__(self, loop: Loop, outbox: Outbox, spawner: Spawner, places: Places, instance: str, max_output: int) -> None:
        self._loop, self._outbox, self._spawner = loop, outbox, spawner
        self._places, self._instance, self._max_output = places, instance, max_output
        self._watch_at = 0.0
        self._orphans: dict[int, Counts] = {}  # reaped here lately, though started by tasks
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

    def _first(self, process: Process) -> list[int]:
        """The task's own first process; the sandbox has two before it, and a gate is one more."""
        pids = [process.pid]
        for _ in range(2 + process.gated if process.isolated else 0):
            pids = [child for pid in pids for child in tree.children(pid)]
        return pids

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
            self._orphans[pid] = ended[2]
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
        if len(self._orphans) > ORPHANS:
            self._orphans.clear()
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
        finished = finish(process, status, now, self._usage(process, status, usage, box), box)
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

    # --- limits

    def _usage(self, process: Process, status: int, usage: Counts, box: Told) -> Usage:
        """What it used; and why it was ended, if that was for a limit."""
        place = process.place
        assert place is not None
        if box.first is not None:
            usage = self._usage_inside(box.first) or usage
        cpu_ms = round((usage.ru_utime + usage.ru_stime) * 1000)
        memory: int | None = None
        if (used := place.used()) is not None:
            memory, cpu_ms = used.peak, max(cpu_ms, used.cpu_ms)
            if process.excess is None and status:
                process.excess = _excess(used, place)
        if memory is None:
            memory = _peak(usage) or process.resident or None
        if place.disk is not None and status and (process.excess is None or process.excess.what == "disk"):
            process.excess = _disk_excess(place, status)
        if status and process.excess is None:
            process.excess = box.excess
        return box.used or process.used or Usage(cpu_ms, memory, usage.ru_inblock * 512, usage.ru_oublock * 512)

    def _usage_inside(self, first: int) -> Counts | None:
        """Of everything in a sandbox. Its first process has waited for all others, and comes to us when the sandbox has ended."""
        until = boottime() + LINGER_S
        while first not in self._orphans and boottime() < until:
            try:
                pid, _, usage = os.wait4(first, os.WNOHANG)
            except ChildProcessError:
                break  # it never came to us
            if pid:
                return usage
            time.sleep(0.0005)
        return self._orphans.pop(first, None)

    def _look_at_limits(self, now: float) -> None:
        """Tasks that go on though they hit a limit: one of their processes was killed or could not be started."""
        without: dict[int, Process] = {}
        for process in self._by_pid.values():
            place = process.place
            if place is None or process.excess is not None or now - process.since < QUIET_S:
                continue
            if place.disk is not None and place.disk.over:  # killed by the watch; what it may have started meanwhile ends now
                process.excess = Excess("disk", place.disk.used, place.disk.limit)
                self._kill(process)
                continue
            if place.slot is None or place.slot.group is None:
                without[process.pid] = process
                continue
            try:
                if not place.slot.settled:  # a container's launcher has no limits here, and has left the group it would be brought back to
                    place.slot.settled = place.limits == Limits() or place.slot.group.settle()
                excess = _excess(place.slot.used(), place)
            except OSError:  # no descriptor is left to read its counters by: at the next look
                continue
            if excess is not None:
                process.excess = excess
                self._kill(process)
        if without and now >= self._watch_at:
            self._watch_at = now + watcher.EVERY_S
            self._look_without_groups(without)

    def _look_without_groups(self, processes: dict[int, Process]) -> None:
        found, memory = watcher.above({pid: p.place.limits for pid, p in processes.items() if p.place is not None})
        for pid, process in processes.items():
            process.resident = max(process.resident, memory.get(pid, 0))
            if (excess := found.get(pid)) is not None:
                process.excess = excess
                self._kill(process)

    # --- output

    def tick(self, now: float) -> None:
        for fd in self._quiet:
            self._loop.resume(fd)
        self._quiet.clear()
        self._look_at_limits(now)
        self._places.tick()
        for process in self._by_pid.values():
            if not process.registered and now - process.since >= QUIET_S:
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


def _excess(used: Used, place: Place) -> Excess | None:
    """The limit the kernel says was hit."""
    if used.kills > 0:
        return Excess("memory", max(used.peak or 0, place.limits.memory), place.limits.memory)
    if used.refused > 0:
        allowed = place.limits.processes - (OWN_PROCESSES if place.isolated else 0)
        return Excess("processes", allowed + 1, allowed)
    return None


def _disk_excess(place: Place, status: int) -> Excess | None:
    """Ended by the watch, or by the kernel because one file became too large, or by itself at the wall behind its limit."""
    disk = place.disk
    assert disk is not None
    ended = disk.over or exit_code(status, isolated=place.isolated) == -signal.SIGXFSZ
    if not ended and not place.isolated and not place.scratch.at_wall(place.dir):
        return None
    used = place.on_disk()
    if not ended and used < disk.limit:  # it may also have been told by the kernel, and given up by itself
        return None
    return Excess("disk", max(used, disk.limit), disk.limit)


def _peak(usage: Counts) -> int | None:
    """The most memory it used. A child starts from our own peak (Linux carries it over exec): below that it tells nothing."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > own else None


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
