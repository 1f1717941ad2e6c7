"""One executable attempt: its scratch folder, its environment, its pipes, its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

import msgspec

from headway.agent import tree
from headway.agent.contain import NOTE as OUT_OF_MEMORY
from headway.agent.granted import Granted
from headway.agent.interpreters import NotStartable
from headway.agent.output import Capture
from headway.agent.reports import error_text
from headway.agent.scratch import CHECKPOINT
from headway.agent.spawn import Launch, launch
from headway.agent.tokens import Tokens, waits_for
from headway.domain.lifecycle import Outcome
from headway.domain.task import Definition
from headway.wire.exchange import Dependencies, ErrorInfo, Finished, Order

INSTANCE = "HEADWAY_AGENT_INSTANCE"  # marks every process that tasks of this agent started
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LOGNAME", "TZ", "TMPDIR")
RESULT_LIMIT = 4 * 2**20
READ = 64 * 1024
TRY_LATER, REQUEUE = 75, 85


def clean_environment(source: Mapping[str, str], instance: str) -> dict[str, str]:
    """What a task may know of the agent's environment: never its tokens."""
    env = {name: source[name] for name in INHERITED if name in source}
    own = os.path.dirname(sys.executable)  # where `headway` is: behind everything else, so that it hides nothing
    folders = [*env.get("PATH", os.defpath).split(os.pathsep), own]
    env["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    env[INSTANCE] = instance
    return env


class Process:
    """A running executable."""

    __slots__ = ("capture", "dir", "order", "pid", "registered", "since", "started_ms", "stderr", "stdout")

    def __init__(self, order: Order, directory: str, capture: Capture, since: float, started_ms: int) -> None:
        self.order, self.dir, self.capture = order, directory, capture
        self.since, self.started_ms = since, started_ms
        self.pid = self.stdout = self.stderr = -1
        self.registered = False

    @property
    def fds(self) -> tuple[tuple[int, int], ...]:
        return ((1, self.stdout), (2, self.stderr))

    def marked(self, instance: str) -> tree.Marked:
        return tree.carries(f"{INSTANCE}={instance}", f"HEADWAY_TASK_ID={self.order.id}", f"HEADWAY_ATTEMPT={self.order.attempt}")

    def close(self) -> None:
        for _, fd in self.fds:
            if fd >= 0:
                os.close(fd)
        self.stdout = self.stderr = -1


class Spawner:
    """Starts executables, many at a time."""

    def __init__(self, base_env: dict[str, str], granted: Granted) -> None:
        self._base_env, self.granted = base_env, granted
        self.tokens = Tokens()
        self._argv: dict[int, tuple[Definition, list[str]]] = {}  # definition -> what it runs, looked up once

    def prepare(self, process: Process, definition: Definition) -> Launch:
        """Its environment, folders and pipes; NotStartable when it is clear already that it cannot run."""
        env = self._environment(process, definition)
        workdir = process.dir if definition.content.image else definition.workdir or process.dir
        argv = self._command(process.order, definition, env, workdir, process.dir, fresh=False)
        process.stdout, child_stdout = os.pipe()
        process.stderr, child_stderr = os.pipe()
        os.set_blocking(process.stdout, False)
        os.set_blocking(process.stderr, False)
        return Launch(argv, env, workdir, child_stdout, child_stderr)

    def launch(self, prepared: Sequence[tuple[Process, Definition, Launch]]) -> dict[int, str]:
        """Start them; returns why some could not be started, by task."""
        launch([program for _, _, program in prepared])
        failed: dict[int, str] = {}
        for process, definition, program in prepared:
            if program.error:
                self._again(process, definition, program, failed)
            os.close(program.stdout)
            os.close(program.stderr)
            process.pid = program.pid
        return failed

    def _again(self, process: Process, definition: Definition, program: Launch, failed: dict[int, str]) -> None:
        """What was known of its command may be out of date: look it up afresh, once."""
        try:
            if not os.path.isdir(program.workdir):
                raise NotStartable(f"the working directory {program.workdir!r} cannot be entered: no such directory")
            program.argv = self._command(process.order, definition, program.env, program.workdir, process.dir, fresh=True)
            launch([program])
            if program.error:
                raise NotStartable(f"{program.argv[0]!r} could not be started: {os.strerror(program.error)}")
        except NotStartable as error:
            failed[process.order.id] = str(error)

    def _command(self, order: Order, definition: Definition, env: dict[str, str], workdir: str, scratch: str, *, fresh: bool) -> list[str]:
        known = self._argv.get(order.definition)
        if known is not None and known[0] is definition and not fresh and not self.granted.changing(order.definition):
            return known[1]
        argv = self.granted.command(order, definition, env, workdir, scratch)
        if len(self._argv) > 1000:
            self._argv.clear()
        self._argv[order.definition] = (definition, argv)
        return argv

    def _environment(self, process: Process, definition: Definition) -> dict[str, str]:
        order, directory = process.order, process.dir
        env = {**self._base_env, **definition.env} if definition.env else self._base_env.copy()
        env["HEADWAY_TASK_ID"] = str(order.id)
        env["HEADWAY_ATTEMPT"] = str(order.attempt)
        env["HEADWAY_RESULT"] = f"{directory}/result"
        env["HEADWAY_CHECKPOINT_DIR"] = f"{directory}/{CHECKPOINT}"
        env["HEADWAY_DEADLINE"] = f"{(process.started_ms + definition.cap_ms) / 1000:.3f}"
        env |= self.granted.environment(order.definition, definition)
        for name, value in self.tokens.environment(order, directory).items():
            env.setdefault(name, value)
        if order.traceparent:
            env["TRACEPARENT"] = order.traceparent
        if order.input and order.input != b"null":
            env["HEADWAY_INPUT"] = f"{directory}/input"
            with open(f"{directory}/input", "wb") as file:
                file.write(order.input)
        else:
            env["HEADWAY_INPUT"] = os.devnull
        if order.dependencies is not None:
            env["HEADWAY_DEPENDENCIES"] = f"{directory}/dependencies"
            write_dependencies(order.dependencies, env["HEADWAY_DEPENDENCIES"])
        return env


def write_dependencies(data: bytes, path: str) -> None:
    """The results of what the task waited for, as a file of JSON: name to result."""
    found = msgspec.json.decode(data, type=Dependencies)
    if found.error:
        raise NotStartable(found.error)
    with open(path, "wb") as file:
        file.write(msgspec.json.encode(found.results))


def read_available(fd: int) -> tuple[bytes, bool]:
    """What can be read now (up to READ), and whether the other end is closed."""
    try:
        data = os.read(fd, READ)
    except BlockingIOError:
        return b"", False
    return data, not data


def finish(process: Process, status: int, ended_ms: int, cpu_ms: int, max_memory: int | None) -> Finished:
    """How the attempt ended, from its exit status, its result file and the end of its stderr."""
    order = process.order
    finished = Finished(
        order.id, order.attempt, Outcome.SUCCEEDED, process.started_ms, ended_ms, cpu_ms=cpu_ms, max_memory=max_memory
    )
    code = os.waitstatus_to_exitcode(status)
    finished.exit_code = code if code >= 0 else 128 - code  # as shells say it
    if code == 137 and os.path.exists(f"{process.dir}/{OUT_OF_MEMORY}"):
        finished.outcome = Outcome.OUT_OF_MEMORY
        finished.error = error_text(ErrorInfo("OutOfMemory", "the container used more memory than it may"))
        return finished
    tail = process.capture.stderr_tail.decode(errors="replace").strip()
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() and -code < signal.SIGRTMIN else str(-code)
        finished.outcome = Outcome.SIGNAL
        finished.error = error_text(ErrorInfo(name, f"ended by signal {name}", tail))
    elif code == TRY_LATER:
        finished.outcome = Outcome.TRY_LATER
    elif code == REQUEUE:
        finished.outcome = Outcome.REQUEUED
        if waits := waits_for(process.dir):
            finished.outcome, finished.waits = Outcome.SUSPENDED, waits
    elif code:
        finished.outcome = Outcome.ERROR
        last = tail.rpartition("\n")[2][:300]
        finished.error = error_text(ErrorInfo(f"exit {code}", last or f"ended with exit code {code}", tail))
    else:
        _take_result(process, finished)
    return finished


def not_started(process: Process, why: str, now_ms: int) -> Finished:
    order = process.order
    error = error_text(ErrorInfo("NotStartable", why))
    return Finished(order.id, order.attempt, Outcome.NOT_STARTABLE, process.started_ms, now_ms, error=error)


def _take_result(process: Process, finished: Finished) -> None:
    if not os.access(f"{process.dir}/result", os.F_OK):  # the usual case, and cheaper than an exception
        return
    try:
        with open(f"{process.dir}/result", "rb") as file:
            data = file.read(RESULT_LIMIT + 1)
    except OSError as error:
        finished.outcome = Outcome.ERROR
        finished.error = error_text(ErrorInfo("ResultUnreadable", f"the result file cannot be read: {error.strerror}"))
        return
    if len(data) > RESULT_LIMIT:
        finished.outcome = Outcome.ERROR
        finished.error = error_text(ErrorInfo("ResultTooLarge", f"the result is larger than {RESULT_LIMIT} bytes"))
        return
    finished.result = as_json(data)


def as_json(data: bytes) -> bytes | None:
    """The data when it is JSON, otherwise the text as a JSON string."""
    stripped = data.strip()
    if not stripped:
        return None
    try:
        msgspec.json.decode(stripped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(data.decode(errors="replace").replace("\0", "\ufffd"))
    return stripped
