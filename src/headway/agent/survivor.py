"""Ends what a supervisor leaves running when it is killed or frozen together with the agent above it (H7).

A shell waits on a pipe from the supervisor, for a quarter of a megabyte and no time. A supervisor that ends as it should says so; when
the pipe closes without a word, the shell becomes this program, which ends every process in the agent's groups and every process that
carries its mark. It holds a lock for so long: the next supervisor waits for it, and what that one starts is never taken for a leftover.
Then it removes what is left of the supervisor's containers from the record of their engine.

Beside it a second one waits for a timer that the supervisor sets to shortly after the end of its lease, again with each renewal. A
supervisor that is frozen cannot, and is killed; then the pipe closes. (The agent above would have done the same, were it not frozen too.)

When both are killed, the supervisor starts others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from typing import NamedTuple

from headway.agent import cgroups, tree
from headway.agent.clock import Timer, boottime
from headway.agent.process import INHERITED
from headway.agent.variables import INSTANCE
from headway.logs import log

PASSED_ON = (*INHERITED, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
LOCK_FD = 3
WAIT_S = 20.0  # for the one before; the next agent has killed what it could find itself by then
WAKE_S = 1.0  # so often, while it is waited for
AGAIN_S = 1.0  # between two tries to have another one in place of one that was killed
LOOKS = 50
PAUSE_S = 0.05
TIMER_FD = 4
FROZEN_S = 0.4  # after the end of the lease: the supervisor, and then the agent above it, have had their chance
# `kill` hits the supervisor only while it is the parent still. What the shell becomes stands in the environment: who stops everything
# called headway does not stop this.
_WAIT = """
(dd bs=8 count=1 <&4 >/dev/null 2>&1 && read -r _ _ _ parent _ <"/proc/$$/stat" && [ "$parent" = "$PPID" ] && kill -9 "$PPID") 3<&- &
read -r _ && kill -9 0
exec "$PYTHON" -P -c "$END" "$INSTANCE" 4<&-
"""
_END = "from headway.agent.survivor import main; main()"


class Survivor(NamedTuple):
    pid: int
    pipe: int
    timer: Timer

    def expect(self, lease: float | None) -> None:
        """The supervisor will be heard of again before its lease is over; None: it has nothing to lose."""
        self.timer.set(None if lease is None else lease + FROZEN_S)

    def dismiss(self) -> None:
        """There is nothing left to end."""
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self.pipe, b"done\n")
        self.close()

    def close(self) -> None:
        os.close(self.pipe)
        self.timer.close()


class Survivors:
    """One at a time, for as long as the supervisor lives."""

    def __init__(self, instance: str, work_dir: str, after: str = "") -> None:
        self._words = (instance, work_dir, after)
        self._now: Survivor | None = start(*self._words)
        self._lease: float | None = None
        self._again_at = 0.0

    @property
    def pid(self) -> int:
        return self._now.pid if self._now is not None else 0

    def expect(self, lease: float | None) -> None:
        self._lease = lease
        if self._now is not None:
            self._now.expect(lease)

    def ended(self, pid: int) -> None:
        """Somebody killed it: another one takes its place."""
        if self._now is not None and pid == self._now.pid:
            log("agent.survivor_gone", level="error")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # who waits for the timer
            self._now.close()
            self._now, self._again_at = None, 0.0
            self.look_after(boottime())

    def look_after(self, now: float) -> None:
        """Called now and then: where no process is to be had, it is tried again."""
        if self._now is not None or now < self._again_at:
            return
        self._again_at = now + AGAIN_S
        try:
            self._now = start(*self._words, wait_s=0.0)
        except OSError as error:
            log("agent.no_survivor", level="error", reason=str(error))
        else:
            self._now.expect(self._lease)

    def dismiss(self) -> None:
        if self._now is not None:
            self._now.dismiss()


def start(instance: str, work_dir: str, after: str = "", *, wait_s: float | None = None) -> Survivor:
    """Called by a supervisor before it starts anything else. `after`: a program for the shell, for when all is ended."""
    with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
        lock = os.open(os.path.join(work_dir, "survivor.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        given.callback(os.close, lock)
        _take(lock, instance, WAIT_S if wait_s is None else wait_s)
        theirs, ours = os.pipe()
        given.callback(os.close, theirs)
        kept.callback(os.close, ours)
        timer = Timer()
        kept.callback(timer.close)
        high: list[int] = []
        for fd in (theirs, lock, timer.fd):
            high.append(os.dup(fd))
            given.callback(os.close, high[-1])
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        pid = os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", _WAIT],
            {**passed_on, "PYTHON": sys.executable, "END": _END, "INSTANCE": instance, "AFTER": after},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in zip(high, (0, LOCK_FD, TIMER_FD), strict=True)],
            setsid=True,
            setsigmask=(),
        )
        kept.pop_all()  # without an error they are the survivor's
    return Survivor(pid, ours, timer)


def _take(lock: int, instance: str, wait_s: float) -> None:
    wake_at = now = time.monotonic()
    until = now + wait_s
    while now <= until:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if now >= wake_at:  # it may have been stopped, as everything that an agent is about to end
                wake_at = now + WAKE_S
                tree.send(tree.members([], tree.carries(f"INSTANCE={instance}", f"END={_END}")), signal.SIGCONT)
            time.sleep(PAUSE_S)
            now = time.monotonic()
        else:
            return


def main() -> None:
    instance = sys.argv[1]
    tree.send(tree.descendants([os.getpid()], tree.table()) - {os.getpid()}, signal.SIGKILL)  # who waits for the timer
    for _ in range(LOOKS):
        alive = cgroups.end(instance)
        killed = tree.kill([], tree.carries(f"{INSTANCE}={instance}"))
        if not alive and not killed:
            break
        time.sleep(PAUSE_S)
    if after := os.environ.get("AFTER"):
        os.close(LOCK_FD)  # what remains to be done is in nobody's way
        devnull = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(devnull, fd)
        os.execv("/bin/sh", ["/bin/sh", "-c", after])
