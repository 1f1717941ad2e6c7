"""`logger: syslog|journald|file:NAME|URL`: a task's output also goes there, beside being kept by Headway (H9).

The supervisor hands what it read to one process (deliver.py) that does the delivering, over a socket it never waits for: when that
process is slow or a destination is down, lines are dropped and counted, and no task is held up. The owner reads so in the output
itself: by a line when the first is dropped while the task still writes, and by one with their number after its end. The operator reads
of destinations that are down, and back, in the agent's log.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from headway.agent.clock import wall_ms
from headway.agent.destinations import FILE
from headway.agent.link import Channel, Terms
from headway.agent.loop import Loop
from headway.agent.reports import Outbox
from headway.domain.task import Definition
from headway.logs import log
from headway.wire.exchange import Order, Output

_START = "from headway.agent.deliver import main; main()"
MOST_UNSENT = 4 * 2**20  # bytes that may wait for the process
STDERR = 2
_SLOW = "lines came faster than they could be delivered"


class Tee:
    """The way of one attempt's output to its logger."""

    def __init__(self, loggers: Loggers, where: str, ref: tuple[int, int], name: str) -> None:
        self._loggers, self._where, self.ref, self._name = loggers, where, ref, name
        self._silent = True  # it has written nothing
        self._unsent = 0  # lines
        self._note = ""
        self._told = False

    def send(self, stream: int, data: bytes, at_ms: int) -> None:
        self._silent = False
        if not self._loggers.send(["said", self._where, *self.ref, self._name, stream, at_ms, data]):
            self._unsent += data.count(b"\n")
            self.trouble(f"[headway: lines do not reach the logger: {_SLOW}]")

    def trouble(self, text: str) -> None:
        """Something did not arrive: said once, with what is written next."""
        if not self._told:
            self._note = text

    def take_note(self) -> bytes:
        """A line for the owner, once."""
        if not self._note:
            return b""
        note, self._note, self._told = self._note, "", True
        return f"{note}\n".encode()

    def ended(self, sequence: int, at_ms: int) -> None:
        """Nothing more comes. What is then found missing is said as the piece of output with this number."""
        if self._silent:
            return
        if not self._loggers.send(["ended", self._where, *self.ref, sequence, self._unsent, at_ms]):
            self._loggers.tell(*self.ref, sequence, f"[headway: lines of this output did not reach the logger: {_SLOW}]")


class Loggers:
    def __init__(self, terms: Terms, work_dir: str, env: dict[str, str], loop: Loop, outbox: Outbox) -> None:
        self._settings = [terms.syslog, terms.journald, terms.log_dir or os.path.join(work_dir, "logs"), terms.fetch_hosts]
        self._env, self._loop, self._outbox = env, loop, outbox
        self._tees: WeakValueDictionary[tuple[int, int], Tee] = WeakValueDictionary()  # of attempts under way
        self._channel: Channel | None = None
        self._slow = False
        self.pid = 0

    @property
    def pids(self) -> set[int]:
        return {self.pid} if self.pid else set()

    def tee(self, order: Order, definition: Definition) -> Tee | None:
        """Where the output of this attempt also goes; None for nearly all."""
        if not (where := definition.content.logger):
            return None
        if where.startswith(FILE):
            where = f"{FILE}{definition.tenant}/{where.removeprefix(FILE)}"  # a name is its tenant's: two of them share no file
        ref = (order.id, order.attempt)
        tee = self._tees[ref] = Tee(self, where, ref, order.name or definition.name)
        return tee

    def send(self, record: list[object]) -> bool:
        """Whether the process gets it."""
        if self._channel is None:
            self._start()
        channel = self._channel
        slow = channel is None or channel.unsent > MOST_UNSENT
        if slow and not self._slow:
            log("agent.log_lines_dropped", level="warning", reason="the logger does not keep up")
        self._slow = slow
        if channel is None or slow:
            return False
        channel.send(record)
        return True

    def tell(self, task: int, attempt: int, sequence: int, text: str) -> None:
        """A line for the owner, after all that the attempt wrote."""
        self._outbox.add("output", [Output(task, attempt, sequence, STDERR, wall_ms(), f"{text}\n".encode())])

    def _readable(self) -> None:
        channel = self._channel
        if channel is None:
            return
        frames = channel.receive()
        if frames is None:
            self._loop.remove(channel.sock.fileno())  # it died, and is reaped soon
            return
        self._hear(frames)

    def _hear(self, frames: list[bytes]) -> None:
        for body in frames:
            kind, *about = msgspec.msgpack.decode(body)
            self._heard(kind, about)

    def _heard(self, kind: str, about: list[Any]) -> None:
        if kind == "lost":
            task, attempt, text = about
            if (tee := self._tees.get((task, attempt))) is not None:
                tee.trouble(text)
        elif kind == "ended":
            self.tell(*about)
        elif kind == "down":
            log("agent.logger_down", level="warning", logger=about[0], reason=about[1])
        elif kind == "back":
            log("agent.logger_back", logger=about[0], dropped=about[1])

    def flush(self) -> None:
        """Write on what did not go out: called now and then."""
        if self._channel is not None and not self._channel.clear:
            self._channel.flush()

    def _start(self) -> None:
        try:
            ours, theirs = socket.socketpair()
            high = theirs.detach()
        except OSError as error:
            log("agent.no_logger", level="error", reason=str(error))
            return  # the lines are dropped and counted, and the next one tries again
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-c", _START],
                self._env,
                file_actions=[(os.POSIX_SPAWN_DUP2, high, 0)],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE,),
            )
        except OSError as error:
            log("agent.no_logger", level="error", reason=str(error))
            ours.close()
        else:
            self._channel = Channel(ours)
            self._loop.add(ours.fileno(), self._readable)
            self._channel.send(["settings", *self._settings])
        finally:
            os.close(high)

    def ended(self, pid: int) -> None:
        """The process died: the next line starts another."""
        if pid == self.pid and self._channel is not None:
            log("agent.logger_died", level="error", logger=pid)
            self._hear(self._channel.drain())
            for tee in self._tees.values():
                tee.trouble("[headway: lines may be missing at the logger: what delivers them died and was started again]")
            self._forget()

    def close(self) -> None:
        """Everything was said: it delivers what it has and ends."""
        if self._channel is not None:
            self._channel.flush()
            self._forget()

    def _forget(self) -> None:
        if self._channel is not None:
            self._loop.remove(self._channel.sock.fileno())
            self._channel.sock.close()
        self._channel, self.pid = None, 0
