"""The supervisor's hands for warm runners: start them, talk to them, end them, tell how they ended."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headway.agent import tree
from headway.agent.clock import boottime, wall_ms
from headway.agent.granted import Granted, SecretGone
from headway.agent.guard import LARGEST, Forged, checked
from headway.agent.interpreters import NotStartable
from headway.agent.link import Channel, Terms
from headway.agent.local_queue import Recipe
from headway.agent.loop import Loop
from headway.agent.masking import Words, words_of
from headway.agent.output import STDERR, STDOUT, Capture
from headway.agent.places import Place
from headway.agent.process import LAST_WORDS, read_available
from headway.agent.reports import Outbox, of_full, rows, tells_of_full, without_secrets
from headway.agent.runner_box import RunnerBoxes
from headway.agent.signals import BatchNotGiven, RunnerDid, RunnerEnded, RunnerGaveBack, RunnerReady, Stimulus
from headway.agent.spawn import close_all, pipes
from headway.agent.tokens import Tokens, Way
from headway.agent.unforeseen import unforeseen
from headway.agent.variables import INSTANCE
from headway.agent.warm import runner_command
from headway.domain.isolation import ISOLATED
from headway.domain.task import Definition
from headway.logs import log
from headway.wire.exchange import Excess, Order, Progress

_TWO = struct.Struct("qq")
_decode = msgspec.msgpack.Decoder().decode
QUESTIONS = 1000  # at once: a function waits for the answer to its own, so these are as many as it has threads
_START = "from headway.agent.runner import main; main()"
_BRIDGE = "from headway.agent.bridge import main; main()"
PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")  # so that a runner imports what the agent does


class RunnerProcess:
    """One runner: its socket, its shared memory, the pipes of its stdout and stderr."""

    def __init__(self, number: int, pid: int, place: Place, sock: socket.socket, shared: mmap.mmap, pipes: tuple[int, int]) -> None:
        self.number, self.pid, self.place, self.shared, self.pipes = number, pid, place, shared, pipes
        self.channel = Channel(sock)
        self.defined: set[int] = set()
        self.captures: dict[int, Capture] = {}
        self.secrets: set[str] = set()  # values that its output must not show
        self.logged: dict[int, tuple[Order, Definition]] = {}  # tasks whose output also goes to a logger
        self.last_words = b""
        self.believed = True  # until it says what it cannot know
        self.writing = False
        self.looked_at = False  # what is in its folder
        self.full: Excess | None = None  # if that was too much
        self.questions = 0  # in what was heard together
        self.way: Way | None = None  # to the server, where it is another than the agent's own

    @property
    def words(self) -> Words:
        """What neither its output nor its errors show."""
        return words_of(frozenset(self.secrets))

    def current(self) -> tuple[int, float]:
        """How many tasks it has begun, and when the last (CLOCK_BOOTTIME)."""
        begun, since = _TWO.unpack_from(self.shared, 0)
        return begun, since / 1e9


class Runners:
    def __init__(
        self,
        loop: Loop,
        outbox: Outbox,
        terms: Terms,
        env: dict[str, str],
        granted: Granted,
        boxes: RunnerBoxes,
        handle: Callable[[Stimulus], None],
    ) -> None:
        self._loop, self._outbox, self._terms, self._granted, self._handle = loop, outbox, terms, granted, handle
        self._boxes = boxes
        self._env = {**env, **{name: os.environ[name] for name in PASSED_ON if name in os.environ}}
        self._by_number: dict[int, RunnerProcess] = {}
        self._by_pid: dict[int, RunnerProcess] = {}

    @property
    def pids(self) -> set[int]:
        return set(self._by_pid)

    def current(self) -> dict[int, tuple[int, float]]:
        return {number: runner.current() for number, runner in self._by_number.items()}

    def start(self, number: int, kind: str, definition: int | None, recipes: dict[int, Recipe]) -> None:
        """Start a runner; one of another language, or with packages of its own, as the definition needs it."""
        try:
            env = self._environment(kind.partition(ISOLATED)[0], definition, recipes)
        except Exception as error:
            self._cannot_start(number, definition, error)
            return
        given: list[int] = []  # what the runner gets: closed here when it has it, or when there will be no runner
        kept: list[int] = []  # what is ours as long as it lives
        try:
            pid, place, shared = self._launch(kind, definition, recipes, env, given, kept)
        except Exception as error:
            close_all(kept)
            self._cannot_start(number, definition, error)
            return
        finally:
            close_all(given)
        stdout, stderr, ours = kept[0], kept[1], socket.socket(fileno=kept[2])
        runner = RunnerProcess(number, pid, place, ours, shared, (stdout, stderr))
        runner.way = self.tokens.way(recipes[definition].definition) if definition is not None else None
        self._by_number[number] = self._by_pid[pid] = runner
        self._loop.add(ours.fileno(), lambda: self._readable(runner))
        for stream, fd in ((STDOUT, stdout), (STDERR, stderr)):
            self._loop.add(fd, self._pipe_reader(runner, stream, fd))

    def _cannot_start(self, number: int, definition: int | None, error: Exception) -> None:
        foreseen = isinstance(error, (NotStartable, OSError))
        why = str(error) if foreseen else unforeseen(error, "starting its runner", runner=number)
        self._handle(RunnerEnded(number, 0, wall_ms(), why, boottime(), unstarted=definition))

    def _launch(
        self, kind: str, definition: int | None, recipes: dict[int, Recipe], env: dict[str, str], given: list[int], kept: list[int]
    ) -> tuple[int, Place, mmap.mmap]:
        """Adds what it opens to `given` and `kept` (stdout, stderr, socket): whatever happens, the caller closes it."""
        (stdout, child_stdout), (stderr, child_stderr) = pipes(2)
        given += child_stdout, child_stderr
        kept += stdout, stderr
        ours, theirs = socket.socketpair()
        kept.append(ours.detach())
        given.append(theirs.detach())
        given.append(os.memfd_create("headway-runner", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.ftruncate(given[-1], mmap.PAGESIZE)
        # A runner that made it shorter would end us: reading a page that is not there any more is SIGBUS.
        fcntl.fcntl(given[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        shared = mmap.mmap(given[-1], mmap.PAGESIZE)
        folder = recipes[definition].definition.workdir if definition is not None else ""
        words, fds = self._words(kind.partition(ISOLATED)[0], folder), (given[0], given[1], given[2], given[3])
        if ISOLATED in kind and definition is not None:
            pid, place = self._boxes.start(definition, recipes[definition].definition, words, env, fds)
        else:
            pid, place = self._boxes.start_trusted(words, env, fds, alone=words[0] == _START)
        return pid, place, shared

    def _words(self, kind: str, folder: str) -> list[str]:
        terms, foreign = self._terms, runner_command(kind, self._terms.runners)
        words = [str(terms.runner_tasks), str(terms.runner_growth), *terms.paths]
        return [_START, *words] if foreign is None else [_BRIDGE, *words, "--", folder, *foreign]

    def _environment(self, kind: str, definition: int | None, recipes: dict[int, Recipe]) -> dict[str, str]:
        """A runner of another language serves only tasks of one environment: it is put on at its start."""
        if definition is None:
            return self._env
        of, env = recipes[definition].definition, self._env.copy()
        if runner_command(kind, self._terms.runners) is not None:
            env |= {**of.env, INSTANCE: env[INSTANCE]}
            return env | self._granted.environment(definition, of)
        env |= {name: value for name, value in self._granted.environment(definition, of).items() if name not in of.content.secrets}
        if own := self._env.get("PYTHONPATH"):
            env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([env.get("PYTHONPATH", own), own]))
        return env

    # --- talking

    def give(self, number: int, orders: list[Order], recipes: dict[int, Recipe]) -> None:
        """Send it a batch. One that cannot even be sent never began."""
        try:
            self._give(number, orders, recipes)
        except SecretGone as error:
            self._handle(BatchNotGiven(number, len(orders), str(error), boottime(), unstarted=error.definition))
        except Exception as error:
            why = unforeseen(error, "giving it to its runner", runner=number)
            self._handle(BatchNotGiven(number, len(orders), why, boottime()))

    def _give(self, number: int, orders: list[Order], recipes: dict[int, Recipe]) -> None:
        runner = self._by_number[number]
        if orders:
            self._limit(runner, orders, recipes)
        new = {order.definition for order in orders} - runner.defined
        definitions = {}
        for known in new:
            of = recipes[known].definition
            env = of.env
            if of.content.secrets:
                env = {**env, **self._granted.secret_variables(known, of)}
                runner.secrets |= set(self._granted.secrets(known))
            definitions[known] = [of.function, of.codec, env, of.workdir, of.cap_ms]
        self._send(runner, ["run", definitions, orders])  # what could not be sent was not said: nothing is noted of it before
        with_secrets = {known for known in new if recipes[known].definition.content.secrets}
        runner.defined |= new - with_secrets  # which are said anew with each batch: the newest values count
        for order in orders:
            if (of := recipes[order.definition].definition).content.logger:
                runner.logged[order.id] = (order, of)

    def _limit(self, runner: RunnerProcess, orders: list[Order], recipes: dict[int, Recipe]) -> None:
        number = orders[0].definition
        definition = recipes[number].definition
        if runner.place.isolated:
            self._boxes.relimit(runner.place, definition)
        else:
            idle = len(self.batch_of(runner.number)) == len(orders)
            self._boxes.relimit_trusted(runner.place, number, definition, boottime(), idle=idle)

    def say(self, number: int, word: str) -> None:
        """One of: nudge, back, stop."""
        if (runner := self._by_number.get(number)) is not None:
            self._send(runner, [word])

    def end(self, number: int, *, force: bool) -> None:
        if (runner := self._by_number.get(number)) is None:
            return
        if force:
            if not self._boxes.kill(runner.place):
                tree.kill([runner.pid], None)
        elif runner.place.isolated:
            tree.send(self._boxes.members(runner.place, runner.pid), signal.SIGTERM)
        else:
            tree.terminate([runner.pid], None)

    def place_of(self, number: int) -> Place | None:
        runner = self._by_number.get(number)
        return runner.place if runner is not None else None

    def roots(self, number: int) -> list[int]:
        runner = self._by_number.get(number)
        return [runner.pid] if runner is not None else []

    def _send(self, runner: RunnerProcess, message: Any) -> None:
        runner.channel.send(message)
        if not runner.channel.clear and not runner.writing:
            runner.writing = True
            self._loop.want_write(runner.channel.sock.fileno(), True)

    # --- listening

    def _readable(self, runner: RunnerProcess) -> None:
        if runner.writing and runner.channel.flush():
            runner.writing = False
            self._loop.want_write(runner.channel.sock.fileno(), False)
        frames = runner.channel.receive()
        if frames is None:
            self._loop.remove(runner.channel.sock.fileno())  # its exit status tells the rest
            return
        self._hear(runner, frames)

    def _hear(self, runner: RunnerProcess, frames: list[bytes]) -> None:
        """An isolated runner is believed only what it can know; one that says more, or what nobody can read, is ended and not heard again:
        whatever it says, it is the end of this runner only."""
        if not runner.believed:
            return
        runner.questions = 0
        try:
            for body in frames:
                self._heard(runner, checked(body, self.batch_of(runner.number)) if runner.place.isolated else _decode(body))
            if runner.channel.announced > LARGEST:
                raise Forged("a message that never ends")
        except Forged as error:
            log("agent.runner_forged", level="error", runner=runner.number, why=str(error))
            self._disbelieve(runner, f"saying what is not a runner's to say: {error}")
        except Exception as error:
            self._disbelieve(runner, unforeseen(error, "listening to its runner", runner=runner.number))

    def _disbelieve(self, runner: RunnerProcess, why: str) -> None:
        runner.believed = False
        runner.last_words = f"it was ended for {why}".encode()
        self._loop.remove(runner.channel.sock.fileno())
        self.end(runner.number, force=True)

    def _heard(self, runner: RunnerProcess, message: list[Any]) -> None:
        kind, number, now = message[0], runner.number, boottime()
        if kind == "did":
            _, count, items, busy_ns, last_ns, tired, output = message
            self._read_pipes(runner)  # before the tasks that wrote into them are gone
            if output or runner.captures or runner.logged:
                self._printed(runner, output)
                self._close_captures(runner, items, count)
            if runner.place.disk is not None and (runner.full is not None or not runner.looked_at) and tells_of_full(items, count):
                items, tired = self._of_full(runner, items, count), True
            self._outbox.add_encoded("finished", count, without_secrets(items, count, runner.words) if runner.secrets else items)
            self._handle(RunnerDid(number, count, busy_ns / 1e9, last_ns / 1e9, tired, now))
        elif kind == "said":
            self._printed(runner, message[1])
            if message[2] is not None:
                progress = Progress(*message[2])
                progress.text = runner.words.in_text(progress.text)
                self._outbox.add_progress(progress)
        elif kind == "back":
            self._handle(RunnerGaveBack(number, message[1], now))
        elif kind == "token":
            runner.questions += 1
            if runner.questions > QUESTIONS or runner.channel.unsent > LARGEST:
                raise Forged("questions without end")
            current = self.running_task(number)
            self._send(runner, ["token", *self.tokens.place(*(current or (0, 0)), runner.way)])
        elif kind == "ready":
            self._handle(RunnerReady(number, now))
        else:
            raise Forged("a message of no known form")

    def _of_full(self, runner: RunnerProcess, items: bytes, count: int) -> bytes:
        """Some of these may have met the limit of its folder. It is looked at once: the next runner starts in an empty one."""
        disk = runner.place.disk
        if disk is not None and not runner.looked_at:
            runner.looked_at = True
            if (held := runner.place.on_disk()) >= disk.limit:
                runner.full = Excess("disk", held, disk.limit)
        return items if runner.full is None else of_full(items, count, runner.full)

    def _printed(self, runner: RunnerProcess, output: list[list[Any]]) -> None:
        for task, attempt, stream, data in output:
            self._capture(runner, task, attempt, stream, data)

    def _capture(self, runner: RunnerProcess, task: int, attempt: int, stream: int, data: bytes) -> None:
        capture = runner.captures.get(task)
        if capture is None:
            tee = self._granted.tee(*found) if (found := runner.logged.get(task)) is not None else None
            capture = runner.captures[task] = Capture(
                task, attempt, self._terms.max_output, runner.secrets, tee, self._granted.spools.open(task, attempt)
            )
        pieces, progress = capture.feed(stream, data, wall_ms())
        if pieces:
            self._outbox.add("output", pieces)
        if progress is not None:
            self._outbox.add_progress(progress)

    def _close_captures(self, runner: RunnerProcess, items: bytes, count: int) -> None:
        """Output of the tasks that ended: ship the kept ends. Only looked at when something was printed."""
        for row in rows(items, count):
            runner.logged.pop(row[0], None)
            if (capture := runner.captures.pop(row[0], None)) is not None and (last := capture.close(wall_ms())):
                self._outbox.add("output", last)

    def _pipe_reader(self, runner: RunnerProcess, stream: int, fd: int) -> Callable[[], None]:
        def read() -> None:
            data, closed = read_available(fd)
            if closed:
                self._loop.remove(fd)
            if data:
                self._below(runner, stream, data)

        return read

    def _below(self, runner: RunnerProcess, stream: int, data: bytes) -> None:
        """Written below Python (a child process, a C library, the interpreter's last words): to the task that runs now."""
        if stream == STDERR:
            runner.last_words = (runner.last_words + data)[-4096:]
        current = self.running_task(runner.number)
        if current is not None:
            self._capture(runner, current[0], current[1], stream, data)

    tokens: Tokens  # set by the supervisor, who gets their key
    # Set by the supervisor, for the machine knows: the task that a runner is in the middle of, and its batch.
    running_task: Callable[[int], tuple[int, int] | None]
    batch_of: Callable[[int], Sequence[Order]]

    # --- ending

    def ended(self, pid: int, status: int) -> None:
        """A runner was reaped: what it still said counts, then it is gone."""
        runner = self._by_pid.pop(pid, None)
        if runner is None:
            return
        self._drain(runner)
        del self._by_number[runner.number]
        begun, since = runner.current()
        self._close(runner)
        started_ms = wall_ms() - round((boottime() - since) * 1000)
        excess = self._boxes.leave(runner.place)
        self._handle(RunnerEnded(runner.number, begun, started_ms, _why(status, runner), boottime(), excess))

    def _read_pipes(self, runner: RunnerProcess) -> None:
        for stream, fd in zip((STDOUT, STDERR), runner.pipes, strict=True):
            left = LAST_WORDS  # somebody it started may write as fast as we read
            while left > 0 and (data := read_available(fd)[0]):
                left -= len(data)
                self._below(runner, stream, data)

    def _drain(self, runner: RunnerProcess) -> None:
        self._read_pipes(runner)
        self._hear(runner, runner.channel.drain())
        for capture in runner.captures.values():
            if last := capture.close(wall_ms()):
                self._outbox.add("output", last)

    def _close(self, runner: RunnerProcess) -> None:
        self._loop.remove(runner.channel.sock.fileno())
        runner.channel.sock.close()
        for fd in runner.pipes:
            self._loop.remove(fd)
            os.close(fd)
        runner.shared.close()

    def drop_all(self) -> None:
        """Forget everything: it has been killed."""
        for runner in self._by_pid.values():
            self._close(runner)
            self._boxes.leave(runner.place)
        self._by_pid.clear()
        self._by_number.clear()


def _why(status: int, runner: RunnerProcess) -> str:
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    words = runner.words.in_text(runner.last_words.decode(errors="replace").strip())
    return f"its runner {how}" + (f"; its last words:\n{words[-2000:]}" if words else "")

