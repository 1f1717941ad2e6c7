"""The process that watches the disks of tasks (G3); disk_watch is the supervisor's side of it.

It waits for nobody: it has an interpreter of its own and, where that is allowed, a real-time policy. When the kernel keeps a look at one
task waiting, another thread goes on with the others. What to watch comes by messages, the
end of a watch by a zero in shared memory. Who is above its limit is written there before anything is killed, so whoever reaps it knows why;
and who is held, so that another process that takes over lets it go.
Imports little: it shall be small and quick to start.
"""

from __future__ import annotations

import _thread
import mmap
import os
import select
import socket
import struct
import time

from headway.agent.disk import Watched, check
from headway.agent.disk_filling import Filling
from headway.agent.disk_freeze import Standstill, is_able
from headway.agent.disk_guard import Guard, go
from headway.agent.disk_hold import Holder, end, hurry
from headway.agent.disk_members import Group, One
from headway.agent.quotas import are_counted

SOCKET_FD, SHARED_FD = 3, 4
ENTRIES = 65536
BETWEEN = b"\0\0"  # so no part of a message may be empty
NOTHING = "-"
LARGEST = 2**20  # bytes of a message
# Number of the watch; the same once it is over its limit; what it used then; the number while it is held, below zero while it is stopped;
# the number while its task is paused, below zero by a freezer.
ENTRY = struct.Struct("qqqqq")
_FOUND, _FOUND_AT = struct.Struct("qq"), 8  # the parts that are written here
_HELD, _HELD_AT = struct.Struct("q"), 24
PAUSED, PAUSED_AT = struct.Struct("q"), 32  # and the one that the supervisor writes meanwhile
MOST = 64  # threads that look: each but one waits for a task
AGAIN_S = 0.002  # between two looks for processes of a task that has to end
Watches = dict[int, tuple[int, Watched]]  # by number: the offset of its entry, and what is watched


def message(
    number: int, at: int, limit: int, processes: str, ours: int, told_by: tuple[str, str, str, str], folders: tuple[str, ...]
) -> bytes:
    """`processes`: the folder of their group, in which so many threads are ours, or the only process that is known. `told_by`, each of
    which may be nothing: the file that says how much of the CPU the group has used, where the kernel tells of the quotas that hold it,
    the group it can be frozen by, and the file that says what it has in memory."""
    fields = (str(number), str(at), str(limit), processes, str(ours), *(file or NOTHING for file in told_by), *folders)
    return "\0".join(fields).encode(errors="surrogateescape")


def main() -> None:
    able = hurry()
    Rounds(socket.socket(fileno=SOCKET_FD), mmap.mmap(SHARED_FD, ENTRIES * ENTRY.size), able=able).serve()


