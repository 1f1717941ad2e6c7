"""The process that watches the disks of tasks (G3); disk_watch is the supervisor's side of it.

It waits for nobody: it has an interpreter of its own and, where that is allowed, a real-time policy. What to watch comes by messages, the
end of a watch by a zero in shared memory. Who is above its limit is written there before anything is killed, so whoever reaps it knows why;
and who is held, so that another process that takes over lets it go.
Imports little: it shall be small and quick to start.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time

from headway.agent.disk import Watched, check
from headway.agent.disk_guard import Guard
from headway.agent.disk_hold import Holder, end, go_on, hurry
from headway.agent.disk_members import Group, One

SOCKET_FD, SHARED_FD = 3, 4
ENTRIES = 65536
BETWEEN = b"\0\0"  # so no part of a message may be empty
NO_CLOCK = "-"
LARGEST = 2**20  # bytes of a message
# Number of the watch; the same once it is over its limit; what it used then; the number while it is held, below zero while it is stopped;
# the number while its task is paused.
ENTRY = struct.Struct("qqqqq")
_FOUND, _FOUND_AT = struct.Struct("qq"), 8  # the parts that are written here
_HELD, _HELD_AT = struct.Struct("q"), 24
PAUSED, PAUSED_AT = struct.Struct("q"), 32  # and the one that the supervisor writes meanwhile
AGAIN_S = 0.002  # between two looks for processes of a task that has to end
Watches = dict[int, tuple[int, Watched]]  # by number: the offset of its entry, and what is watched


def message(number: int, at: int, limit: int, processes: str, ours: int, clock: str, folders: tuple[str, ...]) -> bytes:
    """`processes`: the folder of their group, in which so many threads are ours, or the only process that is known. `clock`: the file that
    says how much of the CPU the group has used, or nothing."""
    return "\0".join((str(number), str(at), str(limit), processes, str(ours), clock or NO_CLOCK, *folders)).encode(errors="surrogateescape")


def main() -> None:
    holder = Holder(able=hurry())
    sock = socket.socket(fileno=SOCKET_FD)
    shared = mmap.mmap(SHARED_FD, ENTRIES * ENTRY.size)
    supervisor = os.getppid()
    watches: Watches = {}
    guard = Guard(lambda watched: _end_of(watched, watches, shared), holder)
    pause: float | None = None
    sock.send(b"ready")
    while True:
        if select.select([sock], [], [], pause)[0]:  # poll and epoll wait for whole milliseconds
            said = sock.recv(LARGEST)
            if not said:
                return  # the supervisor is gone
            for one in said.split(BETWEEN):
                number, at, watched = _watch(one, supervisor)
                watches[number] = at, watched
                adopt(watched, number, at, shared, holder)
        pause = look(watches, shared, guard, holder)


def adopt(watched: Watched, number: int, at: int, shared: mmap.mmap, holder: Holder) -> None:
    """Begin to watch it. One of us who was killed may have held it, or even stopped it."""
    watched.paused = lambda: bool(PAUSED.unpack_from(shared, at + PAUSED_AT)[0] == number)
    state = _HELD.unpack_from(shared, at + _HELD_AT)[0]
    if state == -number:
        go_on(watched.pids(), watched.paused)
    if abs(state) == number and holder.able:
        watched.hold = holder.hold(watched.threads)

    def tell(stopped: bool) -> None:
        _HELD.pack_into(shared, at + _HELD_AT, -number if stopped else number if watched.hold is not None else 0)

    tell(stopped=False)
    watched.tell_stopped = tell


def look(watches: Watches, shared: mmap.mmap, guard: Guard, holder: Holder) -> float | None:
    """One round; returns when the next one is due, or None when there is nothing to watch."""
    pause: float | None = None
    first: Watched | None = None
    for number, (at, watched) in list(watches.items()):
        if ENTRY.unpack_from(shared, at)[0] != number:
            del watches[number]
            if watched.hold is not None:
                holder.forget(watched.hold)
            continue
        wait, held = AGAIN_S, watched.hold
        if not watched.over:
            wait = check(watched, time.monotonic(), guard, holder)
        if watched.hold is not held:
            watched.tell_stopped(False)
        if watched.over:
            _end(number, at, watched, shared)
            wait = AGAIN_S
        if pause is None or wait < pause:
            pause, first = wait, watched
    if first is not None and first.hold is not None:
        holder.stand_by(first.hold)
    return pause


def _end(number: int, at: int, watched: Watched, shared: mmap.mmap) -> None:
    if ENTRY.unpack_from(shared, at)[0] != number:
        return
    _FOUND.pack_into(shared, at + _FOUND_AT, number, watched.used)
    pids = watched.pids()
    if ENTRY.unpack_from(shared, at)[0] == number:  # then those listed before are its own, and not of who came after it
        end(pids)


def _end_of(watched: Watched, watches: Watches, shared: mmap.mmap) -> None:
    for number, (at, each) in list(watches.items()):
        if each is watched:
            _end(number, at, watched, shared)


def _watch(said: bytes, supervisor: int) -> tuple[int, int, Watched]:
    number, at, limit, processes, ours, clock, *folders = said.decode(errors="surrogateescape").split("\0")
    clock = "" if clock == NO_CLOCK else clock
    group = Group(processes, int(ours), clock, supervisor) if processes.startswith("/") else One(int(processes))
    return int(number), int(at), Watched(tuple(folders), int(limit), group.pids, group.threads, group.clock)
