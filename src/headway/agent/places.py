"""The place an attempt runs in: a slot with kernel limits, a folder, ports, and a watch on its disk. Taken before, given back after."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from headway.agent import cgroups, sandbox
from headway.agent.disk_count import count
from headway.agent.disk_watch import DiskWatch, Watch
from headway.agent.forsaken import note_owner
from headway.agent.group import KILL_S, Limits, Used
from headway.agent.interpreters import NotStartable
from headway.agent.link import Terms
from headway.agent.ports import Ports
from headway.agent.scratch import Scratch, remove
from headway.agent.slots import Slot, Slots, can_change_user
from headway.agent.users import Users
from headway.domain.isolation import EVERYTHING
from headway.domain.task import Definition

SCRATCH = "scratch"  # the folder of folders for attempts
OWN_PROCESSES = 3  # of the sandbox itself
LOOK_S = 0.0025  # of the supervisor, for what a task that failed has on the disk: a thousand empty folders took 33 ms
GATE_MEMORY = 32 * 2**20  # of the process that connects it to granted places


@dataclass(eq=False)
class Place:
    """Where one attempt runs."""

    dir: str
    scratch: Scratch
    slot: Slot | None
    limits: Limits
    disk_limit: int
    ports: tuple[int, ...] = ()
    isolated: bool = False
    disk: Watch | None = None
    begun: bool = False  # a program was started in it
    own: int = 0  # memory of a runner that its function is not charged for
    look_at: float = 0.0  # when to look again what that is
    memory: int = -1  # the descriptor that tells, of a runner that is one process

    def used(self) -> Used | None:
        """What the group it is in has counted, if there is one, and a descriptor to read it by."""
        if self.slot is None or self.slot.group is None:
            return None
        try:
            return self.slot.used()
        except OSError:
            return None

    def on_disk(self) -> int:
        """What an attempt has in its folders at its end: at least so much, where there are very many files."""
        assert self.disk is not None
        counted = count(self.disk.folders, self.disk.limit, within_s=LOOK_S).total
        return self.scratch.at_most(self.dir, max(counted, self.disk.used, self.scratch.at_wall(self.dir)))


class Places:
    """The places of one node."""

    def __init__(self, work_dir: str, instance: str, terms: Terms, ports: int) -> None:
        self._terms, self._work_dir = terms, work_dir
        users = Users(terms.sandbox_uid, instance) if can_change_user() else None
        hierarchy = cgroups.find(instance) if terms.cgroups == "use" else None
        self.slots = Slots(hierarchy, users=users, device=cgroups.device_of(work_dir))
        self.scratch = Scratch(os.path.join(work_dir, SCRATCH))
        self.ports = Ports(terms.first_port, ports)
        self._prepared = os.path.join(work_dir, "prepared")
        os.makedirs(self._prepared, mode=0o755, exist_ok=True)
        self._box_dir = box_folder(terms.sandbox_dir, work_dir, instance)
        if os.path.isdir(scratch := os.path.join(self._box_dir, SCRATCH)):
            remove(scratch)  # of a supervisor that was killed: there may be no isolated task for long
        self._box: tuple[sandbox.Sandbox, Scratch] | None = None
        self._kept = -1
        self._keep_box()
        self.disk_watch = DiskWatch()
        self.opened: Callable[[str], None] = lambda folder: None  # told of the folder that sandboxes see as /etc, once it is there
        self._limbo: list[Place] = []  # something in them does not die yet

    def limits_of(self, definition: Definition) -> Limits:
        need, most = definition.resources, self._terms.max_processes
        if definition.content.image:
            return Limits()  # the container engine holds them; what runs here is only its client
        memory = need.memory
        if definition.isolation == "sandbox":
            most += OWN_PROCESSES
            if definition.network not in ((), (EVERYTHING,)):
                most, memory = most + 1, memory + GATE_MEMORY if memory else 0
        return Limits(need.cpus_milli, memory, most, need.iops, need.bandwidth)

    def take(self, definition: Definition) -> Place:
        """NotStartable when this node has no place of that kind; OSError when it has no room for one now."""
        isolated = definition.isolation == "sandbox"
        scratch = self.box()[1] if isolated else self.scratch
        limits = self.limits_of(definition)
        disk = 0 if definition.content.image else definition.resources.disk  # a container's launcher looks after it
        if disk:
            self.disk_watch.start()
        slot = self.slots.take(limits, isolated=isolated)
        place = Place("", scratch, slot, limits, disk, isolated=isolated)
        try:
            place.dir = scratch.take(slot.uid if slot is not None else None)
            place.ports = self.ports.take(definition.resources.ports) if definition.resources.ports else ()
        except OSError:
            self.give_back(place)
            raise
        return place

    def take_slot(self) -> Place:
        """A slot without limits yet, without folder and ports: for a trusted runner, which lives longer than one task."""
        return Place("", self.scratch, self.slots.take(Limits(), isolated=False), Limits(), 0)

    def make_ready(self, place: Place | None) -> None:
        """Before each program of an attempt: what one before it left running is ended."""
        slot = place.slot if place is not None else None
        if place is None or slot is None:
            return
        if place.begun:
            if not slot.empty:
                slot.kill()
            slot.final = None
            self.slots.limit(slot, place.limits)
        place.begun = True
        self.watch(place)

    def watch(self, place: Place, pid: int | None = None) -> None:
        """From now on its disk is watched, and what runs in it is killed when it is above its limit.

        Where a group tells what runs in it, that is before the program starts: the others of its batch may take a while. The watch is told
        with `disk_watch.say`.
        """
        group = place.slot.group if place.slot is not None else None
        if place.disk is None and place.disk_limit and (group is not None or pid is not None):
            folders = (place.dir, place.scratch.tmp_of(place.dir)) if place.isolated else (place.dir,)
            walled = place.scratch.wall(place.dir, place.disk_limit)
            place.disk = self.disk_watch.add(folders, place.disk_limit, group, pid, walled=walled)

    def give_back(self, place: Place, patience_s: float = KILL_S) -> None:
        """Its first process has ended. Whatever else is in there ends now."""
        if place.disk is not None:
            self.disk_watch.remove(place.disk)
            place.disk = None
        if place.slot is not None and not _ended(place.slot, patience_s):
            self._limbo.append(place)
            return
        if place.slot is not None:
            self.slots.give_back(place.slot)
        self.ports.give_back(place.ports)
        if place.dir:
            place.scratch.give_back(place.dir)

    @property
    def waiting(self) -> bool:
        """Whether something in here takes its time to die."""
        return bool(self._limbo)

    def tick(self) -> None:
        """What could not be done at once is tried again: a watch on disks, and the end of what takes its time to die, without waiting for
        it, since others wait for this thread."""
        self.disk_watch.look_after()
        waiting, self._limbo = self._limbo, []
        for place in waiting:
            self.give_back(place, patience_s=0.0)

    def box(self) -> tuple[sandbox.Sandbox, Scratch]:
        """The sandbox and its folders, made when the first task needs them."""
        if self._box is None:
            try:
                make_private(self._box_dir)
                note_owner(self._box_dir, self._work_dir)
                self._keep_box()
                shown = [*self._terms.sandbox_paths, *self._terms.paths]
                sources = [self._prepared, *self._terms.volumes.values()]
                box = sandbox.Sandbox(os.path.join(self._box_dir, "box"), shown=shown, sources=sources, tls_ca=self._terms.tls_ca)
                self.slots.before_user = box.uncover
                self.opened(box.etc)
                self._box = (box, Scratch(os.path.join(self._box_dir, SCRATCH), isolated=True))
            except OSError as error:
                raise NotStartable(f"this node cannot make a sandbox: {error}") from error
        return self._box

    def _keep_box(self) -> None:
        """Who cleans /var/tmp of what is old leaves alone what is locked (tmpfiles.d(5)): most of a sandbox is written once."""
        if self._kept < 0 and os.path.isdir(self._box_dir):
            self._kept = os.open(self._box_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._kept, fcntl.LOCK_SH)

    @property
    def workshop(self) -> str:
        """The folder of sandboxes in which something is prepared: their users can reach it too."""
        self.box()
        return os.path.join(self._box_dir, "workshop")

    @property
    def removers(self) -> set[int]:
        return self.scratch.removers | (self._box[1].removers if self._box is not None else set())

    def removed(self, pid: int) -> None:
        self.scratch.removed(pid)
        if self._box is not None:
            self._box[1].removed(pid)

    def close(self) -> None:
        """The supervisor ends and everything in the places is dead."""
        self.disk_watch.close()
        self.slots.close()
        self.scratch.close()
        remove(self._box_dir)


def _ended(slot: Slot, patience_s: float) -> bool:
    """Whether nothing lives in it, which is ended now. It may not be dead yet, or dead and not waited for; and where no descriptor is left
    to see it by, it is seen later."""
    try:
        if slot.empty:
            return True
        slot.kill(patience_s)
        return slot.empty
    except OSError:
        return False


def box_folder(asked: str | None, work_dir: str, instance: str) -> str:
    """Users of slots must be able to reach it, which a folder inside root's home is not."""
    if asked is not None:
        return os.path.join(asked, f"headway-{instance}")
    return f"/var/tmp/headway-{instance}" if can_change_user() else os.path.join(work_dir, "sandbox")


def why_no_sandbox(folder: str, first_uid: int) -> str | None:
    """Why isolated tasks cannot run on this node, or None: a sandbox is made for a try, and its folder kept for those that follow."""
    try:
        remove(folder)
        make_private(folder)
        why = sandbox.why_not(os.path.join(folder, "box"), first_uid if can_change_user() else None)
    except OSError as error:
        why = str(error)
    if why is not None:
        remove(folder)
    return why


def make_private(path: str) -> None:
    """A folder that is surely ours, though others may write beside it."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, 0o711)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{path} exists and is not ours alone") from None
    os.chmod(path, 0o711)
