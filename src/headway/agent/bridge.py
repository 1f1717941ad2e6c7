"""Between the supervisor and a warm runner of another language (H4; the protocol is docs/runner-protocol.md).

Towards the supervisor this is a runner like the Python one: batches, giving back, output, the count of begun tasks in shared memory.
Towards the other side it speaks lines on the runner's standard input and output, one task at a time. So a runner in any language is
a loop of a few lines, and everything that is hard is written once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

import msgspec

from headway.agent import tree
from headway.agent.functions import RESULT_LIMIT, BadResult, NotFound
from headway.agent.runner import Runner, run_as_runner

VERSION = "1"
READY_S = 60  # a Java runner compiles itself at its start
DIED = 70
LINE = RESULT_LIMIT + 2**16  # more than the longest answer that is taken: a longer line is not kept whole, since it may have no end
FIRST_LINE = 4096
SAY = 32 * 1024
ENDS_S = 5.0  # after it closed its output; on a busy machine dying takes its time


class Failed(Exception):
    """The function failed in its own language: its own words, not ours."""

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(message)
        self.kind, self.message, self.trace = kind, message, trace


class ForeignFunction:
    """A function by its name; the runner on the other side finds it."""

    plain = True
    changed = False  # it is the runner's business to notice

    def __init__(self, bridge: Bridge, name: str, cap_s: float) -> None:
        self._bridge, self.name, self.cap_s = bridge, name, cap_s

    def run(self, data: bytes) -> bytes | None:
        return self._bridge.call(self.name, data)


class Bridge(Runner):
    """A Runner whose calls go to another process."""

    def start(self, folder: str, words: list[str]) -> None:
        """Start the other side, in the folder its tasks ask for, and wait until it is ready."""
        self.words = words
        self.printed = bytearray()  # the last piece of `output`, while more may be added to it
        try:
            self.other = subprocess.Popen(
                words, cwd=folder or None, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=_die_with_parent
            )
        except OSError as error:
            _give_up(f"{words[0]!r} could not be started: {error.strerror}")
        assert self.other.stdin is not None
        assert self.other.stdout is not None
        self.to, self.lines = self.other.stdin, self.other.stdout
        signal.alarm(READY_S)
        line = self.lines.readline(FIRST_LINE).decode(errors="replace").rstrip("\n").split("\t")
        signal.alarm(0)
        if line[0] != "ready" or line[1:2] != [VERSION]:
            self._gone(f"it began with {line[0][:80]!r} and not with ready and {VERSION}" if line[0] else "")

    def find(self, definition: int) -> Any:
        name, _, _, _, cap_ms = self.definitions[definition]
        found = self.functions[definition] = ForeignFunction(self, name, cap_ms / 1000)  # type: ignore[assignment]
        return found

    def call(self, name: str, data: bytes) -> bytes | None:
        """Send one task and listen until it is done."""
        current = self.context
        task = str(current.id)
        words = ("run", task, str(current.attempt), f"{current.deadline or 0:.3f}", name)
        try:
            self.to.write("\t".join(words).encode() + b"\t" + (data or b"null") + b"\n")
            self.to.flush()
        except BrokenPipeError:
            self._gone("")
        ours, ended = task.encode(), True
        while line := self.lines.readline(LINE):
            begins, ended = ended, line.endswith(b"\n")
            parts = line.rstrip(b"\n").split(b"\t")
            if not begins or len(parts) < 3 or parts[1] != ours:
                self._printed(line)
                continue
            if not ended:  # a longer answer than is taken: the rest of it is nothing else
                self._skip_line()
                ended = True
            if parts[0] == b"ok":
                return _result(parts[2])
            if parts[0] == b"fail":
                raise Failed(parts[2].decode(errors="replace"), _text(parts, 3), _text(parts, 4))
            if parts[0] == b"missing":
                raise NotFound(_text(parts, 2))
            if parts[0] == b"progress" and len(parts) > 3:
                self._progress(parts)
            elif parts[0] == b"say":
                self._printed(_text(parts, 2).encode())
            else:
                self._printed(line)
        return self._gone("")

    def clear_processes(self) -> None:
        """The other side is a child of this process and stays; what its functions start ends with it at the latest."""

    def cpu_s(self) -> float:
        """With the other side's, whose functions they are."""
        try:
            return super().cpu_s() + time.clock_gettime(_clock_of(self.other.pid))
        except OSError:  # it has just ended
            return self.cpu_before

    def max_memory(self) -> int | None:
        """The most that the other side ever had: this process has nothing of theirs."""
        with contextlib.suppress(OSError), open(f"/proc/{self.other.pid}/status", "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"VmHWM:")), None)
        return None

    def _skip_line(self) -> None:
        """To its end, or to the end of the runner."""
        while (line := self.lines.readline(LINE)) and not line.endswith(b"\n"):
            continue

    def _printed(self, line: bytes) -> None:
        """A line that is none of the protocol's: the function printed it. Lines are told in pieces of many: a flood of empty ones would
        cost the supervisor as many messages."""
        with self.sending:  # the other thread sends them too
            task, attempt = self.current[:2]
            if not self.output or self.output[-1][3] is not self.printed or self.output[-1][:2] != (task, attempt):
                self.printed = bytearray()
                self.output.append((task, attempt, 1, self.printed))
            self.printed += line
        if len(self.printed) > SAY:
            self.flush()

    def _progress(self, parts: list[bytes]) -> None:
        try:
            self.progress(float(parts[2]), float(parts[3]), _text(parts, 4))
        except ValueError:
            self._printed(b"\t".join(parts) + b"\n")

    def _gone(self, why: str) -> NoReturn:
        """The other side died, or is no runner: what was done is told, then this process ends as it did."""
        self.flush()
        with contextlib.suppress(BrokenPipeError):  # what it did not read is lost with it
            self.to.close()
        try:
            code = self.other.wait(ENDS_S)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        except subprocess.TimeoutExpired:
            tree.kill([self.other.pid], None)
            how = "did not keep to the protocol"
        _give_up(f"{self.words[0].rpartition('/')[2]} {how}{': ' if why else ''}{why}")


def _give_up(why: str) -> NoReturn:
    os.write(2, f"{why}\n".encode())
    os._exit(DIED)


def _clock_of(pid: int) -> int:
    """The clock of another process's CPU time, as clock_getcpuclockid says it."""
    return (~pid << 3) | 2


def _die_with_parent() -> None:
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)


def _result(data: bytes) -> bytes | None:
    if data in (b"null", b""):
        return None
    if len(data) > RESULT_LIMIT:
        raise BadResult(f"the result is larger than {RESULT_LIMIT} bytes")
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadResult(f"the runner answered with something that is not JSON: {error}") from None
    return data


def _text(parts: list[bytes], at: int) -> str:
    """A field that is a JSON string; taken as it is when it is none."""
    if at >= len(parts):
        return ""
    try:
        return msgspec.json.decode(parts[at], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return parts[at].decode(errors="replace")


def main() -> None:
    """Arguments: as of a Python runner, then `--`, a folder, and the command line of the other side."""
    at = sys.argv.index("--")
    folder, *words = sys.argv[at + 1 :]
    del sys.argv[at:]
    run_as_runner(Bridge, lambda bridge: bridge.start(folder, words))
