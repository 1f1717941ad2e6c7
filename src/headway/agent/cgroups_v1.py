"""Cgroups version 1, also in hybrid set-ups: a group in each of the hierarchies memory, cpu, cpuacct, pids and blkio.

A *thread* may stand in a group of its own here, and what it starts begins inside: placing a task costs nothing (see slots). Throttled it
would hold up the whole supervisor, so it stands outside blkio, and in cpu where the task's share is, not its quota: tasks that live longer
than a moment are moved under those two. A task that forks at once takes no more from its neighbours than one process would. Groups are
pooled: making five costs 0.4-0.7 ms and moving a thread the first time 20 ms.

In hybrid set-ups tasks that live are moved into a group of the hierarchy of version 2 too: it has no controllers there, but what is in it
can be frozen and yet be killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass

from headway.agent.cgroup_files import MOUNT, counter, folders, own_groups, read, write
from headway.agent.group import LEAST_QUOTA_US, PERIOD_US, Limits, Used, kill

CONTROLLERS = ("memory", "cpu", "cpuacct", "pids", "blkio")
OF_THREAD = ("memory", "pids", "cpuacct", "cpu")
UNIFIED = "unified"  # the hierarchy of version 2 in hybrid set-ups
LATER = ("blkio", UNIFIED)
QUOTA = "quota"  # the group inside the one in cpu
KEEPER = "keeper"
YOUNG_S = 60.0
SHARES = 1024  # of one CPU
STARTING_SHARES, DYING_SHARES = 256, 8192
SELDOM = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes", "cpu.shares")


def own_folders() -> dict[str, str]:
    """For each controller, the folder of the group this process is in."""
    own = own_groups()
    found = {name: f"{MOUNT}/{name}{own[name]}" for name in CONTROLLERS if name in own}
    if "" in own and os.path.exists(f"{MOUNT}/{UNIFIED}/cgroup.controllers"):
        found[UNIFIED] = f"{MOUNT}/{UNIFIED}{own['']}"
    return found


@dataclass
class V1Hierarchy:
    paths: dict[str, str]  # controller -> folder of this agent

    def __post_init__(self) -> None:
        self.version = 1
        self.controllers = tuple(self.paths)
        self.clear()
        sweep()
        for path in self.paths.values():
            os.makedirs(path, exist_ok=True)
        if "cpu" in self.paths:
            write(f"{self.paths['cpu']}/cpu.shares", str(SHARES * len(os.sched_getaffinity(0))))

    def group(self, name: str) -> V1Group:
        return V1Group({controller: f"{path}/{name}" for controller, path in self.paths.items()})

    def keep(self, thread: int) -> None:
        """As long as this thread lives, these groups are somebody's."""
        path = f"{self.paths['pids']}/{KEEPER}"
        os.makedirs(path, exist_ok=True)
        write(f"{path}/tasks", str(thread))

    def go_home(self, thread: int) -> None:
        """Out of its slot, back to where the agent is."""
        for controller, path in self.paths.items():
            if controller in OF_THREAD:
                write(f"{os.path.dirname(path)}/tasks", str(thread))

    def clear(self) -> None:
        """Nothing of this agent, nor of one before it, stays."""
        remove_all(self.paths)


