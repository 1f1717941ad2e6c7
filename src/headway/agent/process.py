"""One executable attempt: its scratch folder, its environment, its pipes, its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

import msgspec

from headway.agent import tree
from headway.agent.excess import OUTCOMES, said
from headway.agent.granted import Granted
from headway.agent.health import for_want_of_room
from headway.agent.interpreters import NotStartable
from headway.agent.output import Capture
from headway.agent.places import Place, Places
from headway.agent.reports import error_text
from headway.agent.sandbox import STATUS_FD, VARIABLES_FD, WORK, Told, Usage, told
from headway.agent.scratch import CHECKPOINT, put, read_plain
from headway.agent.spawn import Launch, close_all, complete, launch, pipes
from headway.agent.tokens import Tokens, waits_for
from headway.agent.unforeseen import unforeseen
from headway.agent.variables import INSTANCE, divided, for_bubblewrap, for_engine, marks_of
from headway.domain.lifecycle import Outcome
from headway.domain.task import Definition
from headway.wire.exchange import Dependencies, ErrorInfo, Excess, Finished, Order, as_text

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LOGNAME", "TZ", "TMPDIR")
RESULT_LIMIT = 4 * 2**20
READ = 64 * 1024
LAST_WORDS = 2**21  # read at most this much of a pipe after the end: someone may go on writing
TRY_LATER, REQUEUE = 75, 85
_EXEC = "bwrap: execvp "
UNBOXED = Told(None, None)
# Where `headway` is comes last; it is there for those who are shown it.
INSIDE_PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{os.path.dirname(sys.executable)}"


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

    __slots__ = (
        "capture", "excess", "gated", "heard", "order", "pid", "place", "registered", "resident", "shown", "since", "started_ms", "status",
        "stderr", "stdout", "used",
    )  # fmt: skip

    def __init__(self, order: Order, capture: Capture, since: float, started_ms: int) -> None:
        self.order, self.capture = order, capture
        self.since, self.started_ms = since, started_ms
        self.pid = self.stdout = self.stderr = self.status = -1
        self.registered = self.gated = False
        self.place: Place | None = None
        self.excess: Excess | None = None  # the limit it is being ended for
        self.used: Usage | None = None  # by a container that was ended by force, until then
        self.resident = 0  # the most memory a watcher saw, where there is no cgroup
        self.heard = b"", b""  # read already, of each stream
        self.shown: list[str] = []  # further paths an isolated task may read

    @property
    def dir(self) -> str:
        return self.place.dir if self.place is not None else ""

    @property
    def isolated(self) -> bool:
        return self.place is not None and self.place.isolated

    @property
    def fds(self) -> tuple[tuple[int, int], ...]:
        return ((1, self.stdout), (2, self.stderr))

    def marked(self, instance: str) -> tree.Marked:
        return tree.carries(f"{INSTANCE}={instance}", f"HEADWAY_TASK_ID={self.order.id}", f"HEADWAY_ATTEMPT={self.order.attempt}")

    def close(self) -> None:
        for fd in (self.stdout, self.stderr, self.status):
            if fd >= 0:
                os.close(fd)
        self.stdout = self.stderr = self.status = -1

    def told(self) -> Told:
        """What its sandbox said."""
        return told(read_available(self.status)[0]) if self.status >= 0 else UNBOXED


class Spawner:
    """What executables need to start."""

    def __init__(self, base_env: dict[str, str], granted: Granted, places: Places) -> None:
        self._base_env, self.granted, self._places = base_env, granted, places
        self.tokens = Tokens()
        self._argv: dict[int, tuple[Definition, list[str]]] = {}  # definition -> what it runs, looked up once

    def prepare(self, process: Process, definition: Definition, *, alone: bool = True) -> Launch:
        """Its environment, folders and pipes; NotStartable when it is clear already that it cannot run.

        `alone`: it may be left to compiled code.
        When it cannot, for whatever reason, every descriptor that was made for it is closed again.
        """
        place = process.place
        assert place is not None
        env = self._environment(process, definition)
        contained = bool(definition.content.image)
        workdir = self.granted.containers.folder if contained else definition.workdir or process.dir
        argv = self._command(process.order, definition, env, workdir, process.dir, fresh=False)
        if not place.isolated and not contained:
            if alone and place.slot is not None and place.slot.compiled:
                return Launch(argv, env, workdir, -1, -1, place.slot)
            (process.stdout, child_stdout), (process.stderr, child_stderr) = pipes(2)
            return Launch(argv, env, workdir, child_stdout, child_stderr, place.slot)
        if place.isolated:
            argv, outside = self._inside(process, definition, argv)
            # It can write nowhere but into its folders: a file as large as their limit is too large already.
            workdir, opens, largest = process.dir, self._places.box()[0].opens, place.disk_limit
            variables = for_bubblewrap(env)
        else:
            inside, outside = divided(self.granted.containers.inside(definition, env, process.dir))
            outside, opens, largest = {**self._base_env, **outside}, (), 0
            variables = for_engine(inside)
        try:
            (process.stdout, child_stdout), (process.stderr, child_stderr), (process.status, child_status) = pipes(3)
        except OSError:
            os.close(variables)
            raise
        passes = ((child_status, STATUS_FD), (variables, VARIABLES_FD))
        return Launch(argv, {**outside, **marks_of(env)}, workdir, child_stdout, child_stderr, place.slot, opens, passes, largest)

    def _inside(self, process: Process, definition: Definition, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        """The command line that runs `argv` in the sandbox, and what must be in the environment of whoever builds it."""
        box, scratch = self._places.box()
        process.shown = self.granted.shown(process.order.definition, definition)
        shown = [f"{path}/" for path in process.shown]
        if not box.visible(argv[0]) and not f"{argv[0]}/".startswith(tuple(shown)):
            raise NotStartable(
                f"the program {argv[0]!r} is not visible inside the sandbox: upload it with the task, or let the operator "
                "add its folder to the agent's sandbox_paths"
            )
        # The folder somebody submitted from is usually not there inside, and says nothing then.
        seen = box.visible(definition.workdir) or f"{definition.workdir}/".startswith(tuple(shown))
        argv, gate_env = box.connected(
            argv,
            process.dir,
            definition.network,
            definition.resources.bandwidth,
            private_tmp=scratch.tmp_of(process.dir),
            shown=[*box.needed_by(argv), *process.shown],
            chdir=definition.workdir if definition.workdir and seen else WORK,
            held=bool(process.place and process.place.disk_limit),
        )
        process.gated = bool(gate_env)
        return argv, gate_env

    def begun(self, process: Process, definition: Definition, program: Launch) -> str | None:
        """Its thread has done its part; returns why it could not be started."""
        why: str | None = None
        try:
            complete(program)
            if program.error:
                self._again(process, definition, program)
        except (NotStartable, OSError) as error:
            why = str(error)
        except Exception as error:
            why = unforeseen(error, "starting its program", task=process.order.id)
        close_all((program.stdout, program.stderr, *(ours for ours, _ in program.passes)))
        process.pid = program.pid
        return why

    def _again(self, process: Process, definition: Definition, program: Launch) -> None:
        """What was known of its command may be out of date: look it up afresh, once."""
        if not os.path.isdir(program.workdir):
            raise NotStartable(f"the working directory {program.workdir!r} cannot be entered: no such directory")
        env = self._environment(process, definition)
        program.argv = self._command(process.order, definition, env, program.workdir, process.dir, fresh=True)
        if process.isolated:
            program.argv, _ = self._inside(process, definition, program.argv)
        for ours, theirs in program.passes:
            if theirs == VARIABLES_FD:
                os.lseek(ours, 0, os.SEEK_SET)
        launch(program)
        if program.error:
            raise NotStartable(f"{program.argv[0]!r} could not be started: {os.strerror(program.error)}")

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
        order, directory, place = process.order, process.dir, process.place
        assert place is not None
        env = self._base_env.copy()
        if place.isolated:
            directory = WORK
            env |= {"PATH": INSIDE_PATH, "HOME": WORK, "TMPDIR": "/tmp", "USER": "task", "LOGNAME": "task"}
        if definition.env:
            env |= definition.env
            env[INSTANCE] = self._base_env[INSTANCE]  # a task may not hide from who looks for its processes
        if place.ports:
            env["HEADWAY_PORTS"] = ",".join(map(str, place.ports))
            env.setdefault("PORT", str(place.ports[0]))
        env["HEADWAY_TASK_ID"] = str(order.id)
        env["HEADWAY_ATTEMPT"] = str(order.attempt)
        env["HEADWAY_RESULT"] = f"{directory}/result"
        env["HEADWAY_CHECKPOINT_DIR"] = f"{directory}/{CHECKPOINT}"
        env["HEADWAY_DEADLINE"] = f"{(process.started_ms + definition.cap_ms) / 1000:.3f}"
        env |= self.granted.environment(order.definition, definition)
        for name, value in self.tokens.environment(order, directory, definition).items():
            env.setdefault(name, value)
        if order.traceparent:
            env["TRACEPARENT"] = order.traceparent
        if order.input and order.input != b"null":
            env["HEADWAY_INPUT"] = f"{directory}/input"
            put(f"{process.dir}/input", order.input)
        else:
            env["HEADWAY_INPUT"] = os.devnull
        if order.dependencies is not None:
            env["HEADWAY_DEPENDENCIES"] = f"{directory}/dependencies"
            write_dependencies(order.dependencies, f"{process.dir}/dependencies")
        return env


def write_dependencies(data: bytes, path: str) -> None:
    """The results of what the task waited for, as a file of JSON: name to result."""
    found = msgspec.json.decode(data, type=Dependencies)
    if found.error:
        raise NotStartable(found.error)
    put(path, msgspec.json.encode(found.results))


def read_available(fd: int) -> tuple[bytes, bool]:
    """What can be read now (up to READ), and whether the other end is closed."""
    try:
        data = os.read(fd, READ)
    except BlockingIOError:
        return b"", False
    return data, not data


def finish(process: Process, status: int, ended_ms: int, usage: Usage, box: Told) -> Finished:
    """How the attempt ended, from its exit status, its result file and the end of its stderr."""
    order = process.order
    if process.isolated and os.WIFEXITED(status) and box.exit_code is None and process.excess is None:
        why = process.capture.stderr_tail.decode(errors="replace").strip() or f"it ended with {os.WEXITSTATUS(status)}"
        return not_started(process, NotStartable(_no_sandbox(why)), ended_ms)
    finished = Finished(order.id, order.attempt, Outcome.SUCCEEDED, process.started_ms, ended_ms)
    finished.cpu_ms, finished.max_memory, finished.read_bytes, finished.written_bytes = usage
    code = exit_code(status, isolated=process.isolated)
    finished.exit_code = code if code >= 0 else 128 - code  # as shells say it
    tail = process.capture.stderr_tail.decode(errors="replace").strip()
    if process.excess is not None:
        finished.outcome = OUTCOMES[process.excess.what]
        finished.error = error_text(ErrorInfo(*said(process.excess), tail, process.excess))
    elif code < 0:
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


def _no_sandbox(why: str) -> str:
    program, _, reason = why.removeprefix(_EXEC).rpartition(": ")
    if not why.startswith(_EXEC) or "\n" in why:
        return f"the sandbox could not be made: {why}"
    return (
        f"{program!r} could not be started inside the sandbox: {reason}; what its #! line names, and its libraries, must be in the "
        "system's folders, or in those that the operator adds to the agent's sandbox_paths"
    )


def exit_code(status: int, *, isolated: bool) -> int:
    """Negative for a signal. The sandbox says 128 + the signal's number, as shells do."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if isolated and 128 < code < 128 + signal.SIGRTMIN else code


