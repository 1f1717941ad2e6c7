"""Sandboxes for warm runners of tenants that require isolation: one tenant to a runner, never two (H3 H11)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headway.agent import tree
from headway.agent.granted import Granted
from headway.agent.group import Limits
from headway.agent.interpreters import NotStartable
from headway.agent.places import Place, Places
from headway.agent.process import INSIDE_PATH
from headway.agent.sandbox import WORK
from headway.agent.spawn import Launch, launch
from headway.domain.task import Definition
from headway.wire.exchange import Excess

OWN_MEMORY = 64 * 2**20  # of the interpreter and the runner, which a function is not charged for


class RunnerBoxes:
    def __init__(self, places: Places, granted: Granted) -> None:
        self._places, self._granted = places, granted

    def limits_of(self, definition: Definition) -> Limits:
        limits = self._places.limits_of(definition)
        return limits._replace(memory=limits.memory + OWN_MEMORY if limits.memory else 0)

    def start(
        self, number: int, definition: Definition, words: Sequence[str], env: dict[str, str], fds: tuple[int, int, int, int]
    ) -> tuple[int, Place]:
        """Start a runner in a sandbox; `fds` become its stdout, stderr, socket and shared memory. NotStartable when it cannot be."""
        box, scratch = self._places.box()
        place = self._places.take(definition)
        if place.slot is not None:
            self._places.slots.limit(place.slot, self.limits_of(definition))
        argv, gate_env = box.connected(
            [sys.executable, "-P", "-c", *words],
            place.dir,
            definition.network,
            definition.resources.bandwidth,
            private_tmp=scratch.tmp_of(place.dir),
            shown=[*box.python, *self._granted.shown(number, definition)],
            status_fd=None,
        )
        env = {**env, "PATH": INSIDE_PATH, "HOME": WORK, "TMPDIR": "/tmp", "USER": "task", "LOGNAME": "task", **gate_env}
        stdout, stderr, sock, shared = fds
        program = Launch(argv, env, place.dir, stdout, stderr, place.slot, box.opens, ((sock, 3), (shared, 4)), place.disk_limit)
        launch([program])
        if program.error:
            self._places.give_back(place)
            raise NotStartable(f"the sandbox could not be started: {os.strerror(program.error)}")
        self._places.watch(place, lambda: self.kill(place), lambda: place.slot.pids() if place.slot is not None else [])
        return program.pid, place

    def relimit(self, place: Place, definition: Definition) -> None:
        """Its next batch is of this definition."""
        if place.slot is not None:
            self._places.slots.limit(place.slot, self.limits_of(definition))
            if not place.slot.settled and place.slot.group is not None:
                place.slot.settled = place.slot.group.settle()

    def kill(self, place: Place) -> bool:
        return place.slot is not None and place.slot.group is not None and place.slot.kill()

    def members(self, place: Place, first: int) -> list[int]:
        """Everyone inside but the sandbox itself."""
        spared = {first, *tree.children(first)}
        return [pid for pid in place.slot.pids() if pid not in spared] if place.slot is not None else []

    def leave(self, place: Place) -> Excess | None:
        """It has ended: was it for a limit?"""
        excess = None
        if place.disk is not None and place.disk.over:
            excess = Excess("disk", max(place.disk.used, place.disk.limit), place.disk.limit)
        elif place.slot is not None:
            used, limits = place.slot.used(), place.slot.limits
            if used.kills:
                excess = Excess("memory", limits.memory, limits.memory)
            elif used.refused:
                excess = Excess("processes", limits.processes + 1, limits.processes)
        self._places.give_back(place)
        return excess
