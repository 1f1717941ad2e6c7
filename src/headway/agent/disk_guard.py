"""Looks on while the watch on disks has to wait (G3).

A look lists the task's folders, and the kernel makes it wait while a process creates a file there: for as long as that process does not
get the CPU or waits for the disk, with a lock that knows no priorities and that running processes take from those that wait: 150 ms were
seen, in which the others of eight processes wrote a fifth more than they may. So a second thread sees to it that the task does not get
away meanwhile. The files that are known are counted: the ones of the last look, and the ones that are open. That is no more than what the
task has on its disk; when it is above the limit already, nobody has to wait for the list, and when it comes close, it is held. One that is
held and may run, as the watch waits and does not use its CPU, is stopped until the look is over.

A look also asks the task's processes for their open files, and has to wait for one that is in the middle of an exec: on a busy machine for
as long as that one waits for the CPU, 440 ms were seen. A second thread would have to wait too. So it holds the task as soon as that could
have reached its limit.

All other tasks go on meanwhile: after a moment, somebody else looks at them (`relieve`, disk_rounds).
"""

from __future__ import annotations

import _thread
import os
import stat
import time

from headway.agent.disk import FASTEST, FEW, Watched
from headway.agent.disk_count import ENTRY, MANY
from headway.agent.disk_hold import go_on, stop

TYPE_CHECKING = False  # as in headway/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.agent.disk_hold import Holder

PATIENCE_S = 0.002  # a look that takes longer waits for somebody, or has many files to count
HELD_S = 0.0005  # the same, at one that is held
RELIEF_S = 0.0002  # while others are held, they do not wait longer for a look: they run, and could write more than 1 MiB
WAITS_S = 0.0005  # a watch that has not used its CPU for so long waits for somebody, and what is held there runs


class Guard:
    def __init__(
        self, over: Callable[[Watched], None], holder: Holder, relieve: Callable[[Watched], None] = lambda watched: None
    ) -> None:
        """`over` is told of a task above its limit, by this thread, while the other one waits; `relieve` of one that is waited for."""
        self._over, self._holder, self._relieve = over, holder, relieve
        self._looked_at: Watched | None = None
        self._clock = 0  # of the CPU that the thread that looks has used
        self._unused_then = 0.0  # for how long it had not used one when the look began
        self._stopped: list[int] | None = None  # those that were running when the task was stopped
        self._turn = 0
        self._asks = False  # the look asks processes, and waits for one perhaps
        self._away = False  # the guard itself may be waiting for something
        self._acted = False  # it has held or stopped the task, which has run until then
        self._threads = 1
        self.changing = _thread.allocate_lock()  # held by who holds or stops a task, or ends a look
        self._begun = _thread.allocate_lock()
        self._begun.acquire()
        _thread.start_new_thread(self._run, (self._threads,))

    def begin(self, watched: Watched) -> None:
        """A look begins."""
        if self._away:  # it came upon something to wait for during an earlier look: another one takes its place
            self._away = False
            self._threads += 1
            _thread.start_new_thread(self._run, (self._threads,))
        self._turn += 1
        self._clock = time.pthread_getcpuclockid(_thread.get_ident())
        self._unused_then = self._unused()
        self._looked_at = watched
        if self._begun.locked():
            self._begun.release()

    def asking(self, ask: Callable[[list[int]], int], pids: list[int]) -> int:
        """What processes answer, as a part of a look."""
        self._asks = True
        try:
            return ask(pids)
        finally:
            self._asks = False

    def stop(self, watched: Watched) -> None:
        """Stop what is looked at, until the look ends. By the thread that looks: should it have to wait for that, it is relieved."""
        with self.changing:
            if not self._may_stop(watched):
                return
            self._stopped = []
        self._stopped = stand(watched)

    def _stop(self, watched: Watched) -> bool:
        """By the guard, who keeps the look from ending meanwhile."""
        if not self._may_stop(watched):
            return False
        self._stopped = stand(watched)
        return True

    def _may_stop(self, watched: Watched) -> bool:
        if self._looked_at is not watched or self._stopped is not None:
            return False
        watched.tell_stopped(True)
        return True

    def end_task(self, watched: Watched) -> None:
        """It is above its limit, and nothing of it shall run any more: if it stands still, before it goes on."""
        watched.over = True
        self._over(watched)

    def acted(self) -> bool:
        """Whether the guard held or stopped the task since the look began, or this was asked. What it is doing is waited for."""
        with self.changing:
            acted, self._acted = self._acted, False
            return acted

    def end(self) -> bool:
        """The look is over, and the task goes on; returns the same as `acted`."""
        with self.changing:
            watched, stopped = self._looked_at, self._stopped
        if stopped is not None and watched is not None:
            go(watched, stopped)  # nobody stops it again before all this is over
        with self.changing:
            if self._stopped is not None and watched is not None:
                if stopped is None:
                    go(watched, self._stopped)  # the guard was quicker
                self._stopped = None
                watched.tell_stopped(False)
            self._looked_at = None
            acted, self._acted = self._acted, False
            return acted

    def _run(self, me: int) -> None:
        while me == self._threads:
            self._begun.acquire()
            if me != self._threads:
                self._begun.release()  # it was not meant for us
                return
            self._look_on_while_it_lasts(me)

    def _look_on_while_it_lasts(self, me: int) -> None:
        turn, room, began = 0, 0, 0.0
        while (watched := self._looked_at) is not None and me == self._threads:
            waited = 0.0
            if turn != self._turn:
                turn, room, began = self._turn, watched.room, time.monotonic()
                waited = RELIEF_S if self._holder.holds > (watched.hold is not None) else HELD_S
                time.sleep(waited)
            self._relieve_of(watched, turn)
            wait = HELD_S if watched.hold is not None else min(PATIENCE_S, max(HELD_S, room / FASTEST))
            if self._turn == turn and self._looked_at is watched:
                time.sleep(max(wait - waited, 0))
            if self._turn == turn and self._looked_at is watched:
                self._away = True
                room = self._look_on(watched, began)
                if me == self._threads:
                    self._away = False

    def _relieve_of(self, watched: Watched, turn: int) -> None:
        with self.changing:
            if self._turn == turn and self._looked_at is watched:
                self._relieve(watched)

    def _look_on(self, watched: Watched, began: float) -> int:
        """Returns how much room the task has at most."""
        if self._stopped is not None and watched.crowded:
            return watched.room  # it is frozen
        if watched.hold is not None and self._stopped is None:
            if self._unused() - self._unused_then <= WAITS_S:
                return watched.room  # it stands still
            with self.changing:
                self._acted = self._stop(watched) or self._acted
        if self._asks:
            return self._look_on_blindly(watched, began)
        if watched.seen.entries > FEW:
            return watched.room  # one by one they take as long as the look
        found, now = at_least(watched), time.monotonic()
        if found > watched.limit:
            watched.used = found
            self.end_task(watched)
        elif watched.hold is None and watched.is_near(watched.limit - found, fast=watched.is_fast(found, now - watched.looked)):
            self._hold(watched)
        return max(watched.limit - found, 0)

    def _unused(self) -> float:
        """For how long the thread that looks was not on a CPU, in all. (What the task itself has used, the kernel says a tick late.)"""
        return time.monotonic() - time.clock_gettime(self._clock)

    def _look_on_blindly(self, watched: Watched, began: float) -> int:
        """By the time alone: whatever we ask its processes, we might have to wait with the look."""
        room = min(watched.room, watched.limit - watched.seen.total - watched.hidden) - FASTEST * (time.monotonic() - began)
        if room <= 0 and watched.hold is None and not watched.walled:
            self._hold(watched)
        return max(int(room), 0)

    def _hold(self, watched: Watched) -> None:
        with self.changing:
            if self._looked_at is watched and watched.hold is None and self._holder.able:
                watched.hold = self._holder.hold(watched.threads)
                watched.tell_stopped(self._stopped is not None)
                self._acted = True


