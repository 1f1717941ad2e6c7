"""The process that watches the disks of tasks (G3); disk_watch is the supervisor's side of it.

It waits for nobody: it has an interpreter of its own and, where that is allowed, a real-time policy. What to watch comes by messages, the
end of a watch by a zero in shared memory. Who is above its limit is written there before anything is killed, so whoever reaps it knows why.
Imports little: it shall be small and quick to start.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import struct
import time

from headway.agent.disk import Watched, check
from headway.agent.disk_guard import Guard

SOCKET_FD, SHARED_FD = 3, 4
ENTRIES = 65536
BETWEEN = b"\0\0"
LARGEST, PIDS = 2**20, 2**16  # bytes of a message, and of a list of processes; a longer list is seen in part, each time
ENTRY = struct.Struct("qqq")  # number of the watch; the same once it is over its limit; what it used then
_FOUND, _FOUND_AT = struct.Struct("qq"), 8  # the part that is written here
AGAIN_S = 0.002  # between two looks for processes of a task that has to end
Watches = dict[int, tuple[int, Watched]]  # by number: the offset of its entry, and what is watched


def message(number: int, at: int, limit: int, processes: str, ours: int, folders: tuple[str, ...]) -> bytes:
    """`processes`: the folder of their group, in which so many threads are ours, or the only process that is known."""
    return "\0".join((str(number), str(at), str(limit), processes, str(ours), *folders)).encode(errors="surrogateescape")


def main() -> None:
    _hurry()
    sock = socket.socket(fileno=SOCKET_FD)
    shared = mmap.mmap(SHARED_FD, ENTRIES * ENTRY.size)
    supervisor = os.getppid()
    watches: Watches = {}
    guard = Guard(lambda watched: _end_of(watched, watches, shared))
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
        pause = look(watches, shared, guard)


def look(watches: Watches, shared: mmap.mmap, guard: Guard) -> float | None:
    """One round; returns when the next one is due, or None when there is nothing to watch."""
    pause: float | None = None
    for number, (at, watched) in list(watches.items()):
        if ENTRY.unpack_from(shared, at)[0] != number:
            del watches[number]
            continue
        wait = check(watched, time.monotonic(), guard) if not watched.over else 0.0
        if watched.over:
            _end(number, at, watched, shared)
            wait = AGAIN_S
        pause = wait if pause is None else min(pause, wait)
    return pause


def _end(number: int, at: int, watched: Watched, shared: mmap.mmap) -> None:
    if ENTRY.unpack_from(shared, at)[0] != number:
        return
    _FOUND.pack_into(shared, at + _FOUND_AT, number, watched.used)
    pids = watched.pids()
    if ENTRY.unpack_from(shared, at)[0] == number:  # then those listed before are its own, and not of who came after it
        _kill(pids)


def _end_of(watched: Watched, watches: Watches, shared: mmap.mmap) -> None:
    for number, (at, each) in list(watches.items()):
        if each is watched:
            _end(number, at, watched, shared)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue  # it has ended; the supervisor comes after us


def _watch(said: bytes, supervisor: int) -> tuple[int, int, Watched]:
    number, at, limit, processes, ours, *folders = said.decode(errors="surrogateescape").split("\0")
    one = int(processes) if not processes.startswith("/") else 0
    alone, found = int(ours), (lambda: [one]) if one else (lambda: _listed(processes, alone, supervisor))
    return int(number), int(at), Watched(tuple(folders), int(limit), found)


_counts: dict[str, int] = {}  # descriptors of the files that tell how many processes a group has, by the folder


def _listed(group: str, ours: int, supervisor: int) -> list[int]:
    """The processes of a group, without the supervisor. The list costs much: first, whether there are any."""
    try:
        if group not in _counts:
            _counts[group] = os.open(f"{group}/pids.current", os.O_RDONLY | os.O_CLOEXEC)
        if int(os.pread(_counts[group], 32, 0)) <= ours:
            return []
        fd = os.open(f"{group}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the place is gone; one of that name may be made again
        if group in _counts:
            os.close(_counts.pop(group))
        return []
    try:
        return [pid for pid in map(int, os.read(fd, PIDS).split()) if pid not in (0, supervisor)]
    finally:
        os.close(fd)


def _hurry() -> None:
    """It does little and must do it in time, also on a busy machine; without the right to it, it does its best."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return
