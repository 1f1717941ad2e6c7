"""The test that every warm runner passes, whatever its language (H4; docs/runner-protocol.md).

It talks to the runner as an agent does: lines on its standard input and output. The functions it calls are in a file of the runner's
own language: echo, add, nothing, hello, steps, fail, crash.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.agent.bridge import VERSION

ANSWER_S = 30.0
MANY = 2000
VALUES: tuple[Any, ...] = (
    0,
    -7,
    2.5,
    True,
    "",
    'tab\tnewline\nquote"backslash\\ ü 漢 \U0001f600',
    {"a": [1, {"b": None}], "c": "x"},
)


@dataclass
class Checked:
    what: str
    why: str = ""  # it failed


class NoAnswer(Exception):
    """The runner did not do what it must; says what."""


class Session:
    """One runner process."""

    def __init__(self, command: list[str], functions: str) -> None:
        self.functions = functions
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._number = 0

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def line(self) -> list[str]:
        try:
            line = self._lines.get(timeout=ANSWER_S)
        except queue.Empty:
            raise NoAnswer(f"it said nothing for {ANSWER_S:g} s") from None
        if not line:
            raise NoAnswer("it ended")
        if not line.endswith(b"\n"):
            raise NoAnswer(f"a line has no end: {line[:80]!r}")
        return line[:-1].decode(errors="replace").split("\t")

    def send(self, name: str, value: Any) -> str:
        self._number += 1
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        words = ("run", str(self._number), "1", f"{time.time() + 60:.3f}", name, text)
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(words).encode() + b"\n")
        self.process.stdin.flush()
        return str(self._number)

    def call(self, name: str, value: Any = None) -> tuple[list[str], list[list[str]]]:
        """The answer of a call, and what came before it."""
        number = self.send(f"{self.functions}:{name}", value)
        before: list[list[str]] = []
        while True:
            words = self.line()
            if words[0] in ("ok", "fail", "missing") and words[1:2] == [number]:
                return words, before
            before.append(words)

    def close(self) -> int:
        """End of input: it must end by itself."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise NoAnswer("it goes on after the end of its input") from None


def check(command: list[str], functions: str) -> list[Checked]:
    """Every rule of the protocol, one after another, each with a runner that may be used up by it."""
    results: list[Checked] = []
    try:
        session = Session(command, functions)
    except OSError as error:
        return [Checked("starts", f"{command[0]}: {error.strerror}")]
    try:
        for what, rule in RULES.items():
            results.append(_one(what, lambda rule=rule: rule(session)))  # type: ignore[misc]
            if results[-1].why in ("it ended",):
                return results
        results.append(_one("ends when its input ends", lambda: _expect(session.close() == 0, "its exit code is not 0")))
    finally:
        if session.process.poll() is None:
            session.process.kill()
            session.process.wait()
    results.append(_one("a function that kills its process is no answer", lambda: _crash(command, functions)))
    return results


def _one(what: str, rule: Callable[[], None]) -> Checked:
    try:
        rule()
    except (NoAnswer, BrokenPipeError, ValueError, IndexError) as error:
        return Checked(what, str(error) or type(error).__name__)
    return Checked(what)


def _expect(fine: bool, why: str) -> None:
    if not fine:
        raise NoAnswer(why)


def _ready(session: Session) -> None:
    words = session.line()
    _expect(words[:2] == ["ready", VERSION], f"its first line is {words!r}, expected ready, {VERSION} and its name")


def _echoes(session: Session) -> None:
    for value in VALUES:
        words, _ = session.call("echo", [value])
        _expect(words[0] == "ok", f"echo of {value!r} answered {words!r}")
        _expect(json.loads(words[2]) == value, f"echo of {value!r} gave {words[2]!r}")


def _one_argument(session: Session) -> None:
    words, _ = session.call("echo", {"a": 1})
    _expect(words[0] == "ok" and json.loads(words[2]) == {"a": 1}, f"an object is one argument; got {words!r}")


def _arguments(session: Session) -> None:
    words, _ = session.call("add", [2, 3])
    _expect(words[0] == "ok" and json.loads(words[2]) == 5, f"add of 2 and 3 answered {words!r}")


def _nothing(session: Session) -> None:
    words, _ = session.call("nothing")
    _expect(words[0] == "ok" and words[2] == "null", f"a function without a result answered {words!r}")


def _prints(session: Session) -> None:
    words, before = session.call("hello")
    _expect(words[0] == "ok", f"printing answered {words!r}")
    _expect(not any(each[0] in ("ok", "fail") for each in before), "what a function prints looks like an answer")
    shown = " ".join(" ".join(each) for each in before)
    _expect("hello from the function" in shown or not before, f"what was printed came as {before!r}")


def _progress(session: Session) -> None:
    words, before = session.call("steps")
    shown = " ".join(" ".join(each) for each in before)
    _expect(words[0] == "ok" and "half way" in shown, f"progress came as {before!r}")


def _fails(session: Session) -> None:
    words, _ = session.call("fail", ["it is\tbroken"])
    _expect(words[0] == "fail" and bool(words[2]), f"a failing function answered {words!r}")
    _expect("it is\tbroken" in json.loads(words[3]), f"the message is {words[3]!r}")
    json.loads(words[4])


def _missing(session: Session) -> None:
    words, _ = session.call("there_is_no_such_function")
    _expect(words[0] == "missing" and bool(json.loads(words[2])), f"a function that is not there answered {words!r}")
    number = session.send("/there/is/no/file.x:f", None)
    words = session.line()
    _expect(words[:2] == ["missing", number], f"a file that is not there answered {words!r}")


def _goes_on(session: Session) -> None:
    _arguments(session)


def _many(session: Session) -> None:
    """Answers come in order, each before the next task begins; at least 5,000 tasks/s is what a runner should do."""
    name = f"{session.functions}:add"
    begun = time.perf_counter()
    for number in range(MANY):
        sent = session.send(name, [number, 1])
        words = session.line()
        _expect(words == ["ok", sent, str(number + 1)], f"call {number} answered {words!r}")
    session.rate = MANY / (time.perf_counter() - begun)  # type: ignore[attr-defined]


def _crash(command: list[str], functions: str) -> None:
    session = Session(command, functions)
    try:
        _ready(session)
        session.send(f"{functions}:crash", None)
        try:
            words = session.line()
        except NoAnswer:
            return
        raise NoAnswer(f"a function that ended its process answered {words!r}")
    finally:
        session.process.kill()
        session.process.wait()


RULES: dict[str, Callable[[Session], None]] = {
    "says ready": _ready,
    "gives every JSON value back as it was": _echoes,
    "takes an object as one argument": _one_argument,
    "takes an array as arguments": _arguments,
    "a function without a result gives null": _nothing,
    "what a function prints is no answer": _prints,
    "progress is told": _progress,
    "a failure has a type, a message and a trace": _fails,
    "a missing function or file is told": _missing,
    "goes on after a failure": _goes_on,
    "answers thousands of calls in order": _many,
}
