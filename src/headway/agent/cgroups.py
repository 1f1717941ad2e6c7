"""Kernel limits by cgroups: one group for each running task, in the agent's own part of the hierarchy (G3).

Version 1 (or hybrid): a group in each of the hierarchies memory, cpu, cpuacct, pids and blkio. A *thread* may stand in a group of its own
there, and what it starts begins inside: placing a task costs nothing (see slots). It stands in memory, pids and cpuacct only: throttled by
cpu or blkio it would hold up the whole supervisor, so tasks that live longer than a moment are moved into those two. Version 2: one
unified group; the task is moved into it before its program is loaded. Groups are pooled: making five costs 0.4-0.7 ms and moving a thread
the first time 20 ms.

Everything lives below the group the agent itself was started in, so limits set from outside hold for agent and tasks together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headway.agent import tree

MOUNT = "/sys/fs/cgroup"
V1 = ("memory", "cpu", "cpuacct", "pids", "blkio")
V2 = ("memory", "cpu", "pids", "io")
NEEDED = ("memory", "pids")
V1_THREAD = ("memory", "pids", "cpuacct")
V1_LATER = ("cpu", "blkio")
KEEPER = "keeper"
YOUNG_S = 60.0
PERIOD_US = 100_000
SHARES = 1024  # of one CPU
LEAST_QUOTA_US = 1000  # the kernel takes no less
KILL_S = 0.2  # a process in the middle of a long system call takes its time; its slot is looked after later


class Limits(NamedTuple):
    """What one task may use at a time; 0 is no limit."""

    cpus_milli: int = 0
    memory: int = 0
    processes: int = 0
    iops: int = 0
    bandwidth: int = 0  # bytes a second


class Used(NamedTuple):
    """What a group has counted. All but the peak rise for ever: a task's part is the difference."""

    peak: int | None
    cpu_ms: int
    kills: int  # by the out-of-memory killer
    refused: int  # forks beyond the limit


class Group(Protocol):
    """The group of one slot."""

    place: str | None  # the cgroup.procs a new process must be moved by; None: the starting thread stands inside already

    def admit(self, thread: int) -> None: ...
    def limit(self, limits: Limits, device: str) -> None: ...
    def begin(self) -> None: ...
    def settle(self) -> bool: ...
    def empty(self) -> bool: ...
    def used(self) -> Used: ...
    def pids(self) -> list[int]: ...
    def close_door(self) -> None: ...
    def empty_cache(self, above: int) -> None: ...
    def remove(self) -> None: ...


class Hierarchy(Protocol):
    """Where this agent's groups are."""

    version: int
    controllers: tuple[str, ...]

    def group(self, name: str) -> Group: ...
    def keep(self, thread: int) -> None: ...
    def go_home(self, thread: int) -> None: ...
    def clear(self) -> None: ...


def find(instance: str) -> Hierarchy | None:
    """The hierarchy this process may make groups in, or None: then rlimits and a watcher have to do."""
    there = available()
    if there is None:
        return None
    version, paths = there
    if version == 1:
        return _V1({name: f"{path}/headway-{instance}" for name, path in paths.items()})
    return _V2(next(iter(paths.values())), instance, tuple(paths))


def available() -> tuple[int, dict[str, str]] | None:
    """The version, and for each controller where this process is in it and may make groups. Changes nothing."""
    own = _own()
    v1 = {name: f"{MOUNT}/{name}{own[name]}" for name in V1 if name in own and _usable(f"{MOUNT}/{name}{own[name]}")}
    if all(name in v1 for name in NEEDED):
        return 1, v1
    if "" not in own or not os.path.exists(f"{MOUNT}/cgroup.controllers"):
        return None
    path = f"{MOUNT}{own['']}"
    controllers = [name for name in V2 if name in _read(f"{path}/cgroup.controllers").split()]
    if not _usable(path) or not all(name in controllers for name in NEEDED) or not _is_ours_alone(path):
        return None
    return 2, dict.fromkeys(controllers, path)


def _is_ours_alone(path: str) -> bool:
    """Version 2 wants a group with groups in it to hold no process: we may move our own into one, not those of others."""
    processes = tree.table()
    ours = tree.descendants([os.getppid()], processes)
    return all(int(pid) in ours for pid in _read(f"{path}/cgroup.procs").split())


