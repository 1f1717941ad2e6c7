"""What a container uses, seen from outside: memory, processes, CPU and I/O in its cgroups, and what it writes into its own files (G3 H2).

The engine limits memory, CPUs and processes, but does not say reliably which of them a container was ended for, and nothing about what it
used; of the disk it knows no limit at all. So the launcher of a container (contain.py) looks every now and then. What is above its limit is
ended here, and what is there told.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from headway.agent.contain_disk import ContainerDisk
from headway.agent.container_group import Search, groups_of, id_in, written_by
from headway.agent.container_use import Use
from headway.agent.disk_hold import end
from headway.agent.disk_members import Whole
from headway.agent.kernel_log import KernelLog

NEARLY = 0.95  # of the limit: a container killed so close to it ran out of memory
EVERY_S = 0.02
# While it is being made: an engine takes some ten milliseconds from its first process to its program, which must not be the first to write.
SOON_S = 0.005


class Limits(NamedTuple):
    """What it may use; 0 is anything."""

    memory: int = 0
    processes: int = 0
    disk: int = 0


class Watch:
    def __init__(self, limits: Limits, notes: str) -> None:
        """Before the engine is called. `notes`: the folder where it tells the container's id."""
        self.limits = limits
        self.over: tuple[str, int, int] | None = None  # what, used, allowed
        self.refusals = -1  # a descriptor that tells when a process is refused, once there is one
        self._notes = notes
        self._container = ""
        self._search = Search()
        self._log = KernelLog(limits.processes > 0)
        self._seen: dict[str, int] = {}
        self._use = Use({})
        self._members: Whole | None = None
        self._disk: ContainerDisk | None = None

    def begin(self, client: int, folder: str) -> None:
        """The engine's client was started. `folder`: what the container shares with the agent."""
        if self.limits.disk:
            self._disk = ContainerDisk(folder, self.limits.disk, client)

    def look(self) -> float:
        """What is above a limit is ended; returns when to look again, in seconds."""
        if self._members is None:
            self._find()
        wait = EVERY_S if self._members is not None or not self._container else SOON_S
        if self._members is not None:
            self._look_at_groups(self._members)
        if self._disk is not None:
            wait = min(wait, self._disk.look())
        return wait

    def close(self) -> None:
        """The container has ended, and its groups are often still there: the last look."""
        if self._members is not None:
            self._look_at_groups(self._members)
        if self.refusals >= 0:
            os.close(self.refusals)
        self._container = self._container or id_in(self._notes)
        if self.over is None and self._container and self._log.tells_of_refusal(self._container):
            self._too_many()
        self._log.close()
        if self._disk is not None:
            self._disk.close()
            if self.over is None and (used := self._disk.used):
                self.over = ("disk", used, self.limits.disk)

    def ended_for_memory(self) -> None:
        """Somebody who knows says so."""
        if self.over is None:
            self.over = ("memory", max(self._seen.get("peak", 0), self.limits.memory), self.limits.memory)

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed for its memory, as far as the last look tells."""
        return bool(self.limits.memory and (self._seen.get("kills") or self._seen.get("peak", 0) >= self.limits.memory * NEARLY))

    def said(self) -> dict[str, int]:
        """What to tell, by names that the agent knows (sandbox.told)."""
        found = {name: value for name, value in self._seen.items() if name != "kills"}
        if self.over is not None:
            what, used, allowed = self.over
            found |= {f"over-{what}": used, "allowed": allowed}
        return found

    def _find(self) -> None:
        self._container = self._container or id_in(self._notes)
        first = self._search.first(self._container) if self._container else None
        if first is None or not (groups := groups_of(first, self._container)):
            return
        self._use, inner = Use(groups), groups_of(first) or groups  # an engine may make one more inside
        clock = groups.get("cpuacct")
        self._members = Whole(inner.get("pids") or inner[""], f"{clock}/cpuacct.usage" if clock else "")
        if self._disk is not None:
            self._disk.found(written_by(first), self._members)
        if self.limits.processes and (events := self._use.file("pids", "pids.events")) is not None:
            with contextlib.suppress(OSError):  # no such controller there: the engine could not limit them either
                self.refusals = os.open(events, os.O_RDONLY | os.O_CLOEXEC)

    def _look_at_groups(self, members: Whole) -> None:
        if self.over is None:
            self._seen = {name: max(value, self._seen.get(name, 0)) for name, value in self._use.now().items()}
            if self._seen["kills"] and self.limits.memory:  # perhaps only one of its processes
                self.ended_for_memory()
            elif self.limits.processes and self._refused():
                self._too_many()
        if self.over is not None:
            end(members.pids())

    def _refused(self) -> int:
        if self.refusals < 0:
            return 0
        try:
            return int(os.pread(self.refusals, 64, 0).split()[1])  # reading is also what makes it tell of the next
        except OSError:  # its group is gone, of which the descriptor would tell without end
            os.close(self.refusals)
            self.refusals = -1
            return 0

    def _too_many(self) -> None:
        self.over = ("processes", self.limits.processes + 1, self.limits.processes)