def stand(watched: Watched) -> list[int]:
    """Make it stand still. Returns those to whom signals were sent.

    Few processes are stopped sooner by these: the kernel lets nobody freeze while it moves somebody from one group to another, 10-20 ms."""
    frozen = watched.freezer.freeze() if watched.freezer is not None and watched.crowded else set()
    return stop([pid for pid in watched.pids() if pid not in frozen])


def go(watched: Watched, stopped: list[int]) -> None:
    """Let it go on, unless somebody paused it meanwhile."""
    if watched.freezer is not None and watched.freezer.frozen:
        watched.freezer.go_on(watched.frozen)
    go_on(stopped, watched.paused)


def at_least(watched: Watched) -> int:
    """Bytes of files that are known, by their names or because they are open; asks no folder for its list."""
    found: dict[tuple[int, int], int] = {}
    for where, names in list(watched.seen.folders.items()):
        for name in list(names):  # the watch itself may be adding to them, and taking away
            try:
                of = os.lstat(f"{where}/{name}")
            except OSError:
                continue  # removed
            found[of.st_dev, of.st_ino] = max(of.st_blocks * 512, ENTRY)
    try:
        owner = os.stat(watched.folders[0]).st_uid
    except OSError:
        return 0  # the task has ended, and its folder was removed
    below = tuple(f"{folder}/" for folder in watched.folders)
    shared = owner == os.getuid()  # with files elsewhere; all files of a user that is nobody else's lie in its folders
    for pid in watched.pids()[:MANY]:  # it is the least that there is
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    of = entry.stat()
                    if stat.S_ISREG(of.st_mode) and (os.readlink(entry.path).startswith(below) if shared else of.st_uid == owner):
                        found[of.st_dev, of.st_ino] = of.st_blocks * 512
        except OSError:
            continue  # it ended while we looked
    return sum(found.values())
