"""Kernel limits by cgroups: where this agent may make groups, in version 1 or 2 (G3).

Everything lives below the group the agent itself was started in, so limits set from outside hold for agent and tasks together.
"""

from __future__ import annotations

import os

from headway.agent import cgroups_v1, cgroups_v2, tree, walls
from headway.agent.cgroup_files import MOUNT, folders, own_groups, read, usable
from headway.agent.cgroups_v1 import V1Hierarchy
from headway.agent.cgroups_v2 import V2Hierarchy
from headway.agent.group import Hierarchy

NEEDED = ("memory", "pids")


def find(instance: str) -> Hierarchy | None:
    """The hierarchy this process may make groups in, or None: then rlimits and a watcher have to do."""
    there = available()
    if there is None:
        return None
    version, paths = there
    if version == 1:
        return V1Hierarchy({name: f"{path}/headway-{instance}" for name, path in paths.items()})
    return V2Hierarchy(next(iter(paths.values())), instance, tuple(paths))


def available() -> tuple[int, dict[str, str]] | None:
    """The version, and for each controller where this process is in it and may make groups. Changes nothing."""
    own = own_groups()
    v1 = {name: path for name, path in cgroups_v1.own_folders().items() if usable(path)}
    if all(name in v1 for name in NEEDED):
        return 1, v1
    if "" not in own or not os.path.exists(f"{MOUNT}/cgroup.controllers"):
        return None
    path = f"{MOUNT}{own['']}"
    if not _is_ours_alone(path):
        return None
    path = path.removesuffix(f"/{cgroups_v2.AGENT}")  # where an earlier supervisor of this agent has put us
    controllers = [name for name in cgroups_v2.CONTROLLERS if name in read(f"{path}/cgroup.controllers").split()]
    if not usable(path) or not all(name in controllers for name in NEEDED):
        return None
    return 2, dict.fromkeys(controllers, path)


def can_freeze(there: tuple[int, dict[str, str]] | None) -> bool:
    """Whether tasks are in groups of version 2, alone or beside those of version 1."""
    return there is not None and (there[0] == 2 or cgroups_v1.UNIFIED in there[1])


def end(instance: str) -> bool:
    """End whatever runs in the groups of an agent that is gone, and remove them; False when there are none left."""
    name = f"headway-{instance}"
    v1 = {controller: f"{path}/{name}" for controller, path in cgroups_v1.own_folders().items()}
    v2 = f"{MOUNT}{os.path.dirname(own_groups().get('', ''))}/{name}"  # we are in a group beside it
    if found := {controller: path for controller, path in v1.items() if os.path.isdir(path)}:
        cgroups_v1.remove_all(found)
    if os.path.isdir(v2):
        cgroups_v2.remove_all(v2, ())
    return any(os.path.isdir(path) for path in (*v1.values(), v2))


def _is_ours_alone(path: str) -> bool:
    """Version 2 wants a group with groups in it to hold no process: we may move our own into one, not those of others."""
    inside = {int(pid) for pid in read(f"{path}/cgroup.procs").split()}
    processes = tree.table()  # after it: who was begun meanwhile is none of those inside, and who ended is nobody's
    return not (inside & processes.keys()) - tree.descendants([os.getppid()], processes)


def device_of(path: str) -> str:
    """`major:minor` of the disk that holds a folder, for the throttles; empty when it is no block device."""
    number = os.stat(path).st_dev
    base = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
    if (told := walls.file_system(path)) is not None:  # btrfs gives each subvolume a number of its own
        disks = folders(f"{told}/devices")
        base = f"{told}/devices/{disks[0]}" if len(disks) == 1 else ""
    if not os.path.exists(base):
        return ""
    if os.path.exists(f"{base}/partition"):  # throttles count on the whole disk
        return read(f"{os.path.dirname(os.path.realpath(base))}/dev").strip()
    return read(f"{base}/dev").strip()


def disk_of(path: str) -> str:
    """The same disk as a file in /dev; empty when there is none."""
    number = device_of(path)
    name = os.path.basename(os.path.realpath(f"/sys/dev/block/{number}")) if number else ""
    return f"/dev/{name}" if name and os.path.exists(f"/dev/{name}") else ""
