"""The users that isolated tasks and what is prepared for them have outside: no two at a time have the same (H11).

Each agent of a machine has a span of them to itself, by a lock that ends with its holder, however that ends; the instance only says where
to begin to look, since two of them may begin at the same.
"""

from __future__ import annotations

import errno
import fcntl
import os

from headway.logs import log

SPAN = 1024  # users for each agent
SPANS = 64  # agents of a machine
LOCKS = "/run/headway-users"


class Users:
    def __init__(self, first: int, instance: str, locks: str = LOCKS) -> None:
        span, self._lock = _claim(locks, first, int(instance, 16) % SPANS)
        self.first = first + span * SPAN
        self._free = list(range(self.first + SPAN - 1, self.first, -1))

    def take(self) -> int:
        """One that nobody has; OSError when there is none."""
        if not self._free:
            raise OSError(errno.EAGAIN, f"all {SPAN - 1} users of isolated tasks on this node are in use: let it run fewer at a time")
        return self._free.pop()

    def give_back(self, user: int) -> None:
        self._free.append(user)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _claim(folder: str, first: int, begin: int) -> tuple[int, int]:
    """The number of a span, and the descriptor of its lock; -1 where there is none to be had."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for span in ((begin + n) % SPANS for n in range(SPANS)):
            lock = os.open(os.path.join(folder, f"{first}-{span}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return span, lock
        reason = f"{SPANS} agents of this machine have all of them"
    except OSError as error:
        reason = str(error)
    log("agent.users_not_claimed", level="warning", reason=reason, meaning="another agent of this machine may use the same users")
    return begin, -1
