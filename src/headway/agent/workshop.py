"""Where the commands of a preparation run: as they are, or, for an isolated task, in a sandbox like its own (H5 H11).

Inside it only the place that is being prepared can be written; the system, the agent's Python and the task's own file can be read.
The network is the task's: none, the places it was granted, or all. pip, npm, compilers and the tenant's `prepare` command all run so: a
compiler that may read any file would show it in its error messages. Outside they are a user of their own, as tasks are: root without
capabilities still owns the devices in /dev and everything else that is root's.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from headway.agent import sandbox
from headway.agent.entries import TOO_DEEP, Entries, Failed, change_mode
from headway.agent.scratch import remove
from headway.agent.variables import for_bubblewrap, marks_of
from headway.domain.task import Definition

TMP = "tmp-"  # before the name of a command's /tmp
LOCK = "workshop"
LONGEST_PATH = 4096  # with the NUL at its end


class Command(NamedTuple):
    """How a command is started."""

    argv: list[str]
    env: dict[str, str]
    fds: tuple[int, ...] = ()
    user: int | None = None


class Workshop:
    def __init__(self, definition: Definition, entries: Entries, shown: Sequence[str], *, folder: str, user: int | None) -> None:
        self.isolated = definition.isolation not in ("", "none")
        self._network, self._bandwidth = definition.network, definition.resources.bandwidth
        self._entries, self._shown, self._folder, self._user = entries, [path for path in shown if os.path.exists(path)], folder, user
        self._box: sandbox.Sandbox | None = None
        self.folders: tuple[str, ...] = ()  # all that the last command may write into
        self._handed_over = False

    def command(self, words: Sequence[str], place: Path, env: dict[str, str], stack: ExitStack) -> Command:
        """How to start it; what it needs lives as long as the stack."""
        self.folders = (str(place),)
        if not self.isolated:
            return Command(list(words), env)
        box = self._made()
        tmp = tempfile.mkdtemp(dir=self._entries.root, prefix=TMP)
        stack.callback(remove, tmp)  # by a process: folders in it may be nested deeper than Python can go
        self.folders = (str(place), tmp)
        if self._user is not None:
            for path in (tmp, *_all_below(str(place))):
                os.chown(path, self._user, self._user, follow_symlinks=False)
            self._handed_over = True
        filter_fd = os.open(box.filter, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, filter_fd)
        variables_fd = for_bubblewrap({**env, "HOME": "/tmp", "TMPDIR": "/tmp"})
        stack.callback(os.close, variables_fd)
        seen = [word for path in self._shown for word in ("--ro-bind", box.source(path), path)]
        stack.callback(remove, f"{tmp}.hosts")
        argv, gate_env = box.connected(
            words,
            box.source(str(place)),
            self._network,
            self._bandwidth,
            private_tmp=box.source(tmp),
            # The place also at its own path: what is built there may remember it.
            mounts=[*seen, "--bind", box.source(str(place)), str(place)],
            chdir=str(place),
            filter_fd=filter_fd,
            status_fd=None,
            variables_fd=variables_fd,
        )
        return Command(argv, {**marks_of(env), **gate_env}, (filter_fd, variables_fd), self._user)

    def take_back(self, place: Path) -> None:
        """No command works there any more: the place is the agent's own, and its tasks, which are other users, can read all of it."""
        if not self._handed_over:
            return
        self._handed_over = False
        for path in _all_below(str(place)):
            os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                change_mode(path, _readable)

    def _made(self) -> sandbox.Sandbox:
        """Once for each process; one at a time, for they share a folder."""
        if self._box is None:
            with self._entries.locked(LOCK):
                sources = [str(self._entries.root), *self._shown]
                self._box = sandbox.Sandbox(self._folder, shown=sandbox.python_paths(), sources=sources)
            self._box.uncover()
        return self._box


def _readable(mode: int) -> int:
    """By everybody, and used by whom it is for; it gives nobody's rights to others."""
    used = stat.S_ISDIR(mode) or mode & stat.S_IXUSR
    return mode & 0o777 | (0o555 if used else 0o444)


def _all_below(folder: str) -> Iterator[str]:
    """Itself too. What was unpacked into a place, or left by the command before, is its user's to change."""
    yield folder
    left = [folder]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if len(os.fsencode(entry.path)) >= LONGEST_PATH:
                    raise Failed(TOO_DEEP)
                yield entry.path
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
