"""Finding and ending every process of a task, including those that tried to leave.

A process can leave its group and its session (setsid) and its parent (double fork). It cannot leave its ancestor
the supervisor, which is child subreaper, and it rarely clears its environment. So a task's processes are: the
descendants of its first process, the members of its session, and those that carry its marks in /proc/PID/environ.
They are stopped while we look, until a look finds nothing new; only then are they killed, so that none can fork
away between the look and the kill.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Stat(NamedTuple):
    ppid: int
    session: int
    start: int  # clock ticks since the machine started
    zombie: bool


Marked = Callable[[bytes], bool]  # of the NUL-separated environment, with a NUL before and after


def prctl(option: int, value: int) -> None:
    """The two settings Python does not offer; without Linux there is nothing to set."""
    import ctypes
    import sys

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def stat(pid: int) -> Stat | None:
    """None once the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Stat(int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in (b"Z", b"X"))


def table() -> dict[int, Stat]:
    """Every process of the machine."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    return {int(name): found for name in names if name.isdigit() and (found := stat(int(name))) is not None}


def children(pid: int) -> list[int]:
    """The direct children of a single-threaded process, in one read."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def environ(pid: int) -> bytes:
    """What the process was started with, NUL before, between and after; empty when it is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + file.read() + b"\0"
    except OSError:
        return b""


def words(pid: int) -> list[bytes]:
    """Its command line; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def carries(*marks: str) -> Marked:
    """Whether an environment has all of these NAME=value."""
    wanted = [f"\0{mark}\0".encode() for mark in marks]
    return lambda text: all(mark in text for mark in wanted)


def descendants(roots: Iterable[int], processes: dict[int, Stat]) -> set[int]:
    """The roots and all below them, and the members of the sessions the roots lead."""
    found = {pid for pid in roots if pid in processes}
    below: dict[int, list[int]] = {}
    for pid, of in processes.items():
        below.setdefault(of.ppid, []).append(pid)
        if of.session in found:
            found.add(pid)
    edge = list(found)
    while edge:
        for child in below.get(edge.pop(), ()):
            if child not in found:
                found.add(child)
                edge.append(child)
    return found


def members(roots: Iterable[int], marked: Marked | None) -> set[int]:
    """The living processes that belong to the roots or carry the marks. Never this process or its ancestors."""
    processes = {pid: of for pid, of in table().items() if not of.zombie}
    found = descendants(roots, processes)
    if marked is not None:
        found |= {pid for pid in processes if pid not in found and marked(environ(pid))}
    above, pid = set(), os.getpid()
    while pid and pid not in above:
        above.add(pid)
        pid = processes[pid].ppid if pid in processes else 0
    return found - above


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        except PermissionError:
            continue  # a program that changed its user: not ours to signal; isolation levels above `none` prevent it


def terminate(roots: Iterable[int], marked: Marked | None) -> None:
    """Ask the whole tree to end."""
    send(members(roots, marked), signal.SIGTERM)


def kill(roots: Iterable[int], marked: Marked | None, spare: Iterable[int] = ()) -> set[int]:
    """End the whole tree now; returns who was killed."""
    roots, spared = list(roots), set(spare)
    stopped: set[int] = set()
    while new := members([*roots, *stopped], marked) - stopped - spared:
        send(new, signal.SIGSTOP)
        stopped |= new
    send(stopped, signal.SIGKILL)
    return stopped
