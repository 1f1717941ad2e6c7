"""Freezing a process tree and letting it go on.

Where the task has a cgroup of its own, the kernel's freezer stops all of it at once and nothing inside can notice. Elsewhere each
process is stopped by SIGSTOP, again and again until a look finds nothing new, as tree.kill does. A cgroup of version 1 holds even
SIGKILL back while it is frozen, so whoever kills must thaw.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

from headway.agent import tree

V1_ROOT, V2_ROOTS = "/sys/fs/cgroup/freezer", ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
SETTLE_S = 0.2  # a freezer that has not settled by then leaves the work to SIGSTOP


class Freezer:
    """What is frozen here, by the name its owner gave it."""

    def __init__(self) -> None:
        self._switches: dict[str, Switch] = {}
        self._stopped: dict[str, set[int]] = {}  # by SIGSTOP

    def freeze(self, name: str, roots: list[int], marked: tree.Marked | None, by_signals: Callable[[], None] = lambda: None) -> None:
        """`by_signals` is called before they are, if they are all that can be used."""
        switch = _switch_of(roots[0]) if roots else None
        frozen: set[int] = set()
        if switch is not None and switch.members() <= tree.members(roots, marked) and switch.freeze():
            self._switches[name] = switch
            frozen = switch.members()
        else:
            by_signals()
        # All, or what left the cgroup; and who was stopped before he came into it, when this is said again.
        self._stopped[name] = self._stopped.get(name, set()) | stop(roots, marked, spare=frozen)

    def thaw(self, name: str, roots: list[int], marked: tree.Marked | None) -> None:
        """Whoever was stopped goes on; what the cgroup froze hears no signal."""
        if (switch := self._switches.pop(name, None)) is not None:
            switch.thaw()
        stopped = self._stopped.pop(name, set())
        if stopped:
            tree.send(tree.members(roots, marked) & stopped, signal.SIGCONT)

    def thaw_all(self) -> None:
        """After a kill: let the dead die."""
        for switch in self._switches.values():
            switch.thaw()
        self._switches.clear()
        self._stopped.clear()


class Switch:
    """The freezer of one cgroup: its file, the words for on and off, and where it says that it is done."""

    def __init__(self, path: str, on: str, off: str, done: tuple[str, str]) -> None:
        self.path, self.on, self.off, self.done = path, on, off, done

    def freeze(self) -> bool:
        """True once everything inside stands still."""
        if not self._write(self.on):
            return False
        deadline = time.monotonic() + SETTLE_S
        while not self._is_frozen():
            if time.monotonic() >= deadline:
                self._write(self.off)
                return False
            time.sleep(0.001)
        return True

    def thaw(self) -> None:
        self._write(self.off)

    def members(self) -> set[int]:
        """Who is inside: a cgroup that others share must not be frozen."""
        try:
            with open(os.path.join(os.path.dirname(self.path), "cgroup.procs")) as file:
                return {int(line) for line in file}
        except (OSError, ValueError):
            return {0}

    def _write(self, word: str) -> bool:
        try:
            with open(self.path, "w") as file:
                file.write(word)
        except OSError:
            return False  # gone with its task, or not ours to write: signals do it
        return True

    def _is_frozen(self) -> bool:
        file, word = self.done
        with contextlib.suppress(OSError), open(os.path.join(os.path.dirname(self.path), file)) as content:
            return word in content.read()
        return False


def stop(roots: Iterable[int], marked: tree.Marked | None, spare: Iterable[int] = ()) -> set[int]:
    """SIGSTOP to every process of the tree, until none is left that was not stopped."""
    roots, spared = list(roots), set(spare)
    stopped: set[int] = set()
    while new := tree.members([*roots, *stopped], marked) - stopped - spared:
        tree.send(new, signal.SIGSTOP)
        stopped |= new
    return stopped


def _switch_of(pid: int) -> Switch | None:
    """The freezer of the process's cgroup, if it has one that this process is not in too."""
    theirs, ours = _groups(pid), _groups(os.getpid())
    if (path := theirs.get("freezer")) is not None and path != ours.get("freezer"):
        file = f"{V1_ROOT}{path}/freezer.state"
        if os.access(file, os.W_OK):
            return Switch(file, "FROZEN", "THAWED", ("freezer.state", "FROZEN"))
    if (path := theirs.get("")) is not None and path != ours.get(""):
        for root in V2_ROOTS:
            file = f"{root}{path}/cgroup.freeze"
            if os.access(file, os.W_OK):
                return Switch(file, "1", "0", ("cgroup.events", "frozen 1"))
    return None


def _groups(pid: int) -> dict[str, str]:
    """Controller -> path; the unified hierarchy has no controller's name."""
    found: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                found.update(dict.fromkeys(controllers.split(","), path))
    except OSError:
        return {}
    return found