class V1Group:
    place: str | None = None

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = paths
        self.folder = paths["pids" if "pids" in paths else next(iter(paths))]
        self.clock = f"{paths['cpuacct']}/cpuacct.usage" if "cpuacct" in paths else ""
        self.memory = f"{paths['memory']}/memory.stat" if "memory" in paths else ""
        self.freezer = paths.get(UNIFIED, "")
        later = {"cpu": f"{paths['cpu']}/{QUOTA}"} if "cpu" in paths else {}
        self._later = later | {name: path for name, path in paths.items() if name in LATER}  # where tasks are moved
        for path in (*paths.values(), *later.values()):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        self._fds: dict[str, int] = {}
        self._limits = Limits()
        self._lives = False  # its task has lived longer than a moment
        self._shares = SHARES

    def _open(self, controller: str, file: str, flags: int = os.O_RDONLY) -> int:
        """Kept open: a third of the cost."""
        if file not in self._fds:
            self._fds[file] = os.open(f"{self._paths[controller]}/{file}", flags | os.O_CLOEXEC)
        return self._fds[file]

    def admit(self, thread: int) -> None:
        for controller in OF_THREAD:
            if controller in self._paths:
                write(f"{self._paths[controller]}/tasks", str(thread))

    def settle(self) -> bool:
        """Move what runs here under the throttles too; True when nothing was outside any more."""
        inside = set(self.pids())
        settled, self._lives = True, True
        if "cpu" in self._paths:
            self._share()
        for path in self._later.values():
            for pid in inside - set(map(int, read(f"{path}/cgroup.procs").split())):
                settled = False
                with contextlib.suppress(OSError):  # it has ended
                    write(f"{path}/cgroup.procs", str(pid))
        return settled

    def empty(self) -> bool:
        """Not even a dead process that nobody has waited for: it would count."""
        return int(os.pread(self._open("pids", "pids.current"), 32, 0)) <= 1

    def limit(self, limits: Limits, device: str) -> None:
        old, self._limits = self._limits, limits
        if limits.memory != old.memory and not self._limit_memory(limits.memory, old.memory):
            self._limits = limits._replace(memory=old.memory)
        if limits.processes != old.processes:
            write(f"{self._paths['pids']}/pids.max", str(limits.processes + 1) if limits.processes else "max")  # our thread is one
        if "cpu" in self._paths:
            self._share()
            if limits.cpus_milli != old.cpus_milli:
                self._limit_cpu(limits.cpus_milli)
        if device and "blkio" in self._paths:
            for what, new, before in (("iops", limits.iops, old.iops), ("bps", limits.bandwidth, old.bandwidth)):
                if new != before:
                    for way in ("read", "write"):
                        write(f"{self._paths['blkio']}/blkio.throttle.{way}_{what}_device", f"{device} {new}")

    def _limit_memory(self, memory: int, before: int) -> bool:
        """False when what is in there is more than that already, and stays."""
        path = self._paths["memory"]
        files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]  # the second: no way out into swap
        files = [file for file in files if file in self._fds or os.path.exists(f"{path}/{file}")]
        raised = not memory or 0 < before < memory
        try:
            for file in reversed(files) if raised else files:  # memory may never exceed memory with swap
                os.pwrite(self._open("memory", file, os.O_RDWR), str(memory or -1).encode(), 0)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def _share(self) -> None:
        """Of the CPU, against other tasks. Not too little while a program is started: its thread must not wait long for its turn."""
        milli = self._limits.share_milli or self._limits.cpus_milli
        self._set_shares(max(2 if self._lives else STARTING_SHARES, SHARES * milli // 1000) if milli else SHARES)

    def _set_shares(self, shares: int) -> None:
        if shares != self._shares:
            self._shares = shares
            os.pwrite(self._open("cpu", "cpu.shares", os.O_RDWR), str(shares).encode(), 0)

    def _limit_cpu(self, milli: int) -> None:
        path = self._later["cpu"]
        quota = max(LEAST_QUOTA_US, PERIOD_US * milli // 1000) if milli else -1
        if os.path.exists(f"{path}/cpu.cfs_quota_us"):
            write(f"{path}/cpu.cfs_quota_us", str(quota))

    def begin(self) -> bool:
        self._lives = False
        if "cpu" in self._paths:
            self._share()
        for file in SELDOM:  # every open file of ours costs each program that is started 0.1 µs
            if file in self._fds:
                os.close(self._fds.pop(file))
        os.pwrite(self._open("memory", "memory.max_usage_in_bytes", os.O_RDWR), b"0", 0)
        return False

    def used(self) -> Used:
        peak = int(os.pread(self._open("memory", "memory.max_usage_in_bytes", os.O_RDWR), 32, 0))
        cpu = os.pread(self._open("cpuacct", "cpuacct.usage"), 32, 0) if "cpuacct" in self._paths else b"0"
        kills = counter(os.pread(self._open("memory", "memory.oom_control"), 200, 0), b"oom_kill ")
        refused = counter(os.pread(self._open("pids", "pids.events"), 200, 0), b"max ")
        return Used(peak, int(cpu) // 1_000_000, kills, refused)

    def pids(self) -> list[int]:
        """Without ourselves: our thread stands in here too. Opened anew each time: the list is the one of the opening."""
        me = os.getpid()
        return [pid for pid in map(int, read(f"{self.folder}/cgroup.procs").split()) if pid not in (me, 0)]

    def close_door(self) -> None:
        if "pids" in self._paths:
            write(f"{self._paths['pids']}/pids.max", "0")
            self._limits = self._limits._replace(processes=-1)  # set again for the next task
        if "cpu" in self._paths:  # dying takes time of the CPU too: whoever ends shall not wait for a quota
            self._set_shares(DYING_SHARES)
            self._limit_cpu(0)
            self._limits = self._limits._replace(cpus_milli=-1)

    def empty_cache(self, above: int) -> None:
        """Files that earlier tasks read count here until they are dropped."""
        if int(os.pread(self._open("memory", "memory.usage_in_bytes"), 32, 0)) > above:
            with contextlib.suppress(OSError):
                write(f"{self._paths['memory']}/memory.force_empty", "0")

    def remove(self) -> None:
        """The thread that stood inside is gone or was moved away."""
        kill(self)
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        for path in (*self._later.values(), *self._paths.values()):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def sweep() -> list[str]:
    """Remove the groups of agents that were killed with everything they had (version 1); returns their names."""
    parents = own_folders()
    if "pids" not in parents:
        return []
    gone = []
    # Not in all hierarchies need we stand where the one stood that made them: another may have swept only a part.
    for name in sorted({name for parent in parents.values() for name in folders(parent) if name.startswith("headway-")}):
        bases = [f"{parent}/{name}" for parent in parents.values() if os.path.isdir(f"{parent}/{name}")]
        if _is_forsaken(f"{parents['pids']}/{name}", bases):
            remove_all({controller: f"{parent}/{name}" for controller, parent in parents.items()})
            gone.append(name)
    return gone


def _is_forsaken(base: str, bases: list[str]) -> bool:
    """No keeper stands in it, and nobody made a place in it lately: one that is being made has no keeper yet."""
    try:
        young = any(time.time() - os.stat(path).st_mtime < YOUNG_S for path in bases)
    except OSError:
        return False
    return not young and not read(f"{base}/{KEEPER}/tasks").strip()


def remove_all(paths: dict[str, str]) -> None:
    for name in {name for path in paths.values() for name in folders(path)}:
        there = {controller: f"{path}/{name}" for controller, path in paths.items() if os.path.isdir(f"{path}/{name}")}
        if not there:
            continue  # another agent sweeps too
        with contextlib.suppress(OSError):
            V1Group(there).remove()
    for path in paths.values():
        with contextlib.suppress(OSError):
            os.rmdir(path)
