"""Holds tasks that are close to their disk limit on the CPU of the watch (G3).

The watch has a real-time policy: on its CPU nothing else runs while it looks. A task whose threads may run on that CPU only stands still
meanwhile, and between two looks it writes for as long as the watch lets it and no longer, however late a look comes: what keeps the watch
from its CPU keeps the task from it too. The task notices nothing but one CPU instead of several. Tasks are spread over the CPUs; the
watch goes to the one it looks at, and waits on the one it looks at next.
"""

from __future__ import annotations

import _thread
import os
import signal

TYPE_CHECKING = False  # as in headway/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable

    Threads = Callable[[], list[int]]

STATUS = 256  # bytes of what tells a process's state, which is its third line
PASSES = 8  # a thread that is not held yet may have made others meanwhile


class Hold:
    """One task on its CPU."""

    def __init__(self, cpu: int, threads: Threads, usual: set[int]) -> None:
        self.cpu, self._threads, self._usual = cpu, threads, usual
        self._before: dict[int, set[int]] = {}  # thread -> where it could run before

    def keep(self) -> None:
        """All its threads: also those that were made since, and those that went elsewhere by themselves."""
        for _ in range(PASSES):
            found = self._threads()
            if not sum(map(self._bring, found)):
                break  # all of them were here, so none can have made another one meanwhile
        self._before = {thread: self._before[thread] for thread in found if thread in self._before}

    def _bring(self, thread: int) -> bool:
        """Whether it was elsewhere."""
        here = {self.cpu}
        try:
            cpus = os.sched_getaffinity(thread)
            if cpus == here:
                # One that was made while its maker was held has never been anywhere else.
                self._before.setdefault(thread, self._usual)
                return False
            os.sched_setaffinity(thread, here)
        except OSError:
            return False  # it has ended
        self._before[thread] = cpus
        return True

    def release(self) -> None:
        """To where each could run before."""
        self.keep()
        for thread, cpus in self._before.items():
            try:
                os.sched_setaffinity(thread, cpus)
            except OSError:
                continue  # it has ended


class Holder:
    """Where the watch is, and how many it holds on each CPU."""

    def __init__(self, *, able: bool, beside: Holder | None = None) -> None:
        """Able: it goes before everything else on its CPU. Without that, holding a task there would only be in both their way. `beside`:
        that of another thread that looks, at tasks of the same watch."""
        self.able = able
        self._watch = _thread.get_native_id()  # the thread that looks: another one may hold a task for it
        self._usual: set[int] = os.sched_getaffinity(0) if beside is None else beside._usual
        self._count: dict[int, int] = dict.fromkeys(sorted(self._usual), 0) if beside is None else beside._count
        self._at: int | None = None

    def hold(self, threads: Threads) -> Hold:
        cpu = min(self._count, key=lambda cpu: (self._count[cpu], cpu != self._at))
        self._count[cpu] += 1
        hold = Hold(cpu, threads, self._usual)
        self.stand_by(hold)
        hold.keep()
        return hold

    def release(self, hold: Hold) -> None:
        hold.release()
        self.forget(hold)

    def forget(self, hold: Hold) -> None:
        """Nothing of it lives any more."""
        self._count[hold.cpu] -= 1
        self.catch_up()

    @property
    def holds(self) -> int:
        """How many tasks are held."""
        return sum(self._count.values())

    def catch_up(self) -> None:
        """When no task is held any more, it need not be anywhere."""
        if self._at is not None and not self.holds:
            self._at = None
            os.sched_setaffinity(self._watch, self._usual)

    def stand_by(self, hold: Hold) -> None:
        """From here on, what is held there stands still until the watch waits."""
        if hold.cpu != self._at:
            os.sched_setaffinity(self._watch, {hold.cpu})
            self._at = hold.cpu


def hurry() -> bool:
    """A watch does little and must do it in time, also on a busy machine; without the right to it, it does its best."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


def end(pids: list[int]) -> None:
    """Now; who comes after us sees to those that were started meanwhile."""
    for pid in pids:
        _send(pid, signal.SIGKILL)


def stop(pids: list[int]) -> list[int]:
    """Stop these: others get onto our CPU when we wait for a lock, and for 50 ms of each second anyway. Returns those that were not
    stopped before."""
    return [pid for pid in pids if _state(pid) not in (b"T", b"t", b"") and _send(pid, signal.SIGSTOP)]


def go_on(pids: list[int], paused: Callable[[], bool]) -> None:
    """Those that `stop` has stopped. Where there is no freezer a pause is the same signal, and ours would undo it: whoever pauses or
    resumes says so first and sends his signals then, so what is said after ours is what has to be."""
    stopped = True
    while stopped != paused():
        stopped = not stopped
        for pid in pids:
            _send(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def _state(pid: int) -> bytes:
    """Not from `stat`: there the kernel keeps whoever asks waiting while the process is in the middle of an exec."""
    try:
        with open(f"/proc/{pid}/status", "rb", 0) as file:
            return file.read(STATUS).partition(b"State:\t")[2][:1]
    except OSError:
        return b""  # it has ended


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False  # it has ended
    return True
