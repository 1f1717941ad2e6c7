"""`logger: syslog|journald|file:NAME|URL`: a task's output also goes there, beside being kept by Headway (H9).

The supervisor hands what it read to one process (deliver.py) that does the delivering, over a socket it never waits for: when that
process is slow or a destination is down, lines are dropped and counted, and no task is held up.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable

from headway.agent.link import Channel, Terms
from headway.domain.task import Definition
from headway.logs import log
from headway.wire.exchange import Order

_START = "from headway.agent.deliver import main; main()"
MOST_UNSENT = 4 * 2**20  # bytes that may wait for the process
Tee = Callable[[int, bytes, int], None]  # stream, data, Unix ms


class Loggers:
    def __init__(self, terms: Terms, work_dir: str, env: dict[str, str]) -> None:
        self._settings = [terms.syslog, terms.journald, terms.log_dir or os.path.join(work_dir, "logs"), terms.fetch_hosts]
        self._env = env
        self._channel: Channel | None = None
        self.pid = 0
        self.dropped = 0

    @property
    def pids(self) -> set[int]:
        return {self.pid} if self.pid else set()

    def tee(self, order: Order, definition: Definition) -> Tee | None:
        """Where the output of this attempt also goes; None for nearly all."""
        if not (where := definition.content.logger):
            return None
        about = [where, order.id, order.attempt, order.name or definition.name]
        return lambda stream, data, at_ms: self._send([*about, stream, at_ms, data])

    def _send(self, record: list[object]) -> None:
        if self._channel is None:
            self._start()
        channel = self._channel
        if channel is None or channel.unsent > MOST_UNSENT:
            if not self.dropped:
                log("agent.log_lines_dropped", level="warning", reason="the logger does not keep up")
            self.dropped += 1
            return
        channel.send(record)

    def flush(self) -> None:
        """Write on what did not go out: called now and then."""
        if self._channel is not None and not self._channel.clear:
            self._channel.flush()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        high = os.dup(theirs.fileno())
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
            self._channel.send(self._settings)
        finally:
            os.close(high)
            theirs.close()

    def ended(self, pid: int) -> None:
        """The process died: the next line starts another."""
        if pid == self.pid and self._channel is not None:
            self._channel.sock.close()
            self._channel, self.pid = None, 0

    def close(self) -> None:
        """Everything was said: it delivers what it has and ends."""
        if self._channel is not None:
            self._channel.flush()
            self._channel.sock.close()
            self._channel, self.pid = None, 0