def not_started(process: Process, why: Exception, now_ms: int) -> Finished:
    """An attempt that did not come to its program. One for which the node's disk had no room waits, and uses no attempt."""
    order = process.order
    outcome = Outcome.TRY_LATER if for_want_of_room(why) else Outcome.NOT_STARTABLE
    text = f"the node could not prepare the task: {why}" if isinstance(why, OSError) else str(why)
    error = error_text(ErrorInfo("NotStartable", text))
    return Finished(order.id, order.attempt, outcome, process.started_ms, now_ms, error=error)


def _take_result(process: Process, finished: Finished) -> None:
    if process.place is not None and process.place.scratch.untouched(process.dir):
        return
    try:
        data = read_plain(f"{process.dir}/result", RESULT_LIMIT + 1)
    except OSError as error:
        _unusable(finished, "ResultUnreadable", f"the result file cannot be read: {error.strerror}")
        return
    if data is not None and len(data) > RESULT_LIMIT:
        _unusable(finished, "ResultTooLarge", f"the result is larger than {RESULT_LIMIT} bytes")
    elif data is not None:
        finished.result = as_json(data)


def _unusable(finished: Finished, kind: str, message: str) -> None:
    finished.outcome = Outcome.ERROR
    finished.error = error_text(ErrorInfo(kind, message))


def as_json(data: bytes) -> bytes | None:
    """The data when it is JSON, otherwise the text as a JSON string."""
    stripped = data.strip()
    if not stripped:
        return None
    try:
        msgspec.json.decode(stripped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return as_text(data)
    return stripped
