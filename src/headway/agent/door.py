"""The socket through which isolated tasks reach the server, kept by the supervisor: a relay is started when the first one knocks (C4 H11).

It lies in the folder that every sandbox sees as /etc, so showing it costs no mount.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from headway.agent.clock import boottime
from headway.agent.link import Terms
from headway.agent.loop import Loop
from headway.agent.niceness import USUAL
from headway.agent.process import INHERITED
from headway.agent.sandbox import DOOR
from headway.logs import log

LISTEN_FD = 3
WAITING = 64
BELOW = "HEADWAY_RELAY_NICE"  # less than tasks have: what they ask for there is not counted as theirs
AGAIN_S = 1.0  # a relay that cannot be started is tried again at the earliest after this
PASSED_ON = (*INHERITED, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
_RELAY = "from headway.agent.relay import main; main()"


class Door:
    def __init__(self, loop: Loop, terms: Terms) -> None:
        self._loop = loop
        urls = [url.strip() for url in terms.url.split(",") if url.strip()]
        self._words = [sys.executable, "-P", "-c", _RELAY, terms.tls_ca or "", *urls]
        self._listener: socket.socket | None = None
        self.pid = 0
        self._armed = False
        self._started = 0.0

    def open(self, folder: str) -> None:
        """Listen in this folder, which sandboxes see as /etc."""
        listener = socket.socket(socket.AF_UNIX)
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(DOOR, dir_fd=at)
            path = f"/proc/self/fd/{at}/{DOOR}"  # the folder's own path may be too long for an address
            listener.bind(path)
            os.chmod(path, 0o666)  # users of slots are others
        finally:
            os.close(at)
        listener.listen(WAITING)
        self._listener = listener
        self._arm()

    def _knocked(self) -> None:
        """Somebody waits: the relay takes the socket over for as long as it lives."""
        assert self._listener is not None
        self._loop.remove(self._listener.fileno())
        self._armed, self._started = False, boottime()
        try:
            high = os.dup(self._listener.fileno())
        except OSError as error:
            log("agent.no_door", level="error", reason=str(error))
            return  # `tick` tries again
        try:
            self.pid = os.posix_spawn(
                self._words[0],
                self._words,
                {BELOW: str(USUAL + 5)} | {name: os.environ[name] for name in PASSED_ON if name in os.environ},
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, high, LISTEN_FD)],
                setsid=True,
                setsigmask=(),
            )
        except OSError as error:
            log("agent.no_door", level="error", reason=str(error))
        finally:
            os.close(high)

    def ended(self, pid: int) -> None:
        if pid == self.pid:
            self.pid = 0

    def tick(self, now: float) -> None:
        """The socket is ours again when the relay has ended."""
        if self._listener is not None and not self.pid and not self._armed and now >= self._started + AGAIN_S:
            self._arm()

    def _arm(self) -> None:
        assert self._listener is not None
        self._armed = True
        self._loop.add(self._listener.fileno(), self._knocked)

    def close(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
