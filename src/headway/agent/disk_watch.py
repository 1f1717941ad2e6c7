"""The watch on what tasks write into their own folders, as the supervisor uses it (G3). The watching is done by disk_process.

A thread of the supervisor would have to wait for the interpreter's lock, which one that starts a program may hold while the machine runs
something else: a task of 64 MiB was seen to write twice that. A process of its own waits for nobody.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time

from headway.agent.disk_freeze import Standstill
from headway.agent.disk_process import BETWEEN, ENTRIES, ENTRY, PAUSED, PAUSED_AT, SHARED_FD, SOCKET_FD, message
from headway.agent.group import Group
from headway.logs import log

PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
READY_S = 20.0
AGAIN_S = 1.0  # between two tries to have a watch
AT_ONCE = 50  # watches in a message
_WATCH = "from headway.agent.disk_process import main; main()"


class Watch:
    """One task's folders, as long as it runs."""

    def __init__(
        self, shared: mmap.mmap, number: int, at: int, folders: tuple[str, ...], limit: int, message: bytes, freezer: str
    ) -> None:
        self._shared, self.number, self.at = shared, number, at
        self.folders, self.limit, self.message, self.freezer = folders, limit, message, freezer

    @property
    def over(self) -> bool:
        return bool(ENTRY.unpack_from(self._shared, self.at)[1] == self.number)

    @property
    def used(self) -> int:
        """When it was found to be over its limit."""
        return int(ENTRY.unpack_from(self._shared, self.at)[2]) if self.over else 0

    @property
    def stands(self) -> bool:
        """Made to by somebody who looks at it, or who did when he was killed; or left so because it was paused."""
        *_, held, paused = ENTRY.unpack_from(self._shared, self.at)
        return bool(held < 0 or paused)

    def pause(self, on: bool, *, by_signals: bool = True) -> None:
        """Said before the processes are stopped, and before they go on: one that stops them for a look does not undo it. Whom he stopped by
        signals he lets go on all the same where a freezer holds them: nobody else would. A group that he froze he leaves frozen, also where
        the pause is by signals, and who resumes these knows of no freezer: it goes on here."""
        PAUSED.pack_into(self._shared, self.at + PAUSED_AT, (self.number if by_signals else -self.number) if on else 0)
        if not on and self.freezer:
            Standstill(self.freezer).go_on(lambda: False)


class DiskWatch:
    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}
        self._unsaid: list[Watch] = []
        self._made = 0
        self._free = list(range(0, ENTRIES * ENTRY.size, ENTRY.size))
        self._memory = os.memfd_create("headway-disk")
        os.ftruncate(self._memory, ENTRIES * ENTRY.size)
        self._shared = mmap.mmap(self._memory, ENTRIES * ENTRY.size)
        self._sock: socket.socket | None = None
        self._again_at = 0.0
        self.pid = 0

    def start(self) -> None:
        """Before the first task that is watched begins: from then on there is somebody who looks. OSError when there is not."""
        if self.pid:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        high: list[int] = []  # 3 and 4 may be sources too
        try:
            high.append(os.dup(theirs.fileno()))
            high.append(os.dup(self._memory))
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-c", _WATCH],
                {name: os.environ[name] for name in PASSED_ON if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, high[0], SOCKET_FD),
                    (os.POSIX_SPAWN_DUP2, high[1], SHARED_FD),
                ],
                setsid=True,
                setsigmask=(),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in high:
                os.close(fd)
        self._sock = ours
        self._unsaid = list(self._watches.values())
        ours.settimeout(READY_S)
        try:
            ours.recv(16)
        finally:
            self.say()  # one that is late hears of them too

    def add(self, folders: tuple[str, ...], limit: int, group: Group | None, pid: int | None, *, walled: str = "") -> Watch:
        """From the next `say` on. Its processes are those of the group, or the only one that is known. `walled`: where the
        kernel tells of the quotas that hold it, or nothing."""
        self._made += 1
        processes = group.folder if group is not None else str(pid)
        ours = int(group is not None and group.place is None)  # a thread that stands inside
        clock = group.clock if group is not None else ""
        at = self._free.pop()
        freezer, memory = (group.freezer, group.memory) if group is not None else ("", "")
        said = message(self._made, at, limit, processes, ours, (clock, walled, freezer, memory), folders)
        watch = Watch(self._shared, self._made, at, folders, limit, said, freezer)
        self._watches[watch.number] = watch
        ENTRY.pack_into(self._shared, watch.at, watch.number, 0, 0, 0, 0)
        self._unsaid.append(watch)
        return watch

    def say(self) -> None:
        """What was added, in one message: each of them wakes the other side."""
        while self._sock is not None and self._unsaid:
            part, self._unsaid = self._unsaid[:AT_ONCE], self._unsaid[AT_ONCE:]
            try:
                self._sock.send(BETWEEN.join(watch.message for watch in part))
            except OSError as error:  # it has just ended: its successor is told of all
                log("agent.disk_watch_deaf", level="warning", why=str(error))

    def remove(self, watch: Watch) -> None:
        """Seen there at the next look; it kills nobody any more from now on. The group shall not be frozen for its next task."""
        del self._watches[watch.number]
        stands = watch.stands
        ENTRY.pack_into(self._shared, watch.at, 0, 0, 0, 0, 0)
        if stands and watch.freezer:
            Standstill(watch.freezer).go_on(lambda: False)
        self._free.append(watch.at)

    def ended(self, pid: int) -> None:
        """Nobody ends it but by mistake or malice: another one takes over."""
        if pid != self.pid:
            return
        self.close()
        log("agent.disk_watch_gone", level="error", watched=len(self._watches))
        self._again_at = 0.0
        self.look_after()

    def look_after(self) -> None:
        """Called now and then: as long as something is to be watched, somebody does. Where no process is to be had, it is tried again."""
        if self.pid or not self._watches or time.monotonic() < self._again_at:
            return
        self._again_at = time.monotonic() + AGAIN_S
        try:
            self.start()
        except OSError as error:
            log("agent.no_disk_watch", level="error", watched=len(self._watches), reason=str(error))

    def close(self) -> None:
        """Without us it ends."""
        self.pid = 0
        if self._sock is not None:
            self._sock.close()
            self._sock = None
