"""A warm Python process: it takes batches of function calls from the supervisor and returns their results.

The main thread runs the functions. A second thread reads messages, so that what has not begun can be given back,
and results can be sent, while one call takes long. Shared memory tells the supervisor how many calls were begun and
when the last one was: it knows exactly which task ran when this process dies, whatever killed it.

Messages in: ["run", definitions, orders], ["nudge"], ["back"], ["token", url, token, tls_ca], ["stop"].
Messages out: ["ready"], ["token"], ["did", count, items, busy_ns, last_ns, tired, output], ["back", count], ["said", output,
progress].
"""

from __future__ import annotations

import faulthandler
import io
import mmap
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TextIO, TypeVar

import msgspec

from headway.agent import tree
from headway.agent.functions import Function, NotFound
from headway.agent.link import READ, SHARED_FD, SOCKET_FD, Frames, frame
from headway.agent.reports import NO_MORE, error_text, items
from headway.agent.run_delay import RunDelay
from headway.client import context
from headway.domain.lifecycle import Outcome
from headway.wire.exchange import ErrorInfo, Finished, Order, possible

FLUSH_NS = 2_000_000  # results are sent at least this often
HELD_UP_NS = 1_000_000  # a call that took longer may have waited for a CPU
HELD_UP_MOST = 8  # and for so many parts of it but one, at most: what was counted may be of the calls before it, too
LONG_NS = 10_000_000  # calls longer than this have their CPU time and memory measured
SAY = 32 * 1024
SAY_NS = 50_000_000
TRACE = 64 * 1024  # bytes of a traceback that are kept
DEPENDENCIES = Order.__struct_fields__.index("dependencies")  # where they stand in an order
GROWTH_EVERY = 256  # flushes between looks at the memory
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_clock = time.clock_gettime_ns
_decode = msgspec.msgpack.Decoder().decode


class Interrupted(BaseException):
    """Raised in the running function when its task is ended: `finally` blocks still run."""


