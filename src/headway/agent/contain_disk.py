"""The disk limit of a container, kept by its launcher as disk_process keeps those of all other tasks (G3 H2).

A container's processes are in groups of its engine, which come and go with it, and its files in folders of the engine: the supervisor's
watch knows neither. So the launcher looks itself, by the same rules (disk.py): when next, follows from the room that is left and the speed
at which memory takes writes, and close to its limit the container is held on the launcher's CPU.
"""

from __future__ import annotations

import os
import time

from headway.agent.container_group import groups_of
from headway.agent.disk import Watched, check
from headway.agent.disk_count import count
from headway.agent.disk_guard import Guard
from headway.agent.disk_hold import Holder, end, hurry
from headway.agent.disk_members import One, Whole

AGAIN_S = 0.002  # between two looks for processes of one that has to end


class ContainerDisk:
    def __init__(self, folder: str, limit: int, client: int) -> None:
        """What is known before the container is: the folder that it shares with the agent, and the engine's client. Where nothing more
        becomes known, since the engine makes no groups, that folder is what is limited, and the client's end is the container's."""
        self._holder = Holder(able=hurry() or (_leave_slot() and hurry()))
        self._guard = Guard(lambda watched: end(watched.pids()), self._holder)
        only = One(client)
        self._watched = Watched((folder,), limit, only.pids, only.threads)

    def found(self, folders: tuple[str, ...], members: Whole) -> None:
        """The container is there: all it may write, and who writes it."""
        before = self._watched
        self._forget_hold()
        self._watched = Watched((*before.folders, *folders), before.limit, members.pids, members.threads, members.clock)

    def look(self) -> float:
        """One look, if it is time to; returns how long the next can wait. Above its limit the container is ended."""
        watched = self._watched
        wait = AGAIN_S if watched.over else check(watched, time.monotonic(), self._guard, self._holder)
        if watched.hold is not None:
            self._holder.stand_by(watched.hold)
        if watched.over:
            end(watched.pids())
            return AGAIN_S
        return wait

    @property
    def used(self) -> int:
        """By one that was ended for it: what is there now; otherwise 0."""
        watched = self._watched
        return max(watched.used, count(watched.folders, watched.limit).total) if watched.over else 0

    def close(self) -> None:
        """The container has ended: what is left to do is nothing urgent."""
        self._forget_hold()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    def _forget_hold(self) -> None:
        if (hold := self._watched.hold) is not None:
            self._watched.hold = None
            self._holder.forget(hold)


def _leave_slot() -> bool:
    """To the agent's own group of CPU time: kernels with RT_GROUP_SCHED let nobody be urgent in a group that was given no time for it, as
    the groups of slots are not in version 1. A container's slot limits nothing, so nothing is evaded by it."""
    agents, slot, _ = groups_of(os.getpid()).get("cpu", "").partition("/headway-")
    if not slot:
        return False
    try:
        with open(f"{agents}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    except OSError:
        return False  # not ours to write
    return True