def sweep() -> list[str]:
    """Remove the groups of agents that were killed with everything they had (version 1); returns their names."""
    own = _own()
    parents = {name: f"{MOUNT}/{name}{own[name]}" for name in V1 if name in own}
    if "pids" not in parents:
        return []
    gone = []
    # Not in all hierarchies need we stand where the one stood that made them: another may have swept only a part.
    for name in sorted({name for parent in parents.values() for name in _folders(parent) if name.startswith("headway-")}):
        bases = [f"{parent}/{name}" for parent in parents.values() if os.path.isdir(f"{parent}/{name}")]
        if _is_forsaken(f"{parents['pids']}/{name}", bases):
            _remove_all({controller: f"{parent}/{name}" for controller, parent in parents.items()})
            gone.append(name)
    return gone


def end(instance: str) -> bool:
    """End whatever runs in the groups of an agent that is gone, and remove them; False when there are none left."""
    name, own = f"headway-{instance}", _own()
    v1 = {controller: f"{MOUNT}/{controller}{own[controller]}/{name}" for controller in V1 if controller in own}
    v2 = f"{MOUNT}{os.path.dirname(own.get('', ''))}/{name}"  # we are in a group beside it
    if found := {controller: path for controller, path in v1.items() if os.path.isdir(path)}:
        _remove_all(found)
    if os.path.isdir(v2):
        _remove_v2(v2, ())
    return any(os.path.isdir(path) for path in (*v1.values(), v2))


def _is_forsaken(base: str, bases: list[str]) -> bool:
    """No keeper stands in it, and nobody made a place in it lately: one that is being made has no keeper yet."""
    try:
        young = any(time.time() - os.stat(path).st_mtime < YOUNG_S for path in bases)
    except OSError:
        return False
    return not young and not _read(f"{base}/{KEEPER}/tasks").strip()


def _remove_all(paths: dict[str, str]) -> None:
    for name in {name for path in paths.values() for name in _folders(path)}:
        there = {controller: f"{path}/{name}" for controller, path in paths.items() if os.path.isdir(f"{path}/{name}")}
        with contextlib.suppress(OSError):  # another agent sweeps too
            _V1Group(there).remove()
    for path in paths.values():
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _own() -> dict[str, str]:
    """The groups this process is in, by controller; the unified hierarchy's under an empty name."""
    lines = [line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines()]
    return {name: path.rstrip("/") for _, names, path in lines for name in names.split(",")}


def device_of(path: str) -> str:
    """`major:minor` of the disk that holds a folder, for the throttles; empty when it is no block device."""
    number = os.stat(path).st_dev
    major, minor = os.major(number), os.minor(number)
    base = f"/sys/dev/block/{major}:{minor}"
    if not os.path.exists(base):
        return ""
    if os.path.exists(f"{base}/partition"):  # throttles count on the whole disk
        return _read(f"{os.path.dirname(os.path.realpath(base))}/dev").strip()
    return f"{major}:{minor}"


def kill(group: Group) -> bool:
    """End whatever is inside, and nothing can be started while we do. True once it is empty."""
    inside = group.pids()
    if not inside:
        return True
    group.close_door()
    until = time.monotonic() + KILL_S
    while inside and time.monotonic() < until:
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.0005)
        inside = group.pids()
    return not inside


# --- version 1 ---------------------------------------------------------------------------------------------------------


@dataclass
class _V1:
    paths: dict[str, str]  # controller -> folder of this agent

    def __post_init__(self) -> None:
        self.version = 1
        self.controllers = tuple(self.paths)
        self.clear()
        sweep()
        for path in self.paths.values():
            os.makedirs(path, exist_ok=True)
        if "cpu" in self.paths:
            _write(f"{self.paths['cpu']}/cpu.shares", str(SHARES * len(os.sched_getaffinity(0))))

    def group(self, name: str) -> _V1Group:
        return _V1Group({controller: f"{path}/{name}" for controller, path in self.paths.items()})

    def keep(self, thread: int) -> None:
        """As long as this thread lives, these groups are somebody's."""
        path = f"{self.paths['pids']}/{KEEPER}"
        os.makedirs(path, exist_ok=True)
        _write(f"{path}/tasks", str(thread))

    def go_home(self, thread: int) -> None:
        """Out of its slot, back to where the agent is."""
        for path in self.paths.values():
            _write(f"{os.path.dirname(path)}/tasks", str(thread))

    def clear(self) -> None:
        """Nothing of this agent, nor of one before it, stays."""
        _remove_all(self.paths)


