"""Ends what a supervisor leaves running when it is killed together with the agent above it (H7).

A shell waits on a pipe from the supervisor, for a quarter of a megabyte and no time. A supervisor that ends as it should says so; when
the pipe closes without a word, the shell becomes this program, which ends every process in the agent's groups and every process that
carries its mark. It holds a lock for as long as it lives: the next supervisor waits for it, and what that one starts is never taken for
a leftover.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from typing import NamedTuple

from headway.agent import cgroups, tree
from headway.agent.process import INHERITED, INSTANCE

PASSED_ON = (*INHERITED, "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
LOCK_FD = 3
WAIT_S = 20.0  # for the one before; the next agent has killed what it could find itself by then
LOOKS = 50
PAUSE_S = 0.05
_WAIT = 'read -r _ || exec "$@"'
_END = "from headway.agent.survivor import main; main()"


class Survivor(NamedTuple):
    pid: int
    pipe: int

    def dismiss(self) -> None:
        """There is nothing left to end."""
        os.write(self.pipe, b"done\n")
        os.close(self.pipe)


def start(instance: str, work_dir: str) -> Survivor:
    """Called by a supervisor before it starts anything else."""
    lock = os.open(os.path.join(work_dir, "survivor.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _take(lock)
    theirs, ours = os.pipe()
    high = [os.dup(theirs), os.dup(lock)]
    pid = os.posix_spawn(
        "/bin/sh",
        ["/bin/sh", "-c", _WAIT, "sh", sys.executable, "-P", "-c", _END, instance],
        {name: os.environ[name] for name in PASSED_ON if name in os.environ},
        file_actions=[(os.POSIX_SPAWN_DUP2, high[0], 0), (os.POSIX_SPAWN_DUP2, high[1], LOCK_FD)],
        setsid=True,
        setsigmask=(),
    )
    for fd in (*high, theirs, lock):
        os.close(fd)
    return Survivor(pid, ours)


def _take(lock: int) -> None:
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_S)
        else:
            return


def main() -> None:
    instance = sys.argv[1]
    for _ in range(LOOKS):
        alive = cgroups.end(instance)
        killed = tree.kill([], tree.carries(f"{INSTANCE}={instance}"))
        if not alive and not killed:
            return
        time.sleep(PAUSE_S)
