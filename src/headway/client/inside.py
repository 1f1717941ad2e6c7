"""Being a client inside a running task: keys that find earlier submissions again, and waiting without holding anything (C4).

A task that waits for its subtasks is ended and runs again from its top when they have ended. What it submits then is found, not
submitted a second time: the key of a submission is made of what it says, and of how often this attempt has said the same before.
All processes of an attempt share one journal for that, a file with a line for each submission (HEADWAY_SUBTASKS). Lines that
begin with `waits` tell the agent what the task waits for when it exits with code 85.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headway.client.context import Suspended
from headway.wire.task_token import PREFIX

REQUEUE = 85  # the exit code of a program that is to run again


class Inside:
    """One attempt, as its clients share it."""

    def __init__(self, journal: str | None = None) -> None:
        self._journal = journal  # None: this process is the whole attempt
        self._lines: list[str] = []

    @property
    def folder(self) -> str:
        """Where the processes of this attempt share what they know."""
        return os.path.realpath(os.path.dirname(self._journal or ""))

    def holds(self, path: str) -> bool:
        """Whether a path lies in the folder of this attempt, which is gone when a subtask runs."""
        return path == self.folder or path.startswith(f"{self.folder}/")

    @contextmanager
    def claim(self, contents: Iterable[bytes]) -> Iterator[list[str]]:
        """The keys of submissions. Those that did not get through may be made again under the same keys."""
        digests = [hashlib.blake2b(content, digest_size=12).hexdigest() for content in contents]
        keys = self._note(digests)
        try:
            yield keys
        except BaseException:
            self._add(f"unsaid {digest}" for digest in digests)
            raise

    def submitted(self, ids: Iterable[str]) -> None:
        self._add(f"child {child}" for child in ids)

    @property
    def children(self) -> list[str]:
        """What this attempt has submitted so far, in order."""
        return list(dict.fromkeys(line[6:] for line in self._read() if line.startswith("child ")))

    def suspended(self, ids: Iterable[str]) -> BaseException:
        """To be raised: the attempt ends here, and the next one begins when these have ended."""
        waits = [int(each) for each in ids]
        self._add(f"waits {each}" for each in waits)
        if self._journal is not None and threading.current_thread() is threading.main_thread():
            return SystemExit(REQUEUE)
        return Suspended(waits, program=self._journal is not None)

    def _note(self, digests: list[str]) -> list[str]:
        """Write down that these were said; their keys tell how often they were before."""
        if self._journal is None:
            keys = _keys(self._lines, digests)
            self._add(f"said {digest}" for digest in digests)
            return keys
        with open(self._journal, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            keys = _keys(file.read().splitlines(), digests)
            file.writelines(f"said {digest}\n" for digest in digests)
        return keys

    def _add(self, lines: Iterable[str]) -> None:
        if self._journal is None:
            self._lines.extend(lines)
            return
        with open(self._journal, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.writelines(f"{line}\n" for line in lines)

    def _read(self) -> list[str]:
        if self._journal is None:
            return self._lines
        try:
            with open(self._journal) as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []


def of(token: str | None) -> Inside | None:
    """This process belongs to a task, and the token is the task's own; None when it is anybody's else."""
    journal = os.environ.get("HEADWAY_SUBTASKS")
    if token is None or not token.startswith(PREFIX) or not journal:
        return None
    return Inside(journal)


def _keys(lines: list[str], digests: list[str]) -> list[str]:
    times: Counter[str] = Counter()
    for line in lines:
        word, _, digest = line.partition(" ")
        times[digest] += {"said": 1, "unsaid": -1}.get(word, 0)
    keys = []
    for digest in digests:
        keys.append(f"{digest}/{times[digest]}")
        times[digest] += 1
    return keys