class Rounds:
    """Goes from task to task. A thread whose look has to wait stays with that task, and another one goes on with the others: nobody's
    limit depends on what others do."""

    def __init__(self, sock: socket.socket, shared: mmap.mmap, *, able: bool) -> None:
        self._sock, self._shared, self._able = sock, shared, able
        self._supervisor = os.getppid()
        self._watches: Watches = {}
        self._kept: set[Watched] = set()  # with each of them another thread is still busy
        self._on: Looker | None = None  # who goes round
        self._back = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # written when one of them can be looked at again
        self._spare: list[Looker] = []
        self._lookers = 2

    def serve(self) -> None:
        """Until the supervisor is gone."""
        me = self._on = self._looker(None)
        self._prepare(me)
        self._sock.send(b"ready")
        self._go_round(me)

    def _looker(self, other: Looker | None) -> Looker:
        """One for this thread."""
        holder = Holder(able=self._able, beside=other.holder if other is not None else None)
        me = Looker(holder, Guard(self._end_of, holder, lambda watched: self._relieve(me, watched)))
        return me

    def _prepare(self, other: Looker) -> None:
        """A thread that is there already takes over sooner than one that has to be made: 3 MiB could be written meanwhile."""

        def live() -> None:
            me = self._looker(other)
            self._spare.append(me)
            me.called.acquire()
            self._go_round(me)

        _thread.start_new_thread(live, ())

    def _go_round(self, me: Looker) -> None:
        """The life of a thread that looks."""
        while True:
            pause: float | None = 0.0
            while self._on is me:
                pause = self._round(me, pause)
                if not self._spare and self._lookers < MOST:
                    self._lookers += 1
                    self._prepare(me)
            self._spare.append(me)
            me.called.acquire()
            me.holder.catch_up()

    def _round(self, me: Looker, pause: float | None) -> float | None:
        ready = select.select([self._sock.fileno(), self._back], [], [], pause)[0]  # poll and epoll wait for whole milliseconds
        if self._back in ready:
            os.eventfd_read(self._back)
        if self._sock.fileno() in ready:
            said = self._sock.recv(LARGEST)
            if not said:
                os._exit(0)  # the supervisor is gone
            for one in said.split(BETWEEN):
                number, at, watched = _watch(one, self._supervisor)
                self._watches[number] = at, watched
                adopt(watched, number, at, self._shared, me.holder)
        return self._look(me)

    def _relieve(self, me: Looker, watched: Watched) -> None:
        """Said by the guard of one whose look takes long, while it does. There may be nobody else yet: who begins now is heard of."""
        if self._on is me and self._spare:
            self._kept.add(watched)
            self._on = self._spare.pop()
            self._on.called.release()

    def _look(self, me: Looker) -> float | None:
        """One round; returns when the next one is due, or None when there is nothing to watch."""
        pause: float | None = None
        first: Watched | None = None
        for number, (at, watched) in list(self._watches.items()):
            if watched in self._kept:
                continue
            if ENTRY.unpack_from(self._shared, at)[0] != number:
                del self._watches[number]
                if watched.hold is not None:
                    me.holder.forget(watched.hold)
                continue
            wait = self._look_at(number, at, watched, me)
            if self._on is not me:
                self._kept.discard(watched)
                os.eventfd_write(self._back, 1)
                return None
            if pause is None or wait < pause:
                pause, first = wait, watched
        if first is not None and first.hold is not None:
            me.holder.stand_by(first.hold)
        return pause

    def _look_at(self, number: int, at: int, watched: Watched, me: Looker) -> float:
        wait, held = AGAIN_S, watched.hold
        if not watched.over:
            wait = check(watched, time.monotonic(), me.guard, me.holder)
        if watched.hold is not held:
            watched.tell_stopped(False)
        if watched.over:
            _end(number, at, watched, self._shared)  # also who was begun meanwhile
            return AGAIN_S
        return wait

    def _end_of(self, watched: Watched) -> None:
        for number, (at, each) in list(self._watches.items()):
            if each is watched:
                _end(number, at, watched, self._shared)


class Looker:
    """One of the threads, with the one that guards its looks."""

    def __init__(self, holder: Holder, guard: Guard) -> None:
        self.holder, self.guard = holder, guard
        self.called = _thread.allocate_lock()  # released when it shall go round again
        self.called.acquire()


def adopt(watched: Watched, number: int, at: int, shared: mmap.mmap, holder: Holder) -> None:
    """Begin to watch it. One of us who was killed may have held it, or even stopped it."""
    watched.paused = lambda: bool(PAUSED.unpack_from(shared, at + PAUSED_AT)[0] == number)
    watched.frozen = lambda: bool(abs(PAUSED.unpack_from(shared, at + PAUSED_AT)[0]) == number)
    state = _HELD.unpack_from(shared, at + _HELD_AT)[0]
    if state == -number:
        if watched.freezer is not None:
            watched.freezer.frozen = True  # perhaps
        go(watched, watched.pids())
    if abs(state) == number and holder.able:
        watched.hold = holder.hold(watched.threads)

    def tell(stopped: bool) -> None:
        _HELD.pack_into(shared, at + _HELD_AT, -number if stopped else number if watched.hold is not None else 0)

    tell(stopped=False)
    watched.tell_stopped = tell


def _end(number: int, at: int, watched: Watched, shared: mmap.mmap) -> None:
    if ENTRY.unpack_from(shared, at)[0] != number:
        return
    _FOUND.pack_into(shared, at + _FOUND_AT, number, watched.used)
    pids = watched.pids()
    if ENTRY.unpack_from(shared, at)[0] == number:  # then those listed before are its own, and not of who came after it
        end(pids)


def _watch(said: bytes, supervisor: int) -> tuple[int, int, Watched]:
    number, at, limit, processes, ours, *told_by = said.decode(errors="surrogateescape").split("\0")
    clock, walled, freezer, memory = ("" if file == NOTHING else file for file in told_by[:4])
    folders = tuple(told_by[4:])
    group = Group(processes, int(ours), clock, supervisor) if processes.startswith("/") else One(int(processes))
    watched = Watched(folders, int(limit), group.pids, group.threads, group.clock, walled=bool(walled))
    watched.stands = lambda: are_counted(walled, watched.folders[0])
    if is_able(freezer):
        watched.freezer, watched.filling = Standstill(freezer), Filling(memory)
    return int(number), int(at), watched