class Runner:
    def __init__(self, sock: socket.socket, shared: memoryview, *, tasks: int, growth: int) -> None:
        self.sock, self.shared = sock, shared
        self.todo: deque[list[Any]] = deque()
        self.functions: dict[int, Function] = {}
        self.definitions: dict[int, list[Any]] = {}
        self.done: list[tuple[Any, ...] | Finished] = []
        self.output: list[tuple[int, int, int, bytes | bytearray]] = []  # (id, attempt, stream, text)
        self.busy_ns = self.last_ns = 0
        self.begun = 0
        self.current: list[Any] = [0, 0]
        self.spawned = False  # the running call started a process
        self.tasks, self.growth = tasks, growth
        self.first_rss = 0
        self.flushes = 0
        self.tired = False
        self.full = False  # its folder takes no more
        self.closing = threading.Lock()  # held by who makes it so, and by who adds to what is to be done
        self.flushed_at = self.last_end = _clock(_BOOTTIME)
        self.wall_offset = time.time_ns() - _clock(_BOOTTIME)
        self.imported_ns = 0  # of the running call: not part of what the function takes
        self.cpu_before = 0.0
        self.delay = RunDelay()
        self.sending = threading.Lock()
        self.wake: SimpleQueue[bool] = SimpleQueue()  # True: there is work; False: stop
        self.places: SimpleQueue[tuple[str, str, str | None]] = SimpleQueue()
        self.context = context.Current(0, 0, None, self.progress, self.place)
        self.context.read_dependencies = lambda: self.current[DEPENDENCIES] if len(self.current) > DEPENDENCIES else None

    # --- the thread that reads

    def read(self) -> None:
        frames, space = Frames(), memoryview(bytearray(READ))
        while size := self.sock.recv_into(space):
            for body in frames.feed(space[:size]):
                self.take(_decode(body))
        os._exit(0)  # the supervisor is gone: nobody may run its tasks

    def take(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "run":
            self.definitions.update(message[1])
            for definition in message[1]:
                self.functions.pop(definition, None)  # it may come with another environment
            with self.closing:
                if not (full := self.full):
                    self.todo.extend(message[2])
            if full:
                # Of these none may begin: the supervisor knows by their number only which of its orders come back, the last ones.
                self.send(["back", len(message[2])])
            else:
                self.wake.put(True)
        elif kind == "nudge":
            self.flush()
        elif kind == "back":
            self.give_back()
        elif kind == "token":
            self.places.put((message[1], message[2], message[3]))
        elif kind == "stop":
            self.wake.put(False)

    def give_back(self) -> None:
        """What has not begun is for others."""
        count = 0
        while self.todo:
            try:
                self.todo.pop()
            except IndexError:  # the other thread took the last one meanwhile
                break
            count += 1
        self.flush()
        self.send(["back", count])

    # --- the main thread

    def serve(self) -> None:
        self.send(["ready"])
        while self.wake.get():
            self.last_end, self.cpu_before = _clock(_BOOTTIME), self.cpu_s()
            self.delay.since()  # until here it waited for work
            self.wall_offset = time.time_ns() - self.last_end
            for function in list(self.functions):
                self.refresh(function)
            while self.todo:
                try:
                    order = self.todo.popleft()
                except IndexError:  # given back meanwhile
                    break
                self.run(order)
                if self.last_end - self.flushed_at > FLUSH_NS and self.todo:
                    self.flush()
                    self.cpu_before = self.cpu_s()  # what short calls took is not charged to the next long one
                    self.delay.since()
            self.flush()

    def refresh(self, definition: int) -> None:
        if self.functions[definition].changed:
            del self.functions[definition]

    def run(self, order: list[Any]) -> None:
        """One call. The row it leaves is a wire Finished. It begins when the last one ended: one look at the clock each."""
        task, attempt, definition, data = order[:4]
        begin, shared, current = self.last_end, self.shared, self.context
        self.begun += 1
        shared[1] = begin
        shared[0] = self.begun
        self.current = order
        current.id = task
        current.attempt = attempt
        function = self.functions.get(definition) or self.find(definition)
        result = failure = pause = None
        try:
            if function.plain:
                current.deadline = (begin + self.wall_offset) * 1e-9 + function.cap_s
                result = function.run(data)
            else:
                result = self.run_inside(function, data)
        except Interrupted:
            self.flush()
            os._exit(128 + signal.SIGTERM)  # the supervisor knows why it asked
        except context.Suspended as suspended:
            pause = suspended
        except BaseException as error:
            failure = error
        if self.spawned:
            self.clear_processes()
        if _stdout.pending or _stderr.pending:
            _stdout.ship()
            _stderr.ship()
        end = self.last_end = _clock(_BOOTTIME)
        spent = end - begin - self.imported_ns
        self.last_ns = spent if spent < HELD_UP_NS else max(spent - self.delay.since(), spent // HELD_UP_MOST)
        self.busy_ns += self.last_ns
        started_ms, ended_ms = (begin + self.wall_offset) // 1_000_000, (end + self.wall_offset) // 1_000_000
        if pause is not None:
            self.done.append(Finished(task, attempt, Outcome.SUSPENDED, started_ms, ended_ms, waits=possible(pause.waits)))
        elif failure is not None:
            self.done.append(_failed(task, attempt, started_ms, ended_ms, failure))
            if isinstance(failure, OSError) and failure.errno in NO_MORE:
                with self.closing:
                    self.full = self.tired = True  # the next ones would find no room either
                self.give_back()
        elif spent > LONG_NS:
            self.done.append((task, attempt, 0, started_ms, ended_ms, result, None, None, self.cpu_ms(), self.max_memory()))
        else:
            self.done.append((task, attempt, 0, started_ms, ended_ms, result))
        self.imported_ns = 0

    def run_inside(self, function: Function, data: bytes) -> bytes | None:
        """A call with an environment or a folder of its own."""
        self.context.deadline = time.time() + function.cap_s
        restore = _enter(function.env, function.workdir)
        try:
            return function.run(data)
        finally:
            restore()

    def find(self, definition: int) -> Function:
        name, codec, env, workdir, cap_ms = self.definitions[definition]
        begin = _clock(_BOOTTIME)
        found = self.functions[definition] = Function(name, codec, env, workdir, cap_ms / 1000)
        self.imported_ns = _clock(_BOOTTIME) - begin
        self.delay.since()
        return found

    def cpu_s(self) -> float:
        """CPU time that this runner has used so far."""
        return time.process_time()

    def max_memory(self) -> int | None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def cpu_ms(self) -> int:
        now = self.cpu_s()
        spent, self.cpu_before = now - self.cpu_before, now
        return round(spent * 1000)

    def clear_processes(self) -> None:
        """What a call started must not outlive it. This process is a subreaper, so all of them are below it."""
        self.spawned = False
        me = os.getpid()
        if tree.children(me):
            tree.kill(tree.children(me), None)
        _reap()

    # --- sending, by either thread

    def flush(self) -> None:
        with self.sending:
            count = len(self.done)
            rows = self.done[:count]
            del self.done[:count]
            for capture in (_stdout, _stderr):
                capture.ship()
            output, self.output = self.output, []
            self.flushed_at = _clock(_BOOTTIME)
            if rows:
                self.flushes += 1
                busy, self.busy_ns = self.busy_ns, 0
                message = ["did", count, items(rows), busy, self.last_ns, self.is_tired(), output]
            elif output:
                message = ["said", output, None]
            else:
                return
            self.sock.sendall(frame(message))

    def is_tired(self) -> bool:
        if self.begun >= self.tasks:
            self.tired = True
        if self.flushes % GROWTH_EVERY == 1:
            rss = _rss()
            self.first_rss = self.first_rss or rss
            self.tired = self.tired or rss - self.first_rss > self.growth
        return self.tired

    def send(self, message: list[Any]) -> None:
        with self.sending:
            self.sock.sendall(frame(message))

    def place(self) -> tuple[str, str, str | None]:
        """Where the server is, and the token of the attempt that runs; asked of the supervisor, who alone can make one."""
        self.send(["token"])
        return self.places.get()

    def progress(self, done: float, total: float, text: str) -> None:
        self.flush()  # a line of progress that was printed before is older: only the newest is told
        self.send(["said", [], (*self.current[:2], float(done), float(total), str(text)[:200])])


class Printed(io.TextIOBase):
    """sys.stdout or sys.stderr of the running function."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, runner: Runner, stream: int) -> None:
        self.runner, self.stream = runner, stream
        self.pending: list[str] = []
        self.size = 0
        self.shipped_at = 0
        self.buffer = PrintedBytes(self)

    def write(self, text: str) -> int:
        self.pending.append(text)
        self.size += len(text)
        if self.size > SAY or (self.size > 0 and time.monotonic_ns() - self.shipped_at > SAY_NS and text.endswith("\n")):
            self.shipped_at = time.monotonic_ns()
            self.runner.flush()
        return len(text)

    def ship(self) -> None:
        """Move what was printed to the outgoing output, under the task that runs."""
        if self.pending:
            count = len(self.pending)
            text = "".join(self.pending[:count]).encode(errors="replace")
            del self.pending[:count]
            self.size = 0
            self.runner.output.append((*self.runner.current[:2], self.stream, text))

    def fileno(self) -> int:
        return self.stream

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Shipped by time and size; a program that flushes each line must not cost a message each."""


class PrintedBytes(io.RawIOBase):
    """sys.stdout.buffer, for programs that print bytes."""

    def __init__(self, text: Printed) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._text.write(bytes(data).decode(errors="replace"))
        return len(data)


_stdout: Printed
_stderr: Printed


def _failed(task: int, attempt: int, started_ms: int, ended_ms: int, error: BaseException) -> tuple[Any, ...]:
    """The row of a call that raised, or of a function that is not there."""
    import traceback  # not at the top: it would cost each runner's start 20 ms

    if isinstance(own := getattr(error, "trace", None), str):  # of another language, which has a trace of its own
        info = error_text(ErrorInfo(error.kind, error.message[:TRACE], own[-TRACE:]))  # type: ignore[attr-defined]
        return (task, attempt, int(Outcome.ERROR), started_ms, ended_ms, None, None, info)
    missing = isinstance(error, NotFound)
    text = "" if missing and error.__cause__ is None else "".join(traceback.format_exception(error))
    kind = "NotStartable" if missing else _name(type(error))
    message = f"exit {error.code}" if isinstance(error, SystemExit) else str(error)
    info = error_text(ErrorInfo(kind, message[:TRACE], text[-TRACE:]))
    outcome = Outcome.NOT_STARTABLE if missing else Outcome.ERROR
    return (task, attempt, int(outcome), started_ms, ended_ms, None, None, info)


def _enter(env: dict[str, str], workdir: str) -> Any:
    """Put the definition's environment and folder on; returns how to take them off."""
    before, folder = os.environ.copy(), os.getcwd()
    os.environ.update(env)
    if workdir:
        os.chdir(workdir)

    def restore() -> None:
        for name in env:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
        os.chdir(folder)

    return restore


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def _rss() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


_SPAWNING = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})


