"""The supervisor's hands for executables: start them, read what they print, end their trees, tell how they ended."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

from headway.agent import tree
from headway.agent.clock import boottime, wall_ms
from headway.agent.interpreters import NotStartable
from headway.agent.loop import Loop
from headway.agent.process import INSTANCE, READ, Process, Spawner, finish, not_started, read_available
from headway.agent.reports import Outbox
from headway.agent.scratch import Scratch
from headway.agent.spawn import Launch
from headway.domain.task import Definition
from headway.wire.exchange import Finished, Order

Exit = tuple[int, int, resource.struct_rusage]  # process id, status, usage
QUIET_S = 0.02  # a process that lives longer has its pipes watched; most end before and are read once, at their end
FLOOD = 32 * 1024
LAST_WORDS = 2**21  # read at most this much of a pipe after the end: someone may go on writing


class Executables:
    def __init__(self, loop: Loop, outbox: Outbox, spawner: Spawner, scratch: Scratch, instance: str, max_output: int) -> None:
        self._loop, self._outbox, self._spawner = loop, outbox, spawner
        self._scratch, self._instance, self._max_output = scratch, instance, max_output
        self._by_pid: dict[int, Process] = {}
        self._by_task: dict[int, Process] = {}
        self._quiet: set[int] = set()  # paused descriptors
        # Whether the end of a program is told later, and its folder kept until then; set by who knows more (resuming).
        self.keep: Callable[[Process, Finished], bool] = lambda process, finished: False
        me = os.getpid()
        self._children = os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def pids(self) -> list[int]:
        return list(self._by_pid)

    def spawn(self, wanted: list[tuple[Order, Definition]]) -> list[Finished]:
        """Start them. Those that could not be started are finished already."""
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
        """An attempt with its folder and without a program; finished already when the node has no folder for it."""
        capture = self._spawner.granted.capture(order, definition, self._max_output)
        process = Process(order, "", capture, boottime(), wall_ms())
        try:
            process.dir = self._scratch.take()
        except OSError as error:
            return process, not_started(process, f"the node could not prepare the task: {error}", wall_ms())
        return process, None

    def start(self, begun: list[tuple[Process, Definition]]) -> list[Finished]:
        """Start programs of attempts that have begun, the first or the next. Those that could not be started are finished."""
        prepared: list[tuple[Process, Definition, Launch]] = []
        unable: list[tuple[Process, str]] = []
        for process, definition in begun:
            process.registered = False
            try:
                prepared.append((process, definition, self._spawner.prepare(process, definition)))
            except NotStartable as error:
                unable.append((process, str(error)))
            except OSError as error:
                unable.append((process, f"the node could not prepare the task: {error}"))
        failed = self._spawner.launch(prepared)
        for process, _, _ in prepared:
            if (why := failed.get(process.order.id)) is not None:
                unable.append((process, why))
            else:
                self._by_pid[process.pid] = self._by_task[process.order.id] = process
        for process, _ in unable:
            process.close()
            self.leave(process)
        return [not_started(process, why, wall_ms()) for process, why in unable]

    def running(self) -> list[Process]:
        return list(self._by_pid.values())

    def end(self, task: int, *, force: bool) -> None:
        process = self._by_task.get(task)
        if process is None:
            return
        marked = process.marked(self._instance)
        if force:
            tree.kill([process.pid], marked)
        else:
            tree.terminate([process.pid], marked)

    def tree_of(self, task: int) -> tuple[list[int], tree.Marked | None]:
        """The first process of a task and the marks of all of them; nothing when it has ended."""
        process = self._by_task.get(task)
        return ([process.pid], process.marked(self._instance)) if process is not None else ([], None)

    def signal(self, task: int, name: str) -> None:
        if (process := self._by_task.get(task)) is not None:
            tree.send([process.pid], signal.Signals[f"SIG{name}"])

    def ended(self, exits: list[Exit], known: set[int]) -> list[Finished]:
        """These children were reaped. `known` are the supervisor's other children."""
        gone = [(self._by_pid.pop(pid), status, usage) for pid, status, usage in exits if pid in self._by_pid]
        for process, _, _ in gone:
            del self._by_task[process.order.id]
        self._kill_strays(known)
        told: list[Finished] = []
        for process, status, usage in gone:
            finished = self._finish(process, status, usage)
            if not self.keep(process, finished):
                self.leave(process)
                told.append(finished)
        return told

    def _finish(self, process: Process, status: int, usage: resource.struct_rusage) -> Finished:
        for stream, fd in process.fds:
            read, closed = 0, False
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
        process.close()
        cpu_ms = round((usage.ru_utime + usage.ru_stime) * 1000)
        finished = finish(process, status, now, cpu_ms, _peak(usage))
        if os.WIFSIGNALED(status) and self._spawner.granted.contained(process.order.definition):
            self._spawner.granted.containers.left(process.order)
        return finished

    def leave(self, process: Process) -> None:
        """Give its folder back."""
        if process.dir:
            self._scratch.give_back(process.dir)

    # --- output

    def tick(self, now: float) -> None:
        for fd in self._quiet:
            self._loop.resume(fd)
        self._quiet.clear()
        for process in self._by_pid.values():
            if not process.registered and now - process.since >= QUIET_S:
                process.registered = True
                for stream, fd in process.fds:
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
            self._outbox.add("progress", [progress])

    def _forget_pipes(self, process: Process) -> None:
        if process.registered:
            for _, fd in process.fds:
                self._loop.remove(fd)
                self._quiet.discard(fd)

    # --- leaving nothing behind

    def _kill_strays(self, known: set[int]) -> None:
        """Children we never started are orphans of tasks, come to us because we are the subreaper. Those of ended tasks die."""
        children = map(int, os.pread(self._children, READ, 0).split())  # kept open: a third of the cost of opening it
        strays = [pid for pid in children if pid not in self._by_pid and pid not in known]
        for pid in strays:
            if self._is_leftover(pid):
                tree.kill([pid], None)

    def _is_leftover(self, pid: int) -> bool:
        text = tree.environ(pid)
        for process in self._by_pid.values():
            if process.marked(self._instance)(text):
                return False
        if f"\0{INSTANCE}={self._instance}\0".encode() in text:
            return True
        of = tree.stat(pid)  # it has cleared its marks: it can only belong to a task that is older than it
        if of is None or of.zombie:
            return False
        older = [other for other in self._by_pid if (began := tree.stat(other)) is not None and began.start <= of.start]
        return not older

    def drop_all(self) -> None:
        """Forget everything: it has been killed."""
        for process in self._by_pid.values():
            self._forget_pipes(process)
            process.close()
            self.leave(process)
        self._by_pid.clear()
        self._by_task.clear()


def _peak(usage: resource.struct_rusage) -> int | None:
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
