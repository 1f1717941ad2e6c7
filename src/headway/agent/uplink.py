"""The supervisor's end of the link to the exchange side. When that dies, another one is started, which goes on with what runs here: from
the code that is installed, or, if that speaks another version, from the code this supervisor was started with."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from headway.agent import kept_code, tree
from headway.agent.kept_code import CODE_FD, path_first
from headway.agent.link import LINK_FD, Channel
from headway.agent.loop import Loop
from headway.agent.unforeseen import unforeseen
from headway.logs import log

_ADOPT = "from headway.agent.main import adopt; adopt()"
RESTART_S = 1.0  # between two starts of an exchange side


class Uplink:
    def __init__(self, loop: Loop, channel: Channel, exchange: int, hear: Callable[[list[bytes]], None]) -> None:
        self._loop, self._hear = loop, hear
        self._channel: Channel | None = None
        self.exchange = exchange  # its process; 0 when it is gone
        self.restart_at = 0.0
        self.kept = False  # the last one was started from code of our own version, since another is installed
        self._connect(channel)

    @property
    def down(self) -> bool:
        return self._channel is None

    def _connect(self, channel: Channel) -> None:
        self._channel = channel
        self._loop.add(channel.sock.fileno(), self._readable)

    def _readable(self) -> None:
        channel = self._channel
        if channel is None:
            return
        if not channel.clear and channel.flush():
            self._loop.want_write(channel.sock.fileno(), False)
        frames = channel.receive()
        if frames is None:
            self._disconnected(channel)
            return
        try:
            self._hear(frames)
        except msgspec.DecodeError as error:  # what it says next would be no clearer; another one may be understood
            unforeseen(error, "reading what the exchange side says")
            tree.send([self.exchange], signal.SIGKILL)  # it would take us for dead, and end what runs here
            self._disconnected(channel)

    def _disconnected(self, channel: Channel) -> None:
        self._loop.remove(channel.sock.fileno())
        channel.sock.close()
        self._channel, self.exchange = None, 0

    def send(self, message: Any) -> None:
        if self._channel is not None:
            was_clear = self._channel.clear
            self._channel.send(message)
            if was_clear and not self._channel.clear:
                self._loop.want_write(self._channel.sock.fileno(), True)

    def start(self, now: float) -> bool:
        """Another exchange side in place of the one that died; False when no process or descriptor is to be had now."""
        self.restart_at = now + RESTART_S
        self.kept = kept_code.installed() != kept_code.OWN
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            log("agent.no_exchange", level="error", reason=str(error))
            return False
        try:
            with theirs, socket.socket(fileno=os.dup(theirs.fileno())) as high:  # the target may be the source too
                self.exchange = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-P", "-c", _ADOPT],
                    path_first(dict(os.environ)) if self.kept else dict(os.environ),  # it carries the mark
                    file_actions=[(os.POSIX_SPAWN_DUP2, high.fileno(), LINK_FD), *self._code()],
                    setsigmask=(),
                )
        except OSError as error:
            log("agent.no_exchange", level="error", reason=str(error))
            ours.close()
            return False
        self._connect(Channel(ours))
        return True

    def _code(self) -> list[tuple[int, int, int]]:
        """Passes our own code on to one that is started from it: a descriptor that is copied to its own place stays open."""
        return [(os.POSIX_SPAWN_DUP2, CODE_FD, CODE_FD)] if self.kept else []