def main() -> None:
    """Arguments: tasks before it is recycled, growth in bytes likewise, then folders to import from."""
    run_as_runner(Runner, lambda runner: None)


R = TypeVar("R", bound=Runner)


def run_as_runner(kind: type[R], begin: Callable[[R], None]) -> None:
    """Be a runner of this kind until the supervisor says stop; `begin` is called before it is ready."""
    global _stdout, _stderr
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    tasks, growth, *paths = sys.argv[1:]
    sys.path[:0] = paths
    sys.argv = [sys.argv[0]]
    sys.setswitchinterval(0.001)
    for fd in (SOCKET_FD, SHARED_FD):
        os.set_inheritable(fd, False)
    memory = mmap.mmap(SHARED_FD, mmap.PAGESIZE)
    runner = kind(socket.socket(fileno=SOCKET_FD), memoryview(memory).cast("q"), tasks=int(tasks), growth=int(growth))
    faulthandler.enable()
    _stdout, _stderr = Printed(runner, 1), Printed(runner, 2)
    sys.stdout, sys.stderr = _as_text(_stdout), _as_text(_stderr)

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def note(event: str, arguments: object) -> None:
        if event in _SPAWNING:
            runner.spawned = True

    signal.signal(signal.SIGTERM, interrupt)
    sys.addaudithook(note)
    context._running = runner.context
    begin(runner)
    threading.Thread(target=runner.read, daemon=True).start()
    runner.serve()
    os._exit(0)


def _as_text(stream: Printed) -> TextIO:
    return stream  # type: ignore[return-value]
