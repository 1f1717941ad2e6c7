"""Programs that their slots' threads start, stay with and read by themselves, in compiled code (starter.c, decision 0061).

A program that ends within a moment comes back whole: its status, what it used, what it printed. One that lives longer comes back as
a process with the reading ends of its pipes. The supervisor's own thread makes the words, gives them away, and takes what comes back.

Where the compiled part is missing, or the kernel lacks what it needs, programs are started as `spawn` does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from headway.agent.descriptors import BELL, HIGHEST, can_part
from headway.agent.handing import Calls
from headway.agent.niceness import USUAL

VERSION = 2  # of starter.c
LIBRARY = os.path.join(os.path.dirname(__file__), "_starter.so")
MOST = 256  # taken at once
_WAITED, _HANDED_OVER = 1, 2
_TOLD = struct.Struct("=8i5q")
_CODEC, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class Counted(NamedTuple):
    """The part of `resource.struct_rusage` that is read of programs."""

    ru_utime: float
    ru_stime: float
    ru_maxrss: int
    ru_inblock: int
    ru_oublock: int


NOTHING_COUNTED = Counted(0.0, 0.0, 0, 0, 0)


@dataclass(slots=True)
class Run:
    """What became of a program."""

    pid: int = -1
    error: int = 0  # an errno: it was not started
    status: int | None = None  # None: it lives, is a tracer's, or the supervisor was told of its end
    usage: Counted = NOTHING_COUNTED
    heard: tuple[bytes, bytes] = (b"", b"")
    pipes: tuple[int, int] = (-1, -1)  # the reading ends of those that may still be written to
    lost: bool = False  # no descriptor was left for these


class Starter:
    """All slots' threads, as the supervisor's own thread sees them."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable when something has come back
        self._hurry = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._compiled = library() if can_part() else None
        bell, hurry, handing = range(BELL, BELL + 3)
        self._desk = self._compiled.open_desk(HIGHEST, bell, hurry, handing, USUAL) if self._compiled is not None else None
        self._told, self._slots = bytearray(_TOLD.size * MOST), (ctypes.c_size_t * MOST)()
        self._into = (ctypes.c_char * len(self._told)).from_buffer(self._told)
        self._received: dict[int, list[int]] = {}

    @property
    def kept(self) -> tuple[int, int, int]:
        """What each thread must have in its own table, from the number BELL on."""
        return self.bell, self._hurry, self._theirs.fileno()

    def make(self, number: int) -> tuple[int, Calls]:
        """For a new slot: its address in compiled code (0: none), and the queue of what its thread shall do in Python."""
        address = self._compiled.make(self._desk, number) if self._compiled is not None and self._desk else 0
        if self._compiled is None or not address:
            return 0, Calls()
        return address, Calls(_Summons(self._compiled, address))

    def discard(self, address: int) -> None:
        """By the slot's thread, at its end."""
        if self._compiled is not None and address:
            self._compiled.discard(address)

    def give(self, address: int, argv: list[str], env: dict[str, str], folder: str, group: str) -> int:
        """Let the slot's thread start it. An errno, or 0."""
        words = [*argv, *[f"{name}={value}" for name, value in env.items()], folder, group, ""]
        try:
            text = "\0".join(words).encode(_CODEC, _ERRORS)
        except UnicodeEncodeError:
            return errno.EILSEQ
        if text.count(0) != len(words) - 1:
            return errno.EINVAL
        assert self._compiled is not None
        return int(self._compiled.give(address, text, len(text), len(argv), len(env)))

    def listen_for(self, count: int) -> bool:
        """Whether so many have come back; if not, the bell rings when they have."""
        return self._compiled is not None and self._compiled.listen_for(self._desk, count) >= count

    @contextlib.contextmanager
    def hurry(self) -> Iterator[None]:
        """Nobody stays any longer with a program that lives: it comes back at once."""
        os.eventfd_write(self._hurry, 1)
        try:
            yield
        finally:
            os.eventfd_read(self._hurry)

    def take(self) -> Iterator[tuple[int, Run]]:
        """What came back since the last time, by number of the slot."""
        while self._compiled is not None and (count := self._compiled.take(self._desk, self._into, self._slots, MOST)):
            records = _TOLD.iter_unpack(memoryview(self._told)[: count * _TOLD.size])
            for address, (slot, pid, error, flags, status, out, err, _, user, system, rss, read, written) in zip(
                self._slots[:count], records, strict=True
            ):
                run = Run(pid, error)
                if flags & _WAITED:
                    run.status, run.usage = status, Counted(user / 1e6, system / 1e6, rss, read, written)
                if out or err:
                    run.heard = self._heard(address, 0, out), self._heard(address, 1, err)
                if flags & _HANDED_OVER:
                    self._receive(slot, run)
                yield slot, run
            if count < MOST:
                return

    def _heard(self, address: int, stream: int, length: int) -> bytes:
        assert self._compiled is not None
        return ctypes.string_at(self._compiled.heard(address, stream), length)

    def _receive(self, slot: int, run: Run) -> None:
        """Its thread has sent its pipes before it told of it; those of others may come before."""
        while slot not in self._received:
            message, rights, _, _ = self._ours.recvmsg(4, socket.CMSG_LEN(8), socket.MSG_CMSG_CLOEXEC)
            fds = memoryview(b"".join(data for _, _, data in rights)).cast("i")
            self._received[int.from_bytes(message, sys.byteorder)] = fds.tolist()
        received = self._received.pop(slot)
        if len(received) == 2:
            run.pipes = received[0], received[1]
            return
        run.lost = True  # the kernel drops those for which there is no room in our table
        for fd in received:
            os.close(fd)

    def close(self) -> None:
        """Nothing is under way. (The desk stays: a thread that ends may not have come back from it.)"""
        os.close(self.bell)
        os.close(self._hurry)
        self._ours.close()
        self._theirs.close()


class _Summons:
    """A semaphore whose waiting thread starts programs meanwhile."""

    def __init__(self, compiled: ctypes.PyDLL, address: int) -> None:
        self._post, self._serve, self._address = compiled.call_back, _serve(compiled), address

    def post(self) -> None:
        self._post(self._address)

    def wait(self) -> None:
        self._serve(self._address)


@cache
def library() -> ctypes.PyDLL | None:
    """The compiled part, if it is there and speaks as this file does. Its calls are over at once and keep the interpreter."""
    try:
        found = ctypes.PyDLL(LIBRARY)
    except OSError:
        return None
    if found.version() != VERSION:
        return None
    address, number = ctypes.c_void_p, ctypes.c_int
    found.open_desk.restype = found.make.restype = found.heard.restype = address
    found.discard.restype = found.call_back.restype = None
    found.open_desk.argtypes = [number] * 5
    found.make.argtypes = found.heard.argtypes = found.listen_for.argtypes = [address, number]
    found.take.argtypes = [address, address, address, number]
    found.give.argtypes = [address, ctypes.c_char_p, ctypes.c_size_t, number, number]
    found.call_back.argtypes = found.discard.argtypes = [address]
    return found


@cache
def _serve(compiled: ctypes.PyDLL) -> Callable[[int], None]:
    """The call that waits, and gives the interpreter up. Of the very library that was loaded: another may be in its place by now."""
    serve = ctypes.CDLL(LIBRARY, handle=compiled._handle).serve
    serve.argtypes, serve.restype = [ctypes.c_void_p], None
    return serve
