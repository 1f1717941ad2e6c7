"""Where the commands of a preparation run: as they are, or, for an isolated task, in a sandbox like its own (H5 H11).

Inside it only the place that is being prepared can be written; the system, the agent's Python and the task's own file can be read.
There is no network unless the task was granted all of it. pip, npm, compilers and the tenant's `prepare` command all run so: a
compiler that may read any file would show it in its error messages.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from headway.agent import sandbox
from headway.agent.scratch import remove
from headway.agent.variables import for_bubblewrap, marks_of
from headway.domain.isolation import EVERYTHING
from headway.domain.task import Definition

TMP = "tmp-"  # before the name of a command's /tmp


class Workshop:
    def __init__(self, definition: Definition, root: Path, shown: Sequence[str]) -> None:
        self.isolated = definition.isolation not in ("", "none")
        self._network: Sequence[str] = () if definition.network == (EVERYTHING,) else sandbox.ALONE
        self._root, self._shown = root, shown
        self._box: sandbox.Sandbox | None = None
        self.folders: tuple[str, ...] = ()  # all that the last command may write into

    def command(
        self, words: Sequence[str], place: Path, env: dict[str, str], stack: ExitStack
    ) -> tuple[list[str], dict[str, str], tuple[int, ...]]:
        """The command line, the environment and the descriptors of a command; what they need lives as long as the stack."""
        self.folders = (str(place),)
        if not self.isolated:
            return list(words), env, ()
        if self._box is None:
            self._box = sandbox.Sandbox(str(self._root / "workshop"), shown=sandbox.python_paths())
            self._box.uncover()
        tmp = tempfile.mkdtemp(dir=self._root, prefix=TMP)
        stack.callback(remove, tmp)  # by a process: folders in it may be nested deeper than Python can go
        self.folders = (str(place), tmp)
        filter_fd = os.open(self._box.filter, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, filter_fd)
        variables_fd = for_bubblewrap({**env, "HOME": "/tmp", "TMPDIR": "/tmp"})
        stack.callback(os.close, variables_fd)
        argv = self._box.command(
            words,
            str(place),
            private_tmp=tmp,
            chdir=str(place),
            network=self._network,
            filter_fd=filter_fd,
            status_fd=None,
            variables_fd=variables_fd,
        )
        at = argv.index("--chdir")  # the place also at its own path: what is built there may remember it
        seen = [word for path in self._shown if os.path.exists(path) for word in ("--ro-bind", path, path)]
        argv[at:at] = [*seen, "--bind", str(place), str(place)]
        return argv, marks_of(env), (filter_fd, variables_fd)
