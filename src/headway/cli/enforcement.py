"""What an agent on this machine would enforce, and what not: for `doctor` (G3 H11)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.cli.findings import Check

if TYPE_CHECKING:
    from headway.config import Settings

_HOW = {"memory": "memory", "pids": "processes", "cpu": "CPU", "blkio": "IOPS and disk bandwidth", "io": "IOPS and disk bandwidth"}
_ALL = ("memory", "processes", "CPU", "IOPS and disk bandwidth")


def enforced(settings: Settings) -> Iterator[Check]:
    if sys.platform != "linux":
        yield Check("limits", "warn", "only the execution cap", "kernel limits and the sandbox need Linux")
        return
    from headway.agent import cgroups

    there = cgroups.available() if settings.cgroups == "use" else None
    yield _limits(there)
    if there is not None:
        yield _starts()
    yield _disk(settings, there)
    yield _sandbox(settings)
    yield _users()


def _limits(there: tuple[int, dict[str, str]] | None) -> Check:
    if there is None:
        todo = "run the agent as root, or delegate a cgroup to it (docs/operators-cgroups.md)"
        return Check("limits", "warn", "no cgroups: memory and processes are watched every 0.25 s, CPU and I/O are not limited", todo)
    version, controllers = there
    held = [_HOW[name] for name in controllers if name in _HOW]
    missing = [what for what in _ALL if what not in held]
    found = f"cgroups version {version}: {', '.join(held)}"
    if missing:
        return Check("limits", "warn", f"{found}; not {', '.join(missing)}", "enable these controllers for the agent's cgroup")
    return Check("limits", "ok", found)


def _starts() -> Check:
    """Where there are groups, each slot has a thread that can start programs without the interpreter."""
    from headway.agent.descriptors import can_part
    from headway.agent.starter import LIBRARY, library

    if can_part() and library() is not None:
        return Check("starts", "ok", "programs are started by compiled code, on all cores")
    if os.path.exists(LIBRARY):
        todo = "Linux 5.9 or newer, and no filter that forbids pidfd_getfd, close_range or clone3"
    else:
        todo = "have a C compiler when Headway is installed (Debian: gcc, libc6-dev); so far for x86_64 only"
    return Check("starts", "warn", "programs are started by Python: a fifth fewer a second", todo)


def _disk(settings: Settings, there: tuple[int, dict[str, str]] | None) -> Check:
    """Whether the kernel can hold it, or the watch on disks may be urgent: tried in a thread, which has a policy of its own."""
    from concurrent.futures import ThreadPoolExecutor

    from headway.agent import cgroups
    from headway.agent.disk_hold import hurry
    from headway.agent.places import box_folder
    from headway.agent.walls import below

    work = settings.work_dir or settings.data_dir
    folders = {"tasks": work, "isolated tasks": os.path.dirname(box_folder(settings.sandbox_dir, work, ""))}
    found_walls = {who: walls for who, folder in folders.items() if (walls := below(_existing(folder))) is not None}
    walled = [who for who, walls in found_walls.items() if walls.stand]
    if len(walled) == len(folders):
        return Check("disk limit", "ok", "by the kernel (btrfs quotas), 5 % behind the limit, and a watch before that")
    of = f"; of {walled[0]} also by the kernel (btrfs quotas)" if walled else ""
    found = f"by a watch on the task's folder; single files of isolated tasks also by RLIMIT_FSIZE{of}"
    if idle := [who for who in found_walls if who not in walled]:
        todo = "`btrfs quota rescan` on its file system, or wait for the one that runs"
        return Check("disk limit", "warn", f"{found}; the kernel does not count the files of {' and '.join(idle)} now (btrfs quotas)", todo)
    with ThreadPoolExecutor(1) as thread:
        if thread.submit(hurry).result():
            if cgroups.can_freeze(there):
                return Check("disk limit", "ok", found)
            late = "but nothing can freeze a task of many processes: one can pass its limit by as much again"
            todo = "mount cgroups version 2 too: at /sys/fs/cgroup/unified beside version 1"
            return Check("disk limit", "warn", f"{found}, {late}", todo)
    late = "but it may come late: tasks that write with many processes can pass their limit by a third"
    return Check("disk limit", "warn", f"{found}, {late}", "run the agent as root, or allow it a real-time policy (LimitRTPRIO=1)")


def _existing(folder: str) -> str:
    """Where it will be made."""
    while not os.path.exists(folder) and folder != "/":
        folder = os.path.dirname(os.path.abspath(folder))
    return folder


def _sandbox(settings: Settings) -> Check:
    from headway.agent.places import box_folder, why_no_sandbox
    from headway.agent.scratch import remove

    folder = box_folder(settings.sandbox_dir, settings.data_dir, f"doctor-{os.getpid()}")
    why = why_no_sandbox(folder, settings.sandbox_uid)
    remove(folder)
    if why is None:
        return Check("sandbox", "ok", "bubblewrap with namespaces of its own and a filter of system calls")
    return Check("sandbox", "warn", why, "needed for tenants other than the default one: install bubblewrap, allow user namespaces")


def _users() -> Check:
    from headway.agent.slots import can_change_user

    if can_change_user():
        return Check("users", "ok", "each isolated task is a user of its own")
    found = "isolated tasks share the agent's user outside their sandbox"
    return Check("users", "warn", found, "run the agent as root for users of their own")
