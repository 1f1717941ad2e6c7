"""Slots: where tasks run. A slot has a cgroup, a user, and a thread that starts programs in both.

Linux keeps cgroups (version 1) and users for each thread, and a new process begins with those of the thread that starts it. So each slot
has a thread that stands in the slot's group and, for isolated tasks, has become the slot's user; a start costs no system call more than
without limits. Slots are used again and again; a free one with the same limits is taken first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import threading
from collections import deque
from dataclasses import dataclass, field

from headway.agent.descriptors import part
from headway.agent.group import KILL_S, Group, Hierarchy, Limits, Used, kill
from headway.agent.handing import Call, Calls
from headway.agent.niceness import be_usual
from headway.agent.starter import Starter
from headway.agent.users import Users

KEPT = 64  # free slots; a burst's surplus is removed
STACK = 256 * 1024
CACHE_PART = 4  # cached files of earlier tasks are dropped when they fill a quarter of the next one's memory
NOTHING = Used(None, 0, 0, 0)
_SETGROUPS, _SETRESGID, _SETRESUID = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}.get(platform.machine(), (0, 0, 0))


@dataclass(eq=False)
class Slot:
    """Where one task runs at a time."""

    number: int
    group: Group | None
    uid: int | None  # None: the agent's own user
    calls: Calls = field(default_factory=Calls)
    compiled: int = 0  # its address there; 0: programs in it are started by Python
    thread: int = 0
    parted: bool = False  # its thread has descriptors of its own
    limits: Limits = field(default_factory=Limits)
    before: Used = NOTHING
    final: Used | None = None  # what its group had counted when the slot was seen empty, and nothing was started in it since
    settled: bool = False

    def used(self) -> Used:
        """What the task in it has used so far."""
        if self.group is None:
            return NOTHING
        empty = self.group.empty()  # first: what counts after that is nobody's
        now, before = self.group.used(), self.before
        self.final = now if empty else None
        return Used(now.peak, now.cpu_ms - before.cpu_ms, now.kills - before.kills, now.refused - before.refused)

    def pids(self) -> list[int]:
        return self.group.pids() if self.group is not None else []

    def kill(self, patience_s: float = KILL_S) -> bool:
        """End what runs in it; True when nothing lives there any more."""
        return self.group is None or kill(self.group, patience_s)

    @property
    def empty(self) -> bool:
        return self.group is None or self.final is not None or self.group.empty()


class Slots:
    """The slots of one supervisor."""

    def __init__(self, hierarchy: Hierarchy | None, *, users: Users | None, device: str) -> None:
        """`users`: of isolated tasks; None where they stay the agent's own."""
        self.hierarchy, self.users, self._device = hierarchy, users, device
        self._free: dict[tuple[bool, Limits], deque[Slot]] = {}
        self._count = self._made = 0
        self._slots: set[Slot] = set()  # all of them, also those that are taken
        self._spoilt: list[Slot] = []  # in a state that nobody knows: a descriptor was missing half-way
        self._numbers: list[int] = []  # of removed slots, to be used again
        self.before_user: Call = lambda: None  # done by the thread of an isolated slot, while it is still root
        self.starter = Starter()
        self._keeper = Slot(0, None, None)
        if hierarchy is not None:
            _start(self._keeper, self.starter)
            hierarchy.keep(self._keeper.thread)

    def take(self, limits: Limits, *, isolated: bool) -> Slot | None:
        """A slot with these limits; None where there is nothing to hold a task with."""
        own_user = isolated and self.users is not None
        if self.hierarchy is None and not own_user:
            return None
        if self._spoilt:
            self._remove_spoilt()
        slot = self._pick(limits, own_user) or self._make(own_user)
        if slot.group is not None:
            try:
                self._begin(slot, slot.group, limits)
            except OSError:  # it must not be used again: what it thinks it limits may not be limited
                self._spoilt.append(slot)
                raise
        return slot

    def _begin(self, slot: Slot, group: Group, limits: Limits) -> None:
        self.limit(slot, limits)
        known, slot.final = slot.final, None
        if limits.memory and (known is None or known.peak is None or known.peak > limits.memory // CACHE_PART):
            group.empty_cache(limits.memory // CACHE_PART)
        anew = group.begin()
        slot.before = NOTHING if anew else known if known is not None else group.used()
        slot.settled = False

    def _remove_spoilt(self) -> None:
        """Those whose removal needs what is missing still wait for the next time."""
        spoilt, self._spoilt = self._spoilt, []
        for slot in spoilt:
            try:
                self._remove(slot)
            except OSError:
                self._spoilt.append(slot)

    def limit(self, slot: Slot, limits: Limits) -> None:
        if slot.group is not None:
            slot.group.limit(limits, self._device)  # it knows which of them have to be written, and whether they could be
            slot.limits = limits

    def give_back(self, slot: Slot) -> None:
        """Its task is over and none of its processes lives."""
        if self._count >= KEPT:
            try:
                self._remove(slot)
            except OSError:
                self._spoilt.append(slot)
            return
        self._count += 1
        self._free.setdefault((slot.uid is not None, slot.limits), deque()).append(slot)

    def close(self) -> None:
        """Also of slots that are taken: their runners are dead, or die with this."""
        for slot in list(self._slots):
            self._remove(slot)
        self._free.clear()
        if self.hierarchy is not None:
            self.hierarchy.go_home(self._keeper.thread)
            self.hierarchy.clear()
        if self.users is not None:
            self.users.close()
        self.starter.close()

    def _pick(self, limits: Limits, own_user: bool) -> Slot | None:
        same = self._free.get((own_user, limits))
        if not same:
            same = next((slots for (user, _), slots in self._free.items() if user == own_user and slots), None)
        if not same:
            return None
        self._count -= 1
        return same.popleft()  # the one that rested longest: what it used of its CPU quota is forgotten by now

    def _make(self, own_user: bool) -> Slot:
        uid = self.users.take() if own_user and self.users is not None else None
        if self._numbers:
            number = self._numbers.pop()
        else:
            self._made += 1
            number = self._made
        try:
            group = self.hierarchy.group(str(number)) if self.hierarchy is not None else None
            compiled, calls = self.starter.make(number)
            slot = Slot(number, group, uid, calls, compiled)
            _start(slot, self.starter, self.before_user)
        except OSError:  # what there is of its group is for the next one of this number
            self._give_back_user(uid)
            self._numbers.append(number)
            raise
        self._slots.add(slot)
        if group is not None:
            try:
                group.admit(slot.thread)
            except OSError:
                self._spoilt.append(slot)
                raise
        return slot

    def _remove(self, slot: Slot) -> None:
        self._slots.discard(slot)
        slot.kill()
        if self.hierarchy is not None:
            self.hierarchy.go_home(slot.thread)
        slot.calls.put(None)
        if slot.group is not None:
            slot.group.remove()
        self._numbers.append(slot.number)
        self._give_back_user(slot.uid)

    def _give_back_user(self, uid: int | None) -> None:
        if uid is not None and self.users is not None:
            self.users.give_back(uid)


def _start(slot: Slot, starter: Starter, before_user: Call = lambda: None) -> None:
    """The thread lives as long as the slot: a task started by it dies with it (parent-death signal)."""
    address = slot.compiled
    began = threading.Semaphore(0)
    failed: list[OSError] = []

    def serve() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the supervisor's own thread
        slot.thread = threading.get_native_id()
        be_usual()
        try:
            if slot.uid is not None:
                before_user()
                _become(slot.uid)
            slot.parted = part(starter.kept)
        except OSError as error:
            failed.append(error)
        began.release()
        while (work := slot.calls.get()) is not None:
            call, then = work
            call()
            then()
        starter.discard(address)

    before = threading.stack_size(STACK)
    try:
        threading.Thread(target=serve, daemon=True, name=f"slot-{slot.number}").start()
    except RuntimeError as error:
        starter.discard(address)
        raise OSError(errno.EAGAIN, f"the thread of a slot could not be made: {error}") from error
    finally:
        threading.stack_size(before)
    began.acquire()
    if not slot.parted:
        slot.compiled = 0
    if failed:
        slot.calls.put(None)
        raise failed[0]


def _become(uid: int) -> None:
    """This thread alone takes another user: the system calls themselves, since the C library would change every thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    keep = ctypes.c_long(0)  # the saved user stays root's, for this thread only: a program it starts loses it when it is loaded
    for number, arguments in ((_SETGROUPS, (0, None)), (_SETRESGID, (uid, uid, keep)), (_SETRESUID, (uid, uid, keep))):
        if libc.syscall(number, *arguments) != 0:
            raise OSError(ctypes.get_errno(), f"the slot's thread could not become user {uid}")


def can_change_user() -> bool:
    return os.geteuid() == 0 and _SETRESUID != 0
