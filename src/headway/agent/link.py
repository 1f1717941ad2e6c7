"""What the two processes of an agent say to each other, over a socket pair: frames of a length and a MessagePack message.

Task data passes through undecoded: the exchange side hands the body of an answer on as it came, and the supervisor
hands back lists already encoded, so that a task costs the exchange side next to nothing.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

LINK = 2  # rises with every change that a process of the same agent, started from the code of before, would misread: also of what is said
# to runners, preparations and launchers, which a supervisor starts from the code that is installed then
_LENGTH = struct.Struct("<I")
READ = 256 * 1024
LINK_FD = 3  # of the supervisor, and of an exchange side that it started: the socket to the other
SOCKET_FD, SHARED_FD = 3, 4  # a runner's descriptors: the socket to its supervisor, and the memory they share


class Terms(msgspec.Struct):
    """What a supervisor must know of the settings (the same names; the rest is ignored) and of its machine."""

    max_output: int = 2**20
    runner_tasks: int = 100_000
    runner_growth: int = 256 * 2**20
    runner_idle_s: float = 60.0
    paths: list[str] = []
    max_checkpoint: int = 64 * 2**20
    url: str = ""
    token: str | None = None
    tls_ca: str | None = None
    volumes: dict[str, str] = {}
    runners: dict[str, str] = {}
    fetch_hosts: list[str] = []
    prepare_s: float = 600.0
    prepared_size: int = 10 * 2**30
    container_engine: str = "auto"
    output_store: str | None = None
    stored_output: int = 2**30
    syslog: str = "/dev/log"
    journald: str = "/run/systemd/journal/socket"
    log_dir: str | None = None
    max_processes: int = 512
    open_files: int = 8192
    cgroups: str = "use"
    first_port: int = 20_000
    sandbox_dir: str | None = None
    sandbox_paths: list[str] = []
    sandbox_uid: int = 200_000


class Setup(msgspec.Struct, array_like=True, tag="setup"):
    """The first frame to a supervisor. It keeps `settings` to start a new exchange side when this one dies."""

    settings: bytes  # MessagePack of config.Settings
    instance: str  # the same for every start of this node on this machine: marks its processes
    work_dir: str
    capacity: list[int]


class Adopt(msgspec.Struct, array_like=True, tag="adopt"):
    """The first frame to an exchange side that a supervisor started. Whatever changes, its beginning stays as it is: by it the other
    knows whether it can serve this supervisor."""

    settings: bytes
    supervisor: int  # its process id
    link: int = 1  # the versions it speaks
    protocol: int = 1
    kept: bool = False  # started from code of the supervisor's own version, since another is installed
    asked: int = 0  # how often the supervisor was asked to end: those before it may have died of that, or without hearing it


class Ask(msgspec.Struct, array_like=True, tag="ask"):
    """Tell me your state: a heartbeat is due, and only a living supervisor may have one."""

    number: int


class State(msgspec.Struct, array_like=True, tag="state"):
    number: int
    boot: str
    held: bytes  # MessagePack of list[Ref]
    settled: bool  # nothing held and nothing unreported


class Lease(msgspec.Struct, array_like=True, tag="lease"):
    """Tasks of this boot may run until then, on CLOCK_BOOTTIME."""

    boot: str
    until: float
    task_key: bytes = b""  # what the tokens of its attempts are made with
    node: int = 0


class Answer(msgspec.Struct, array_like=True, tag="answer"):
    """The body of a server's answer (wire.exchange.Orders) to a call made under `boot`."""

    number: int
    boot: str
    body: bytes


class Taken(msgspec.Struct, array_like=True, tag="taken"):
    """The orders of that answer are in my hands."""

    number: int
    refs: bytes  # MessagePack of list[Ref]
    unknown: list[int]  # definitions to send again


class Part(msgspec.Struct, array_like=True):
    """Some elements of one list of an Exchange, encoded, one after another."""

    field: str
    count: int
    items: bytes


class Report(msgspec.Struct, array_like=True, tag="report"):
    """News for the server. Kept by the supervisor until the exchange side says that they were answered."""

    number: int
    parts: list[Part]


class Reported(msgspec.Struct, array_like=True, tag="reported"):
    """All reports up to this number were answered."""

    number: int


class NewBoot(msgspec.Struct, array_like=True, tag="boot"):
    """Everything that ran under the boot before this is dead."""

    boot: str


class Lost(msgspec.Struct, array_like=True, tag="lost"):
    """The server declared this boot lost: kill everything."""

    boot: str


class Drain(msgspec.Struct, array_like=True, tag="drain"):
    """Give back what has not begun and take nothing new; or take again."""

    on: bool
    asked: int = 0  # how often the exchange side itself was asked to end: the next one goes on with that


class EndAll(msgspec.Struct, array_like=True, tag="end"):
    """The time to drain is over: end what runs, as pre-empted."""

    grace_s: float


class Quit(msgspec.Struct, array_like=True, tag="quit"):
    """The agent is ending: kill what is left and exit."""


ToSupervisor = Setup | Ask | Lease | Answer | Reported | Lost | Drain | EndAll | Quit
ToExchange = Adopt | State | Taken | Report | NewBoot

_encode = msgspec.msgpack.Encoder().encode
_space = memoryview(bytearray(READ))  # for one read at a time: memory for each costs three calls that disturb all other threads


def frame(message: Any) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Takes bytes as they come, gives whole bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def announced(self) -> int:
        size: int = _LENGTH.unpack_from(self._buffer)[0] if len(self._buffer) >= 4 else 0
        return size

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        self._buffer += data
        at, end = 0, len(self._buffer)
        while end - at >= 4:
            length: int = _LENGTH.unpack_from(self._buffer, at)[0]
            if end - at - 4 < length:
                break
            yield bytes(self._buffer[at + 4 : at + 4 + length])
            at += 4 + length
        del self._buffer[:at]


class Channel:
    """A non-blocking socket with frames: for processes that sit in their own epoll loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._frames = Frames()
        self._unsent = bytearray()

    def receive(self) -> list[bytes] | None:
        """The frames that are there; None once the other side is gone."""
        try:
            size = self.sock.recv_into(_space)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        return list(self._frames.feed(_space[:size])) if size else None

    @property
    def announced(self) -> int:
        """The size of a frame that has not arrived whole."""
        return self._frames.announced

    def drain(self) -> list[bytes]:
        """All frames that are there, up to the end or to what has not arrived."""
        found: list[bytes] = []
        try:
            while size := self.sock.recv_into(_space):
                found += self._frames.feed(_space[:size])
        except (BlockingIOError, ConnectionError):
            return found
        return found

    def send(self, message: Any) -> None:
        """Queue a message and write what goes out without waiting."""
        self._unsent += frame(message)
        self.flush()

    def flush(self) -> bool:
        """Write what goes out without waiting; True when nothing is left."""
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return False
            except ConnectionError:
                self._unsent.clear()  # the read side tells of the end
                return True
            del self._unsent[:sent]
        return True

    @property
    def clear(self) -> bool:
        return not self._unsent

    @property
    def unsent(self) -> int:
        """Bytes that wait."""
        return len(self._unsent)
