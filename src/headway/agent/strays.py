"""Leaving nothing behind: children of the supervisor that it never started are orphans of tasks, and end with them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from headway.agent import tree
from headway.agent.process import READ, Process
from headway.agent.starts import Starts
from headway.agent.variables import INSTANCE


class Strays:
    def __init__(self, instance: str, starts: Starts) -> None:
        self._instance, self._starts = instance, starts
        self._suspects: dict[int, int] = {}  # process -> the newest turn of starts when it was first seen
        me = os.getpid()
        self._children = os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def suspected(self) -> bool:
        return bool(self._suspects)

    def kill(self, running: Mapping[int, Process], known: Collection[int]) -> None:
        """End those of tasks that have ended. They come to us because we are the subreaper."""
        children = map(int, os.pread(self._children, READ, 0).split())  # kept open: a third of the cost of opening it
        strays = [pid for pid in children if pid not in running and pid not in known]
        # One may be a program that is being started: it is known when the starts that are under way now are over.
        self._suspects = {pid: self._suspects.get(pid, self._starts.turn) for pid in strays}
        certain = [pid for pid, turn in self._suspects.items() if self._starts.over(turn)]
        for pid in certain:
            del self._suspects[pid]
        # All at once: each time, every process of the machine is looked at. One by one, five hundred took longer than a lease.
        if leftovers := [pid for pid in certain if self._is_leftover(pid, running)]:
            tree.kill(leftovers, None)

    def _is_leftover(self, pid: int, running: Mapping[int, Process]) -> bool:
        text = tree.environ(pid)
        for process in running.values():
            if process.marked(self._instance)(text):
                return False
        if f"\0{INSTANCE}={self._instance}\0".encode() in text:
            return True
        of = tree.stat(pid)  # it has cleared its marks: it can only belong to a task that is older than it
        if of is None or of.zombie:
            return False
        older = [other for other in running if (began := tree.stat(other)) is not None and began.start <= of.start]
        return not older
