"""The process that delivers output to syslog, journald, files and web addresses, line by line (H9).

Records come on descriptor 0 (agent/loggers.py). A destination that fails is tried again for a short while, then it is down: its lines
are dropped and counted, and every few seconds one is tried. Headway keeps the output itself, so nothing is lost that cannot be had from
there. Those who must know are told: the supervisor, of each attempt with lines that did not arrive, and of each destination that is
down or back; and the destination, when it is back, by a line on what it missed.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from headway.agent.destinations import Away, Destinations, Line, Refused, address, is_web
from headway.agent.link import READ, Frames, frame

LINE_LIMIT = 8192  # a longer line arrives as several
BATCH = 500
WAIT_S = 0.2  # lines for a web address wait so long for company
AGAIN_S = 5.0  # a destination that is down is tried so often
PART = 0.1  # of the time may go into trying one that does not answer: the lines of others wait meanwhile
PAUSES = (0.0, 0.1, 0.5)  # before each try of one that was not down
LONG_S = 1.0  # a try that took longer is not repeated at once
KEPT = 10_000  # attempts and destinations of which it is known what did not arrive
T = TypeVar("T")
Ref = tuple[int, int]


class Down(NamedTuple):
    until: float  # monotonic
    why: str


class Missed(NamedTuple):
    lines: int
    since_ms: int
    why: str


class Deliverer:
    def __init__(self, settings: list[Any], say: Callable[[list[Any]], None]) -> None:
        self._destinations, self._say = Destinations(settings), say
        self._partial: dict[tuple[str, int, int, int], tuple[str, bytes]] = {}
        self._batches: dict[str, list[Line]] = {}
        self._ending: dict[str, list[tuple[Ref, int]]] = {}  # attempts that have ended and whose last lines wait in a batch
        self._down: dict[str, Down] = {}  # by address
        self._missed: dict[str, Missed] = {}  # by destination: what it did not get since it got something
        self._lost: dict[Ref, Missed] = {}  # by attempt
        self._flush_at = 0.0

    def take(self, record: list[Any]) -> None:
        """Whole lines are delivered; the rest waits for its end."""
        where, task, attempt, name, stream, at_ms, data = record
        key = (where, task, attempt, stream)
        *whole, rest = (self._partial.pop(key, ("", b""))[1] + data).split(b"\n")
        if len(rest) > LINE_LIMIT:
            whole, rest = [*whole, rest], b""
        if rest:
            self._partial[key] = (name, rest)
        for raw in whole:
            for at in range(0, max(len(raw), 1), LINE_LIMIT):
                text = raw[at : at + LINE_LIMIT].decode(errors="replace")
                self._line(where, Line(task, attempt, name, stream, at_ms, text))

    def ended(self, where: str, ref: Ref, sequence: int, unsent: int, at_ms: int) -> None:
        """Nothing more comes of this attempt: a line without an end is a line too. `unsent` never came here."""
        for stream in (1, 2):
            if (found := self._partial.pop((where, *ref, stream), None)) is not None:
                name, rest = found
                self._line(where, Line(*ref, name, stream, at_ms, rest.decode(errors="replace")))
        if unsent:
            _add(self._lost, ref, unsent, at_ms, "lines came faster than they could be delivered")
            _add(self._missed, where, unsent, at_ms, "lines came faster than they could be delivered")
        if where in self._batches:
            self._ending.setdefault(where, []).append((ref, sequence))
        else:
            self._settle(where, ref, sequence)

    def _settle(self, where: str, ref: Ref, sequence: int) -> None:
        if (lost := self._lost.pop(ref, None)) is not None:
            lines = f"{lost.lines} line{'s' * (lost.lines != 1)}"
            text = f"[headway: {lines} of this output did not reach the logger {address(where)}: {lost.why}]"
            self._say(["ended", *ref, sequence, text])

    def _line(self, where: str, line: Line) -> None:
        if not is_web(where):
            self._deliver(where, [line])
            return
        if not self._batches:
            self._flush_at = time.monotonic() + WAIT_S
        batch = self._batches.setdefault(where, [])
        batch.append(line)
        if len(batch) >= BATCH:
            self.flush()

    @property
    def wait_s(self) -> float | None:
        """Until there is something to do."""
        return max(self._flush_at - time.monotonic(), 0.0) if self._batches else None

    def flush(self) -> None:
        batches, self._batches = self._batches, {}
        for where, lines in batches.items():
            self._deliver(where, lines)
            for ref, sequence in self._ending.pop(where, ()):
                self._settle(where, ref, sequence)

    def end(self) -> None:
        """The supervisor is gone."""
        for where, task, attempt, _ in list(self._partial):
            self.ended(where, (task, attempt), 0, 0, round(time.time() * 1000))
        self.flush()

    # --- trying

    def _deliver(self, where: str, lines: list[Line]) -> None:
        to = address(where)
        down = self._down.get(to)
        if down is not None and time.monotonic() < down.until:
            self._lose(where, lines, down.why)
            return
        why, took = "", 0.0
        for pause in PAUSES if down is None else (0.0,):
            if took > LONG_S:
                break
            time.sleep(pause)
            began = time.monotonic()
            try:
                self._destinations.send(where, [*self._gap(where, lines[0]), *lines])
            except Refused as error:
                self._lose(where, lines, str(error))
                return
            except Away as error:
                why, took = str(error), time.monotonic() - began
            else:
                self._took(where, to)
                return
        if down is None:
            self._say(["down", to, why])
        _keep(self._down, to, Down(time.monotonic() + max(AGAIN_S, took / PART), why))
        self._lose(where, lines, why)

    def _gap(self, where: str, before: Line) -> list[Line]:
        """What to say there before this line."""
        if (missed := self._missed.get(where)) is None:
            return []
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(missed.since_ms / 1000))
        text = f"[headway: {missed.lines} lines from {since} on did not arrive here: {missed.why}]"
        return [before._replace(stream=2, text=text)]

    def _took(self, where: str, to: str) -> None:
        missed = self._missed.pop(where, None)
        if self._down.pop(to, None) is not None:
            self._say(["back", to, missed.lines if missed else 0])

    def _lose(self, where: str, lines: list[Line], why: str) -> None:
        for line in lines:
            ref = (line.task, line.attempt)
            if ref not in self._lost:
                self._say(["lost", *ref, f"[headway: lines do not reach the logger {address(where)}: {why}]"])
            _add(self._lost, ref, 1, line.at_ms, why)
            _add(self._missed, where, 1, line.at_ms, why)


def _add(to: dict[T, Missed], key: T, lines: int, at_ms: int, why: str) -> None:
    before = to.get(key) or Missed(0, at_ms, "")
    _keep(to, key, Missed(before.lines + lines, before.since_ms, why))


def _keep(to: dict[T, Any], key: T, value: Any) -> None:
    """Those who never come again make room for others."""
    if key not in to and len(to) >= KEPT:
        del to[next(iter(to))]
    to[key] = value


def main() -> None:
    """Until the supervisor is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the input is the end
    source, frames = socket.socket(fileno=0), Frames()

    def say(message: list[Any]) -> None:
        try:
            source.sendall(frame(message))
        except OSError:  # gone: nobody asks any more
            return

    deliverer: Deliverer | None = None
    while True:
        readable, _, _ = select.select([source], [], [], deliverer.wait_s if deliverer is not None else None)
        if deliverer is not None and deliverer.wait_s == 0.0:
            deliverer.flush()
        if not readable:
            continue
        data = source.recv(READ)
        if not data:
            break
        for body in frames.feed(data):
            kind, *record = msgspec.msgpack.decode(body)
            if deliverer is None:
                deliverer = Deliverer(record, say)
            elif kind == "said":
                deliverer.take(record)
            else:
                where, task, attempt, sequence, unsent, at_ms = record
                deliverer.ended(where, (task, attempt), sequence, unsent, at_ms)
    if deliverer is not None:
        deliverer.end()
