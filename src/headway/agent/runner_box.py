"""What holds warm runners: trusted ones a group with the limits of their batch, those of isolated tenants a sandbox, one tenant to a runner
and never two (G3 H3 H11)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from headway.agent import tree
from headway.agent.granted import Granted
from headway.agent.group import Limits
from headway.agent.interpreters import NotStartable
from headway.agent.link import SHARED_FD, SOCKET_FD
from headway.agent.places import Place, Places
from headway.agent.process import INSIDE_PATH
from headway.agent.sandbox import VARIABLES_FD, WORK
from headway.agent.spawn import Launch, launch
from headway.agent.variables import INSTANCE, for_bubblewrap
from headway.agent.watcher import PAGE, resident
from headway.domain.task import Definition
from headway.wire.exchange import Excess

OWN_MEMORY = 64 * 2**20  # of the interpreter and the runner, which a function is not charged for
STEP = 64 * 2**20  # what earlier functions left in a trusted runner is not charged to the next one either, in such steps
LOOK_S = 0.25  # how often that is looked at while it is never idle


class RunnerBoxes:
    def __init__(self, places: Places, granted: Granted) -> None:
        self._places, self._granted = places, granted
        self._limits: dict[int, Limits] = {}  # by definition, for trusted runners: looked up for every batch

    def limits_of(self, definition: Definition) -> Limits:
        limits = self._places.limits_of(definition)
        return limits._replace(memory=limits.memory + OWN_MEMORY if limits.memory else 0)

    # --- trusted runners

    def start_trusted(
        self, words: Sequence[str], env: dict[str, str], fds: tuple[int, int, int, int], *, alone: bool
    ) -> tuple[int, Place]:
        """Start a runner as the agent's own user. Its limits come with its batches. Alone: it is one process, and no bridge to another."""
        place = self._places.take_slot()
        stdout, stderr, sock, shared = fds
        argv = [sys.executable, "-P", "-c", *words]
        program = Launch(argv, env, os.curdir, stdout, stderr, place.slot, (), ((sock, SOCKET_FD), (shared, SHARED_FD)))
        launch(program)
        if program.error:
            self._places.give_back(place)
            raise NotStartable(f"the runner could not be started: {os.strerror(program.error)}")
        with contextlib.suppress(OSError):  # it has ended already
            if alone:
                place.memory = os.open(f"/proc/{program.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        return program.pid, place

    def relimit_trusted(self, place: Place, number: int, definition: Definition, now: float, *, idle: bool) -> None:
        """Its next batch is of this definition: memory is held, of the CPU it gets its share. Written only when it is another limit."""
        slot = place.slot
        if slot is None or slot.group is None:
            return
        if idle or now >= place.look_at:
            place.look_at = now + LOOK_S
            left = _resident(place) - (0 if idle else place.limits.memory)  # of what runs now, it may be all that it asked for
            place.own = max(OWN_MEMORY, (left // STEP + 1) * STEP)
            if not slot.settled:
                slot.settled = slot.group.settle()
        limits = self._limits.get(number)
        if limits is None:
            if len(self._limits) > 1000:
                self._limits.clear()
            limits = self._places.limits_of(definition)
            limits = self._limits[number] = limits._replace(cpus_milli=0, share_milli=limits.cpus_milli)
        place.limits = limits
        wanted = limits._replace(memory=limits.memory + place.own) if limits.memory else limits
        if wanted != slot.limits:
            self._places.slots.limit(slot, wanted)

    # --- isolated runners

    def start(
        self, number: int, definition: Definition, words: Sequence[str], env: dict[str, str], fds: tuple[int, int, int, int]
    ) -> tuple[int, Place]:
        """Start a runner in a sandbox; `fds` become its stdout, stderr, socket and shared memory. NotStartable when it cannot be."""
        place = self._places.take(definition)
        place.own = OWN_MEMORY
        try:
            program = self._launch(place, number, definition, words, env, fds)
        except BaseException:
            self._places.give_back(place)
            raise
        if program.error:
            self._places.give_back(place)
            raise NotStartable(f"the sandbox could not be started: {os.strerror(program.error)}")
        self._places.watch(place, program.pid)
        self._places.disk_watch.say()
        return program.pid, place

    def _launch(
        self,
        place: Place,
        number: int,
        definition: Definition,
        words: Sequence[str],
        env: dict[str, str],
        fds: tuple[int, int, int, int],
    ) -> Launch:
        box, scratch = self._places.box()
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
            held=place.disk_limit > 0,
        )
        env = {**env, "PATH": INSIDE_PATH, "HOME": WORK, "TMPDIR": "/tmp", "USER": "task", "LOGNAME": "task"}
        self._places.watch(place)
        self._places.disk_watch.say()
        stdout, stderr, sock, shared = fds
        variables = for_bubblewrap(env)
        try:
            passes = ((sock, SOCKET_FD), (shared, SHARED_FD), (variables, VARIABLES_FD))
            outside = {**gate_env, INSTANCE: env[INSTANCE]}
            program = Launch(argv, outside, place.dir, stdout, stderr, place.slot, box.opens, passes, place.disk_limit)
            launch(program)
        finally:
            os.close(variables)
        return program

    def relimit(self, place: Place, definition: Definition) -> None:
        """Its next batch is of this definition."""
        if place.slot is not None:
            place.limits = self._places.limits_of(definition)
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
        if place.memory >= 0:
            os.close(place.memory)
            place.memory = -1
        excess = None
        if place.disk is not None and (place.disk.over or place.scratch.at_wall(place.dir)):
            excess = Excess("disk", max(place.on_disk(), place.disk.limit), place.disk.limit)
        elif (used := place.used()) is not None:
            limits = place.limits
            if used.kills > 0:
                excess = Excess("memory", max((used.peak or 0) - place.own, limits.memory), limits.memory)
            elif used.refused > 0:
                excess = Excess("processes", limits.processes + 1, limits.processes)
        self._places.give_back(place)
        return excess


def _resident(place: Place) -> int:
    """What the runner has in memory. Asked before every batch that meets it idle: of a single process the file is kept open."""
    if place.memory < 0:  # behind a bridge is another process, and what that is depends on the language
        return sum(map(resident, place.slot.pids())) if place.slot is not None else 0
    try:
        return int(os.pread(place.memory, 100, 0).split()[1]) * PAGE
    except (OSError, IndexError):
        return 0  # it has just ended
