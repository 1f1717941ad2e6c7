"""What programs used, and which of their limits they hit: looked at while they run and when they have ended (G3)."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable

from headway.agent import watcher
from headway.agent.clock import boottime
from headway.agent.group import Limits, Used
from headway.agent.places import OWN_PROCESSES, Place
from headway.agent.process import Process, exit_code
from headway.agent.sandbox import Told, Usage
from headway.agent.starter import Counted
from headway.wire.exchange import Excess

Counts = resource.struct_rusage | Counted
QUIET_S = 0.02  # younger programs are left alone: most end before
ORPHANS = 1000
LINGER_S = 0.02  # between the end of a sandbox and the end of the first process in it


class Meter:
    def __init__(self, kill: Callable[[Process], None]) -> None:
        self._kill = kill
        self._watch_at = 0.0
        self._orphans: dict[int, Counts] = {}  # reaped here lately, though started by tasks

    def orphaned(self, pid: int, usage: Counts) -> None:
        """A child was reaped; it may be the first process of a sandbox."""
        self._orphans[pid] = usage

    def forget(self) -> None:
        """Ends of all that were reaped together have been looked at."""
        if len(self._orphans) > ORPHANS:
            self._orphans.clear()

    def used(self, process: Process, status: int, usage: Counts, box: Told) -> Usage:
        """What it used; and why it was ended, if that was for a limit."""
        place = process.place
        assert place is not None
        if box.first is not None:
            usage = self._usage_inside(box.first) or usage
        cpu_ms = round((usage.ru_utime + usage.ru_stime) * 1000)
        memory: int | None = None
        if (used := place.used()) is not None:
            memory, cpu_ms = used.peak, max(cpu_ms, used.cpu_ms)
            if process.excess is None and status:
                process.excess = excess_of(used, place)
        if memory is None:
            memory = _peak(usage) or process.resident or None
        if place.disk is not None and status and (process.excess is None or process.excess.what == "disk"):
            process.excess = _disk_excess(place, status)
        if status and process.excess is None:
            process.excess = box.excess
        return box.used or process.used or Usage(cpu_ms, memory, usage.ru_inblock * 512, usage.ru_oublock * 512)

    def _usage_inside(self, first: int) -> Counts | None:
        """Of everything in a sandbox. Its first process has waited for all others, and comes to us when the sandbox has ended."""
        until = boottime() + LINGER_S
        while first not in self._orphans and boottime() < until:
            try:
                pid, _, usage = os.wait4(first, os.WNOHANG)
            except ChildProcessError:
                break  # it never came to us
            if pid:
                return usage
            time.sleep(0.0005)
        return self._orphans.pop(first, None)

    def look(self, processes: dict[int, Process], now: float) -> None:
        """Tasks that go on though they hit a limit: one of their processes was killed or could not be started."""
        without: dict[int, Process] = {}
        for process in processes.values():
            place = process.place
            if place is None or process.excess is not None or now - process.since < QUIET_S:
                continue
            if place.disk is not None and place.disk.over:  # killed by the watch; what it may have started meanwhile ends now
                process.excess = Excess("disk", place.disk.used, place.disk.limit)
                self._kill(process)
                continue
            if place.slot is None or place.slot.group is None:
                without[process.pid] = process
                continue
            try:
                if not place.slot.settled:  # a container's launcher has no limits here, and has left the group it would be brought back to
                    place.slot.settled = place.limits == Limits() or place.slot.group.settle()
                excess = excess_of(place.slot.used(), place)
            except OSError:  # no descriptor is left to read its counters by: at the next look
                continue
            if excess is not None:
                process.excess = excess
                self._kill(process)
        if without and now >= self._watch_at:
            self._watch_at = now + watcher.EVERY_S
            self._look_without_groups(without)

    def _look_without_groups(self, processes: dict[int, Process]) -> None:
        found, memory = watcher.above({pid: p.place.limits for pid, p in processes.items() if p.place is not None})
        for pid, process in processes.items():
            process.resident = max(process.resident, memory.get(pid, 0))
            if (excess := found.get(pid)) is not None:
                process.excess = excess
                self._kill(process)


def excess_of(used: Used, place: Place) -> Excess | None:
    """The limit the kernel says was hit."""
    if used.kills > 0:
        return Excess("memory", max(used.peak or 0, place.limits.memory), place.limits.memory)
    if used.refused > 0:
        allowed = place.limits.processes - (OWN_PROCESSES if place.isolated else 0)
        return Excess("processes", allowed + 1, allowed)
    return None


def _disk_excess(place: Place, status: int) -> Excess | None:
    """Ended by the watch, or by the kernel because one file became too large, or by itself at the wall behind its limit."""
    disk = place.disk
    assert disk is not None
    ended = disk.over or exit_code(status, isolated=place.isolated) == -signal.SIGXFSZ
    if not ended and not place.isolated and not place.scratch.at_wall(place.dir):
        return None
    used = place.on_disk()
    if not ended and used < disk.limit:  # it may also have been told by the kernel, and given up by itself
        return None
    return Excess("disk", max(used, disk.limit), disk.limit)


def _peak(usage: Counts) -> int | None:
    """The most memory it used. A child starts from our own peak (Linux carries it over exec): below that it tells nothing."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > own else None