class _V1Group:
    place: str | None = None

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = paths
        for path in paths.values():
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        self._fds: dict[str, int] = {}
        self._limits = Limits()

    def _open(self, controller: str, file: str, flags: int = os.O_RDONLY) -> int:
        """Kept open: a third of the cost."""
        if file not in self._fds:
            self._fds[file] = os.open(f"{self._paths[controller]}/{file}", flags | os.O_CLOEXEC)
        return self._fds[file]

    def admit(self, thread: int) -> None:
        for controller in V1_THREAD:
            if controller in self._paths:
                _write(f"{self._paths[controller]}/tasks", str(thread))

    def settle(self) -> bool:
        """Move what runs here under the throttles too; True when nothing was outside any more."""
        inside = set(self.pids())
        settled = True
        for controller in V1_LATER:
            path = self._paths.get(controller)
            for pid in inside - set(map(int, _read(f"{path}/cgroup.procs").split())) if path else ():
                settled = False
                with contextlib.suppress(OSError):  # it has ended
                    _write(f"{path}/cgroup.procs", str(pid))
        return settled

    def empty(self) -> bool:
        """Not even a dead process that nobody has waited for: it would count."""
        return int(os.pread(self._open("pids", "pids.current"), 32, 0)) <= 1

    def limit(self, limits: Limits, device: str) -> None:
        old, self._limits = self._limits, limits
        if limits.memory != old.memory:
            self._limit_memory(limits.memory)
        if limits.processes != old.processes:
            _write(f"{self._paths['pids']}/pids.max", str(limits.processes + 1) if limits.processes else "max")  # our thread is one
        if limits.cpus_milli != old.cpus_milli and "cpu" in self._paths:
            self._limit_cpu(limits.cpus_milli)
        if device and "blkio" in self._paths:
            for what, new, before in (("iops", limits.iops, old.iops), ("bps", limits.bandwidth, old.bandwidth)):
                if new != before:
                    for way in ("read", "write"):
                        _write(f"{self._paths['blkio']}/blkio.throttle.{way}_{what}_device", f"{device} {new}")

    def _limit_memory(self, memory: int) -> None:
        path = self._paths["memory"]
        files = [f"{path}/memory.limit_in_bytes", f"{path}/memory.memsw.limit_in_bytes"]  # the second: no way out into swap
        files = [file for file in files if os.path.exists(file)]
        for file in reversed(files):  # memory may not exceed memory with swap: first away with both, then down in order
            _write(file, "-1")
        for file in files if memory else ():
            _write(file, str(memory))

    def _limit_cpu(self, milli: int) -> None:
        path = self._paths["cpu"]
        _write(f"{path}/cpu.shares", str(max(2, SHARES * milli // 1000)) if milli else str(SHARES))
        quota = max(LEAST_QUOTA_US, PERIOD_US * milli // 1000) if milli else -1
        if os.path.exists(f"{path}/cpu.cfs_quota_us"):
            _write(f"{path}/cpu.cfs_quota_us", str(quota))

    def begin(self) -> None:
        os.pwrite(self._open("memory", "memory.max_usage_in_bytes", os.O_RDWR), b"0", 0)

    def used(self) -> Used:
        peak = int(os.pread(self._open("memory", "memory.max_usage_in_bytes", os.O_RDWR), 32, 0))
        cpu = os.pread(self._open("cpuacct", "cpuacct.usage"), 32, 0) if "cpuacct" in self._paths else b"0"
        kills = _counter(os.pread(self._open("memory", "memory.oom_control"), 200, 0), b"oom_kill ")
        refused = _counter(os.pread(self._open("pids", "pids.events"), 200, 0), b"max ")
        return Used(peak, int(cpu) // 1_000_000, kills, refused)

    def pids(self) -> list[int]:
        """Without ourselves: our thread stands in here too. Opened anew each time: the list is the one of the opening."""
        me = os.getpid()
        text = _read(f"{self._paths['pids' if 'pids' in self._paths else next(iter(self._paths))]}/cgroup.procs")
        return [pid for pid in map(int, text.split()) if pid not in (me, 0)]

    def close_door(self) -> None:
        if "pids" in self._paths:
            _write(f"{self._paths['pids']}/pids.max", "0")
            self._limits = self._limits._replace(processes=-1)  # set again for the next task

    def empty_cache(self, above: int) -> None:
        """Files that earlier tasks read count here until they are dropped."""
        path = self._paths["memory"]
        if int(_read(f"{path}/memory.usage_in_bytes") or 0) > above:
            with contextlib.suppress(OSError):
                _write(f"{path}/memory.force_empty", "0")

    def remove(self) -> None:
        """The thread that stood inside is gone or was moved away."""
        kill(self)
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        for path in self._paths.values():
            with contextlib.suppress(OSError):
                os.rmdir(path)


# --- version 2 ---------------------------------------------------------------------------------------------------------


@dataclass
class _V2:
    path: str  # the agent's own group, delegated to it
    instance: str
    controllers: tuple[str, ...]

    def __post_init__(self) -> None:
        self.version = 2
        self.base = f"{self.path}/headway-{self.instance}"
        self.clear()
        leaf = f"{self.path}/headway-agent"  # a group with controllers for its children may hold no process itself
        os.makedirs(leaf, exist_ok=True)
        for pid in _read(f"{self.path}/cgroup.procs").split():
            with contextlib.suppress(OSError):
                _write(f"{leaf}/cgroup.procs", pid)
        os.makedirs(self.base, exist_ok=True)
        words = " ".join(f"+{name}" for name in self.controllers)
        if words:
            _write(f"{self.path}/cgroup.subtree_control", words)
            _write(f"{self.base}/cgroup.subtree_control", words)

    def group(self, name: str) -> _V2Group:
        return _V2Group(f"{self.base}/{name}", self.controllers)

    def keep(self, thread: int) -> None:
        """Threads cannot stand in groups of their own here."""

    def go_home(self, thread: int) -> None:
        """Threads never left."""

    def clear(self) -> None:
        _remove_v2(self.base, self.controllers)


def _remove_v2(base: str, controllers: tuple[str, ...]) -> None:
    for name in _folders(base):
        _V2Group(f"{base}/{name}", controllers).remove()
    with contextlib.suppress(OSError):
        os.rmdir(base)


class _V2Group:
    def __init__(self, path: str, controllers: tuple[str, ...]) -> None:
        self._path, self._controllers = path, controllers
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.place: str | None = f"{path}/cgroup.procs"
        self._limits = Limits()

    def admit(self, thread: int) -> None:
        """Threads cannot stand in groups of their own here."""

    def settle(self) -> bool:
        """Everything is under every limit from the beginning."""
        return True

    def empty(self) -> bool:
        text = _read(f"{self._path}/pids.current")
        return int(text) == 0 if text else not self.pids()

    def limit(self, limits: Limits, device: str) -> None:
        old, self._limits = self._limits, limits
        if limits == old:
            return
        if "memory" in self._controllers:
            _write(f"{self._path}/memory.max", str(limits.memory or "max"))
            _write(f"{self._path}/memory.oom.group", "1")
            if os.path.exists(f"{self._path}/memory.swap.max"):
                _write(f"{self._path}/memory.swap.max", "0")
        if "pids" in self._controllers:
            _write(f"{self._path}/pids.max", str(limits.processes or "max"))
        if "cpu" in self._controllers:
            milli = limits.cpus_milli
            _write(f"{self._path}/cpu.weight", str(max(1, min(10_000, milli // 10))) if milli else "100")
            quota = max(LEAST_QUOTA_US, PERIOD_US * milli // 1000)
            _write(f"{self._path}/cpu.max", f"{quota} {PERIOD_US}" if milli else f"max {PERIOD_US}")
        if "io" in self._controllers and device:
            iops, rate = limits.iops or "max", limits.bandwidth or "max"
            _write(f"{self._path}/io.max", f"{device} riops={iops} wiops={iops} rbps={rate} wbps={rate}")

    def begin(self) -> None:
        if os.path.exists(f"{self._path}/memory.peak"):
            with contextlib.suppress(OSError):  # a kernel before 6.12 cannot begin again: the peak is then of all tasks of this slot
                _write(f"{self._path}/memory.peak", "0")

    def used(self) -> Used:
        peak = _read(f"{self._path}/memory.peak").strip()
        cpu = _counter(_read(f"{self._path}/cpu.stat").encode(), b"usage_usec ")
        kills = _counter(_read(f"{self._path}/memory.events").encode(), b"oom_kill ")
        refused = _counter(_read(f"{self._path}/pids.events").encode(), b"max ")
        return Used(int(peak) if peak else None, cpu // 1000, kills, refused)

    def pids(self) -> list[int]:
        return [int(pid) for pid in _read(f"{self._path}/cgroup.procs").split() if pid != "0"]

    def close_door(self) -> None:
        if os.path.exists(f"{self._path}/cgroup.kill"):
            _write(f"{self._path}/cgroup.kill", "1")

    def empty_cache(self, above: int) -> None:
        if int(_read(f"{self._path}/memory.current") or 0) > above and os.path.exists(f"{self._path}/memory.reclaim"):
            with contextlib.suppress(OSError):
                _write(f"{self._path}/memory.reclaim", "1G")

    def remove(self) -> None:
        kill(self)
        with contextlib.suppress(OSError):
            os.rmdir(self._path)


# --- files -------------------------------------------------------------------------------------------------------------


def _usable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK)


def _folders(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _counter(text: bytes, name: bytes) -> int:
    """The number behind a name at the beginning of a line."""
    for line in text.splitlines():
        if line.startswith(name):
            return int(line[len(name) :])
    return 0
